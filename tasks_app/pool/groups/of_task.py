"""Of a task: the group that it is a member of, and the one that calls it. Reads only."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.coordination.groups import GroupProgress
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import ALL, GROUP, group_of

NEWEST = 100_000
"""Of so many groups, the newest, the callback is known that does not exist yet."""
_COLUMNS = """
    g.id, g.total, g.succeeded, g.failed, g.enough, g.fail_fast, g.outcome, g.callback_id,
    g.part_of, g.created_at, g.counted_at
"""
_OF_TASK = text(f"""
    WITH task AS MATERIALIZED (
        SELECT {group_of("t")} AS batch_id, CASE WHEN t.headers ->> 'group_id' ~ '^[0-9]{{1,18}}$'
            THEN CAST(t.headers ->> 'group_id' AS bigint) END AS told
        FROM {ALL} t WHERE t.id = :id LIMIT 1)
    SELECT {_COLUMNS}, g.callback_id IS NOT DISTINCT FROM :id AS calls
    FROM task k JOIN {GROUP} g ON g.id = ANY(ARRAY[k.batch_id, k.told])
    WHERE g.id = k.batch_id OR g.callback_id = :id
""")
_TO_BE = text(f"""
    SELECT {_COLUMNS}, true AS calls
    FROM (SELECT * FROM {GROUP} n ORDER BY n.id DESC LIMIT {NEWEST}) AS g
    WHERE g.callback_id = :id
""")


class Groups(NamedTuple):
    """What groups have to do with a task."""

    member_of: GroupProgress | None = None
    callback_of: GroupProgress | None = None
    """The group that called it, or will."""


def groups_of(connection: Connection, task_id: int, *, exists: bool = True) -> Groups:
    """Return the groups of a task; one that does not exist may be a callback to be."""
    rows = connection.execute(_OF_TASK if exists else _TO_BE, {"id": task_id}).all()
    found = {row.calls: _progress(row) for row in rows}
    return Groups(found.get(False), found.get(True))


def _progress(row: Any) -> GroupProgress:
    values = row._asdict()
    outcome = values.pop("outcome")
    del values["calls"]
    return GroupProgress(**values, outcome=None if outcome is None else State(outcome))
