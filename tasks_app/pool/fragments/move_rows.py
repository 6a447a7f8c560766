"""Moving rows out of RUNNING or the pending pool in one statement, guarded by fences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import Event, Pool, State, states_in
from tasks_app.pool.fragments.conditions import UNPARKED, own_date
from tasks_app.pool.fragments.transition_log import Logged, Moving, lines_of, lines_of_successes
from tasks_app.pool.tables import (
    ATTEMPT,
    CARRIED,
    COMPLETED,
    ERROR,
    LOG_LINES,
    NOW,
    PENDING,
    PUT_BACK,
    quoted,
)
from tasks_app.pool.task_groups import (
    ENDS,
    LOCKED,
    count_members,
    lock_groups,
    skip_locked_groups,
    start_followers,
)

SKIP_LOCKED = "FOR UPDATE OF p SKIP LOCKED"  # for several rows: one locked row must not stop others
WAIT = "FOR UPDATE OF p"
_DECIDED = ("failures", "crashes", "retry_level", "result", "run_ms")
_KEPT = tuple(c for c in CARRIED if c not in _DECIDED)
AS_IT_WAS = ", ".join(f"p.{c}" for c in _KEPT)
# the same of PENDING rows, which may be held
WITH_ITS_DATE = ", ".join(f"{own_date()} AS due_at" if c == "due_at" else f"p.{c}" for c in _KEPT)
_MOVED = ", ".join(_KEPT + _DECIDED)
_INTO = f"{_MOVED}, state, error, finished_at"
_VALUES = f"{_MOVED}, goes_to, kind || coalesce(': ' || nullif(message, ''), ''), {NOW}"


def _back(column: str) -> str:
    return f"(SELECT {column} FROM back)[array_position((SELECT ids FROM back), p.id)]"


_ALL_MOVED = "(SELECT count(*) FROM gone) + (SELECT count(*) FROM again)"
_RETURNED = """
    SELECT id, goes_to, name, queue, NULL AS wait_s FROM held
    UNION ALL
    SELECT id, NULL, NULL, queue, wait_s FROM started
"""
_PUT_BACK = f"""
    put_back AS MATERIALIZED (
        SELECT count({PUT_BACK}(CASE WHEN {_ALL_MOVED} >= 0 THEN a.id END)) AS number FROM again a)
"""
"""Once all rows have moved, those that came back are put off until their needs are met."""
_HISTORY = ", ".join(f"'{event}'" for event in (Event.RETRY, Event.FAIL, Event.RESCUE))


def move_out(
    held: str,
    *,
    waits: bool = False,
    awaits_needs: bool = False,
    origin: State | None = State.RUNNING,
) -> Moving:
    """Return the statement that moves the rows that ``held`` selects and locks.

    It yields id, goes_to, name and queue of these. Then come the tasks that start by their ends, as
    ``StartedTask``, with ``goes_to`` null.

    It joins nothing, and finds rows by their ids: the plan of a join depends on two guessed sizes,
    and took a second if the pool was empty yesterday. Members of a group whose row is locked stay
    where they are, unless ``waits``: then ``:ids`` has the rows. ``awaits_needs``: what comes back
    waits for its needs, which are counted under the lock of its group. ``origin`` is their old
    state; None: the log gets no lines.
    """
    if waits:
        groups = f"SELECT p.batch_id FROM {PENDING} p WHERE p.id = ANY(CAST(:ids AS bigint[]))"
        first = f"""{lock_groups(groups)},
        held AS MATERIALIZED (SELECT * FROM ({held}) AS l WHERE {LOCKED})"""
    else:
        groups = skip_locked_groups("true" if awaits_needs else ENDS)
        first = f"locked AS MATERIALIZED ({held}), {groups}"
    moves = f"""
    WITH {first},
    ended AS NOT MATERIALIZED (SELECT id, batch_id, goes_to, result FROM held WHERE {ENDS}),
    {count_members("ended")},
    gone AS (
        DELETE FROM {PENDING} p
        WHERE p.id = ANY(ARRAY(SELECT id FROM held WHERE goes_to <> '{State.PENDING}'))
        RETURNING p.id),
    back AS MATERIALIZED (
        SELECT array_agg(id) AS ids, array_agg(back_at) AS back_at, array_agg(failures) AS failures,
            array_agg(crashes) AS crashes, array_agg(retry_level) AS retry_level,
            array_agg(sub_status) AS sub_status
        FROM held WHERE goes_to = '{State.PENDING}'),
    again AS (
        UPDATE {PENDING} p
        SET state = '{State.PENDING}', {UNPARKED}, changed_at = {NOW},
            lease_token = NULL, lease_until = NULL, owner = NULL,
            due_at = {_back("back_at")}, scan_at = {_back("back_at")},
            failures = {_back("failures")}, crashes = {_back("crashes")},
            retry_level = {_back("retry_level")}, sub_status = {_back("sub_status")}
        WHERE p.id = ANY((SELECT ids FROM back)::bigint[])
        RETURNING p.id),
    {start_followers("ended", before=_ALL_MOVED)},
    completed AS (
        INSERT INTO {COMPLETED} ({_INTO}) SELECT {_VALUES} FROM held
        WHERE goes_to IN ({quoted(*states_in(Pool.COMPLETED))})),
    failed AS (
        INSERT INTO {ERROR} ({_INTO}, fingerprint)
        SELECT {_VALUES}, fingerprint FROM held WHERE goes_to = '{State.FAILED}'),
    history AS (
        INSERT INTO {ATTEMPT}
            (task_id, attempt, event, kind, message, traceback, encrypted_message, fingerprint,
             owner, started_at, ended_at, run_ms)
        SELECT id, attempt, event, kind, message, traceback, encrypted_message, fingerprint,
            owner, started_at, {NOW}, run_ms
        FROM held WHERE event IN ({_HISTORY}) AND kind IS NOT NULL)
    """

    def sql(level: Logged) -> str:
        lines = "" if origin is None else lines_of(level, origin)
        if awaits_needs:
            return (
                f"{moves}{lines}, {_PUT_BACK} {_RETURNED} WHERE (SELECT number FROM put_back) >= 0"
            )
        return f"{moves}{lines} {_RETURNED}"

    return Moving(sql)


def states_of_moved(rows: Iterable[Any]) -> dict[int, State]:
    """Return where each row went that the statement of ``move_out`` has moved."""
    return {row.id: State(row.goes_to) for row in rows if row.goes_to is not None}


def complete(held: str) -> Moving:
    """Return the statement for rows that all succeeded; it yields their ids."""
    # ``held`` yields ``AS_IT_WAS``, failures, crashes, retry_level, result and run_ms.

    def sql(level: Logged) -> str:
        return f"""
    WITH held AS MATERIALIZED ({held}),
    gone AS (DELETE FROM {PENDING} p WHERE p.id = ANY(ARRAY(SELECT id FROM held)))
    {lines_of_successes("held") if level is Logged.ALL else ""}
    INSERT INTO {COMPLETED} ({_INTO})
    SELECT {_MOVED}, '{State.SUCCEEDED}', NULL, {NOW} FROM held RETURNING id"""

    return Moving(sql)


def attempts_of(rows: str) -> str:
    ids = f"ANY(ARRAY(SELECT id FROM {rows} WHERE attempt > 1))"
    return f""",
    attempts AS (DELETE FROM {ATTEMPT} a WHERE a.task_id = {ids}),
    lines AS (DELETE FROM {LOG_LINES} l WHERE l.task_id = {ids})"""


# a FROM clause for fence_arrays()
FENCES = """
    unnest(CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:tokens AS uuid[]))
        AS f(id, attempt, token)
"""


def fenced(guard: str, lock: str = "", *, fences: str = FENCES) -> str:
    """Return a FROM clause of the rows ``p`` whose fence holds, in the order of ``fences``."""
    # Each row has its own subquery: the plan of a join would depend on two guessed sizes.
    return f"""{fences} CROSS JOIN LATERAL (
        SELECT * FROM {PENDING} p
        WHERE p.id = f.id AND p.attempt = f.attempt AND p.lease_token = f.token AND {guard}
        {lock or "OFFSET 0"}) AS p"""


def fence_arrays(fences: Sequence[Fence]) -> dict[str, str]:
    ordered = sorted(fences)
    hexes, token, text = [], None, ""
    for fence in ordered:
        if fence.token is not token:  # convert it once for all fences of a claim
            token, text = fence.token, fence.token.hex
        hexes.append(text)
    return {
        "ids": array(fence.task_id for fence in ordered),
        "attempts": array(fence.attempt for fence in ordered),
        "tokens": array(hexes),
    }


def array(values: Iterable[object]) -> str:
    """Return a PostgreSQL array of numbers, words or nulls, which need no quotes."""
    # The driver, which converts element by element, takes five times as long.
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"
