"""Create: a group in the caller's transaction, which inserts its members in between."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.groups import GroupRow
from tasks_app.domain.errors import TasksError
from tasks_app.pool.task_groups import called
from tasks_app.pool.task_groups import locking
from tasks_app.pool.tables import EXTEND, GROUP, GROUP_IDS, NOW, PENDING

PAGE = 1_000
"""Ids of members in one row."""


def _next(table: str) -> str:
    return f"nextval((SELECT CAST(pg_get_serial_sequence('{table}', 'id') AS regclass)))"


_IDS = text(f"""
    SELECT {_next(GROUP)} AS group_id,
        CASE WHEN CAST(:calls AS boolean) THEN {_next(PENDING)} END AS callback_id
""")
_EXTEND = text(f"SELECT {EXTEND}(:id, CAST(:ids AS bigint[]))")
# A producer may not read callbacks, its own included: it has them at hand.
_INSERT = text(f"""
    WITH inserted AS (
        INSERT INTO {GROUP} (id, total, enough, fail_fast, then_row, on_failure, callback_id,
            part_of, created_at, counted_at)
        VALUES (:id, :total, CAST(:enough AS integer), :fail_fast, CAST(:then_row AS jsonb),
            CAST(:on_failure AS jsonb), CAST(:callback_id AS bigint), CAST(:part_of AS bigint),
            {NOW}, {NOW})
        RETURNING id, outcome, succeeded, failed, callback_id, part_of),
    counted AS (
        SELECT i.*, CAST(:then_row AS jsonb) AS then_row, CAST(:on_failure AS jsonb) AS on_failure
        FROM inserted i),
    {called()}
    SELECT id FROM counted
""")
_ENTER = text(f"""
    INSERT INTO {GROUP_IDS} (group_id, no, ids) VALUES (:id, :no, CAST(:ids AS bigint[]))
""")


def take_ids(connection: Connection, group: GroupRow) -> tuple[int, int | None]:
    """Return the id of a group to be, and of its callback, if it has any."""
    row = connection.execute(_IDS, {"calls": group.calls}).one()
    return row.group_id, row.callback_id


def extend(connection: Connection, group_id: int, members: Sequence[int]) -> None:
    """Let a group wait for more members, which are inserted in this transaction; it is locked.

    Raises:
        TasksError: the group is over, or unknown.
    """
    more = {"id": group_id, "ids": list(map(int, members))}
    if not connection.execute(_EXTEND, more).scalar():
        raise TasksError(
            f"Group {group_id} is over or unknown, so nothing can become part of it. "
            "Create what it shall wait for in a member that it still waits for."
        )


def insert(
    connection: Connection,
    group_id: int,
    callback_id: int | None,
    group: GroupRow,
    members: Sequence[int],
    *,
    now: datetime | None = None,
) -> None:
    """Insert a group whose members are inserted; one without any calls at once.

    Raises:
        TasksError: the group that it is to be part of is over, or unknown.
    """
    ids = {"id": group_id, "callback_id": callback_id}
    if group.part_of is not None and callback_id is not None:
        extend(connection, group.part_of, [callback_id])
    connection.execute(_INSERT, {**group._asdict(), **ids, "now": now})
    pages = [list(map(int, members[i : i + PAGE])) for i in range(0, len(members), PAGE)]
    if pages:
        connection.execute(
            _ENTER, [{"id": group_id, "no": no, "ids": page} for no, page in enumerate(pages)]
        )


_HOLD = text(f"""
    WITH {locking(f"SELECT p.batch_id FROM {PENDING} p WHERE p.id = ANY(CAST(:ids AS bigint[]))")}
    SELECT id FROM own
""")


def hold(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Lock the groups of these tasks that are not over; return their ids.

    A run that ends locks its group and then its row: who locked the row first would stop it, and
    then wait for it.
    """
    return list(connection.execute(_HOLD, {"ids": list(ids)}).scalars())
