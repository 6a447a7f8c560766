"""Browse: how far groups are, and what came of their members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.groups import Ended
from tasks_app.domain.groups import GroupProgress
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import ALL, COMPLETED, ERROR, GROUP, GROUP_IDS, PENDING, group_of

_COLUMNS = """
    g.id, g.total, g.succeeded, g.failed, g.enough, g.fail_fast, g.outcome, g.callback_id,
    g.part_of, g.created_at, g.counted_at
"""
_GET = text(f"SELECT {_COLUMNS} FROM {GROUP} g WHERE g.id = :id")
_NEWEST = text(f"""
    SELECT {_COLUMNS} FROM {GROUP} g
    WHERE NOT CAST(:open AS boolean) OR g.outcome IS NULL ORDER BY g.id DESC LIMIT :most
""")
_PAGE = text(f"SELECT i.ids FROM {GROUP_IDS} i WHERE i.group_id = :id AND i.no = :no")
_ENDED = text(f"""
    SELECT p.id, p.state, NULL::jsonb AS result, NULL AS error, p.name FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[]))
    UNION ALL
    SELECT c.id, c.state, c.result, c.error, c.name FROM {COMPLETED} c
    WHERE c.id = ANY(CAST(:ids AS bigint[])) AND c.finished_at >= :since
    UNION ALL
    SELECT e.id, e.state, e.result, e.error, e.name FROM {ERROR} e
    WHERE e.id = ANY(CAST(:ids AS bigint[]))
""")
NEWEST = 100_000
"""Of so many groups, the newest, the callback is known that does not exist yet."""
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


def get(connection: Connection, group_id: int) -> GroupProgress | None:
    """Return how far a group is, or None."""
    row = connection.execute(_GET, {"id": group_id}).first()
    return None if row is None else _progress(row)


def newest(connection: Connection, most: int, *, only_open: bool = False) -> list[GroupProgress]:
    """Return groups, the newest first; ``only_open``: those that are not over."""
    rows = connection.execute(_NEWEST, {"most": most, "open": only_open})
    return [_progress(row) for row in rows]


def pages(connection: Connection, group_id: int) -> Iterator[list[int]]:
    """Return the ids of members, some at a time, in the order in which they were created."""
    no = 0
    while (page := connection.execute(_PAGE, {"id": group_id, "no": no}).scalar()) is not None:
        yield page
        no += 1


def results(connection: Connection, group: GroupProgress) -> Iterator[Ended]:
    """Return what came of members, in the order in which they were created.

    Those are left out that retention has removed. Partitions older than the group are not read.
    """
    for ids in pages(connection, group.id):
        rows = connection.execute(_ENDED, {"ids": ids, "since": group.created_at})
        found = {row.id: Ended(row.id, State(row.state), *row[2:]) for row in rows}
        yield from (found[task_id] for task_id in ids if task_id in found)


class TaskGroups(NamedTuple):
    """What groups have to do with a task."""

    member_of: GroupProgress | None = None
    callback_of: GroupProgress | None = None
    """The group that called it, or will."""


def groups_of(connection: Connection, task_id: int, *, exists: bool = True) -> TaskGroups:
    """Return the groups of a task; one that does not exist may be a callback to be."""
    rows = connection.execute(_OF_TASK if exists else _TO_BE, {"id": task_id}).all()
    found = {row.calls: _progress(row) for row in rows}
    return TaskGroups(found.get(False), found.get(True))


def _progress(row: Any) -> GroupProgress:
    values = row._asdict()
    values.pop("calls", None)
    outcome = values.pop("outcome")
    return GroupProgress(**values, outcome=None if outcome is None else State(outcome))
