"""Sub-status: what a run says of the state of its task, written under its fence."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.fences import fence_arrays, fenced
from tasks_app.pool.fragments.move_rows import SKIP_LOCKED, WAIT
from tasks_app.pool.tables import PENDING

_SAID = """
    unnest(CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:tokens AS uuid[]),
        CAST(:said AS text[])) AS f(id, attempt, token, said)
"""
_RUNS = f"p.state = '{State.RUNNING}'"
_SAY, _SAY_WAITING = (
    text(f"""
    WITH held AS MATERIALIZED (SELECT p.id, f.said FROM {fenced(_RUNS, lock, fences=_SAID)}),
    all_held AS MATERIALIZED (SELECT array_agg(id) AS ids, array_agg(said) AS said FROM held)
    UPDATE {PENDING} p SET sub_status = nullif(
        (SELECT said FROM all_held)[array_position((SELECT ids FROM all_held), p.id)], '')
    WHERE p.id = ANY((SELECT ids FROM all_held)::bigint[])
    RETURNING p.id
    """)
    for lock in (SKIP_LOCKED, WAIT)
)


def say(
    connection: Connection, told: Sequence[tuple[Fence, str]], *, waits: bool = False
) -> set[int]:
    """Write what each run says, empty text as nothing; return the ids of those that still hold.

    Unless it ``waits``, rows that somebody has locked are left out.
    """
    ordered = sorted(told)
    values = {
        **fence_arrays([fence for fence, _ in ordered]),
        "said": [said for _, said in ordered],
    }
    return set(connection.execute(_SAY_WAITING if waits else _SAY, values).scalars())
