"""Groups: created with their members, counted as members end, read, and pruned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.errors import TasksError, UniqueKeyTakenError
from tasks_app.domain.groups import Ended, GroupProgress, GroupRow
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.tables import (
    ALL,
    COMPLETED,
    ERROR,
    EXTEND,
    GROUP,
    GROUP_IDS,
    GROUP_OF_ROW,
    NOW,
    PENDING,
    STEP_ENDED,
    STEP_REOPENED,
    TABLE_OF,
    Clock,
    quoted,
)

PAGE = 1_000  # ids of members in one row


def _next(table: str) -> str:
    return f"nextval((SELECT CAST(pg_get_serial_sequence('{table}', 'id') AS regclass)))"


_IDS = text(f"""
    SELECT {_next(GROUP)} AS group_id,
        CASE WHEN CAST(:calls AS boolean) THEN {_next(PENDING)} END AS callback_id""")


def insert_callbacks(now: str = NOW) -> str:
    """Return the CTE that inserts the callbacks of ``counted`` groups that are over by this."""
    # It yields them as ``StartedTask``; ``wait_s`` is null for those that only a scan publishes.
    columns = ", ".join(CARRIED)
    return f"""
    called AS (
        INSERT INTO {PENDING} (id, {columns}, headers, batch_id, due_at, scan_at, created_at)
        SELECT c.callback_id, {", ".join(f"r.{column}" for column in CARRIED)},
            coalesce(r.headers, '{{}}') || jsonb_build_object(
                'group_id', c.id, 'succeeded', c.succeeded, 'failed', c.failed),
            c.part_of, t.due_at, t.due_at, {now}
        FROM counted c
        CROSS JOIN LATERAL (
            SELECT CASE c.outcome WHEN '{State.SUCCEEDED}' THEN c.then_row
                WHEN '{State.FAILED}' THEN c.on_failure END AS given) AS k
        CROSS JOIN LATERAL jsonb_populate_record(CAST(NULL AS {PENDING}), k.given) AS r
        CROSS JOIN LATERAL (
            SELECT coalesce(r.due_at, {now})
                + make_interval(secs => CAST(k.given ->> 'delay' AS float8)) AS due_at) AS t
        WHERE k.given IS NOT NULL AND c.was_open
        RETURNING id, queue, CASE WHEN enabled AND fair_key IS NULL
            THEN CAST(extract(epoch FROM due_at - {now}) AS float8) END AS wait_s)
    """


CARRIED = (
    *("name", "queue", "priority", "biz_key", "order_key", "limit_key", "payload", "enabled"),
    *("retry_level", "max_attempts", "retry", "expires_at", "timeout_ms", "hard_timeout_ms"),
    *("order_skips", "fair_key", "more_limit_keys", "locks", "weight"),
)
"""The columns of a callback's row, without its instants and headers."""
# A producer may not read callbacks, not even its own: so it passes them.
_INSERT = text(f"""
    WITH inserted AS (
        INSERT INTO {GROUP} (id, total, enough, fail_fast, then_row, on_failure, callback_id,
            part_of, created_at, counted_at)
        VALUES (:id, :total, CAST(:enough AS integer), :fail_fast, CAST(:then_row AS jsonb),
            CAST(:on_failure AS jsonb), CAST(:callback_id AS bigint), CAST(:part_of AS bigint),
            {NOW}, {NOW})
        RETURNING id, outcome, succeeded, failed, callback_id, part_of),
    counted AS (
        SELECT i.*, true AS was_open, CAST(:then_row AS jsonb) AS then_row,
            CAST(:on_failure AS jsonb) AS on_failure
        FROM inserted i),
    {insert_callbacks()}
    SELECT id FROM counted""")
_ENTER = text(f"""
    INSERT INTO {GROUP_IDS} (group_id, no, ids) VALUES (:id, :no, CAST(:ids AS bigint[]))""")


def take_group_ids(connection: Connection, group: GroupRow) -> tuple[int, int | None]:
    row = connection.execute(_IDS, {"calls": group.calls}).one()
    return row.group_id, row.callback_id


def extend_group(connection: Connection, group_id: int, members: Sequence[int]) -> None:
    """Add members, which are inserted in this transaction, to a group, and lock it.

    Raises:
        TasksError: the group is over, or unknown.
    """
    more = {"id": group_id, "ids": list(map(int, members))}
    if not connection.execute(text(f"SELECT {EXTEND}(:id, CAST(:ids AS bigint[]))"), more).scalar():
        raise TasksError(
            f"Group {group_id} is over or unknown, so it takes no members. "
            "Add members while a member of the group still waits or runs."
        )


def insert_group(
    connection: Connection,
    group_id: int,
    callback_id: int | None,
    group: GroupRow,
    members: Sequence[int],
) -> None:
    """Insert a group after its members; without members it calls back at once.

    Raises:
        TasksError: the group of which it becomes a part is over, or unknown.
    """
    ids = {"id": group_id, "callback_id": callback_id}
    if group.part_of is not None and callback_id is not None:
        extend_group(connection, group.part_of, [callback_id])
    connection.execute(_INSERT, {**group._asdict(), **ids, "now": None})
    pages = [list(map(int, members[i : i + PAGE])) for i in range(0, len(members), PAGE)]
    if pages:
        connection.execute(
            _ENTER, [{"id": group_id, "no": no, "ids": page} for no, page in enumerate(pages)]
        )


def lock_groups(source: str) -> str:
    """Return the CTE ``own``, which locks the groups of ``source``, and waits for them."""
    # Groups are locked before their members: the holder of a group's lock may need any member.
    return f"""
    own AS MATERIALIZED (
        SELECT g.id, g.outcome IS NULL AS was_open FROM {GROUP} g
        WHERE g.id = ANY(ARRAY({source})) AND {_COUNTS}
        ORDER BY g.id FOR NO KEY UPDATE)
    """


# A group that succeeded is over for good. One that failed counts on: a requeue may reopen it.
_COUNTS = f"g.outcome IS DISTINCT FROM '{State.SUCCEEDED}'"
_LOCK_GROUPS_OF = {
    pool: text(f"""
    WITH {lock_groups(f"SELECT t.batch_id FROM {rows} t WHERE t.id = ANY(CAST(:ids AS bigint[]))")}
    SELECT id FROM own""")
    for pool, rows in TABLE_OF.items()
}


def lock_groups_of(connection: Connection, pool: Pool, ids: Sequence[int]) -> list[int]:
    """Lock the groups that count these tasks; return the groups' ids."""
    # An ending run locks its group and then its row: if we locked the row first, both would wait
    # for each other.
    return list(connection.execute(_LOCK_GROUPS_OF[pool], {"ids": list(ids)}).scalars())


_COLUMNS = """
    g.id, g.total, g.succeeded, g.failed, g.enough, g.fail_fast, g.outcome, g.callback_id,
    g.part_of, g.created_at, g.counted_at, g.flow
"""
_GET = text(f"SELECT {_COLUMNS} FROM {GROUP} g WHERE g.id = :id")
_NEWEST = text(f"""
    SELECT {_COLUMNS} FROM {GROUP} g
    WHERE NOT CAST(:open AS boolean) OR g.outcome IS NULL ORDER BY g.id DESC LIMIT :most""")
_PAGE = text(f"SELECT i.ids FROM {GROUP_IDS} i WHERE i.group_id = :id AND i.no = :no")
_ENDED = text(f"""
    SELECT p.id, p.state, NULL::jsonb AS result, NULL AS error, p.name FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[]))
    UNION ALL
    SELECT c.id, c.state, c.result, c.error, c.name FROM {COMPLETED} c
    WHERE c.id = ANY(CAST(:ids AS bigint[])) AND c.finished_at >= :since
    UNION ALL
    SELECT e.id, e.state, e.result, e.error, e.name FROM {ERROR} e
    WHERE e.id = ANY(CAST(:ids AS bigint[]))""")
NEWEST = 100_000  # groups among which future callbacks are found
_OF_TASK = text(f"""
    WITH task AS MATERIALIZED (
        SELECT {GROUP_OF_ROW} AS batch_id, CASE WHEN t.headers ->> 'group_id' ~ '^[0-9]{{1,18}}$'
            THEN CAST(t.headers ->> 'group_id' AS bigint) END AS told
        FROM {ALL} t WHERE t.id = :id LIMIT 1)
    SELECT {_COLUMNS}, g.callback_id IS NOT DISTINCT FROM :id AS calls
    FROM task k JOIN {GROUP} g ON g.id = ANY(ARRAY[k.batch_id, k.told])
    WHERE g.id = k.batch_id OR g.callback_id = :id""")
_TO_BE = text(f"""
    SELECT {_COLUMNS}, true AS calls
    FROM (SELECT * FROM {GROUP} n ORDER BY n.id DESC LIMIT {NEWEST}) AS g
    WHERE g.callback_id = :id""")


def get_group(connection: Connection, group_id: int) -> GroupProgress | None:
    row = connection.execute(_GET, {"id": group_id}).first()
    return None if row is None else _progress(row)


def newest_groups(
    connection: Connection, most: int, *, only_open: bool = False
) -> list[GroupProgress]:
    rows = connection.execute(_NEWEST, {"most": most, "open": only_open})
    return [_progress(row) for row in rows]


def member_pages(connection: Connection, group_id: int) -> Iterator[list[int]]:
    """Return the ids of members in pages, in the order of their creation."""
    no = 0
    while (page := connection.execute(_PAGE, {"id": group_id, "no": no}).scalar()) is not None:
        yield page
        no += 1


def member_results(connection: Connection, group: GroupProgress) -> Iterator[Ended]:
    """Return the results of members, in the order of their creation."""
    # Deleted members are left out. Partitions older than the group are not read.
    for ids in member_pages(connection, group.id):
        rows = connection.execute(_ENDED, {"ids": ids, "since": group.created_at})
        found = {row.id: Ended(row.id, State(row.state), *row[2:]) for row in rows}
        yield from (found[task_id] for task_id in ids if task_id in found)


class TaskGroups(NamedTuple):
    member_of: GroupProgress | None = None
    callback_of: GroupProgress | None = None  # it called the task, or will


def groups_of(connection: Connection, task_id: int, *, exists: bool = True) -> TaskGroups:
    """Return the groups of a task; a task that does not exist may be a future callback."""
    rows = connection.execute(_OF_TASK if exists else _TO_BE, {"id": task_id}).all()
    found = {row.calls: _progress(row) for row in rows}
    return TaskGroups(found.get(False), found.get(True))


def _progress(row: Any) -> GroupProgress:
    values = row._asdict()
    values.pop("calls", None)
    outcome = values.pop("outcome")
    return GroupProgress(**values, outcome=None if outcome is None else State(outcome))


GOOD = (State.SUCCEEDED, State.SKIPPED)  # ends that count as success; all others count as failure
ENDS = f"goes_to <> '{State.PENDING}'"


def _of(column: str) -> str:
    return f"(SELECT {column} FROM tally)[array_position((SELECT ids FROM tally), g.id)]"


def count_members(moved: str, *, goes_to: str = "goes_to", now: str = NOW) -> str:
    """Return CTEs that count the members among the rows of the CTE ``moved``, and call back."""
    # All of ``moved`` have ended, and their groups are locked. ``goes_to`` is an expression.
    succeeds = f"{goes_to} IN ({quoted(*GOOD)})"
    return f"""
    tally AS MATERIALIZED (
        SELECT array_agg(n.id) AS ids, array_agg(n.succeeded) AS succeeded,
            array_agg(n.failed) AS failed
        FROM (
            SELECT batch_id AS id, count(*) FILTER (WHERE {succeeds}) AS succeeded,
                count(*) FILTER (WHERE NOT {succeeds}) AS failed
            FROM {moved} WHERE batch_id IS NOT NULL GROUP BY batch_id) AS n),
    counted AS (
        UPDATE {GROUP} g
        SET succeeded = g.succeeded + {_of("succeeded")}, failed = g.failed + {_of("failed")},
            counted_at = {now}
        WHERE g.id = ANY((SELECT ids FROM tally)::bigint[]) AND {_COUNTS}
        RETURNING g.*, g.id = ANY(
            (SELECT array_agg(o.id) FROM own o WHERE o.was_open)::bigint[]) AS was_open),
    {insert_callbacks(now)}
    """


def start_followers(
    moved: str,
    *,
    goes_to: str = "goes_to",
    result: str = "result",
    before: str = "0",
    now: str = NOW,
) -> str:
    """Return the CTE ``started`` of callbacks and steps that are due, as ``StartedTask``.

    It releases the steps when it is read.
    """
    # ``goes_to`` and ``result`` are expressions on the rows of ``moved``; ``before`` is a number
    # that is known once all rows have moved: ends of steps may change rows that move, too.
    return f"""
    started AS MATERIALIZED (
        SELECT id, queue, wait_s FROM called WHERE wait_s IS NOT NULL
        UNION ALL
        SELECT r.id, r.queue, r.wait_s
        FROM {moved} m CROSS JOIN LATERAL {STEP_ENDED}(m.id, {goes_to}, {result}, {now}) AS r
        WHERE r.wait_s IS NOT NULL AND CASE WHEN m.batch_id = ANY(
            (SELECT array_agg(c.id) FROM counted c WHERE c.flow IS NOT NULL)::bigint[])
            THEN {before} >= 0 END)
    """


LOCKED = "(SELECT count(*) FROM own) >= 0"  # always true: it locks the groups before what follows


def skip_locked_groups(which: str = ENDS) -> str:
    """Return CTEs; ``held`` has the rows of ``locked`` whose group no other transaction locks.

    ``which``: the condition on rows whose group is locked.
    """
    return f"""
    wanted AS MATERIALIZED (SELECT array_agg(w.batch_id) AS ids FROM (
        SELECT batch_id FROM locked WHERE batch_id IS NOT NULL AND {which}) AS w),
    own AS MATERIALIZED (
        SELECT g.id, g.outcome IS NULL AS was_open FROM {GROUP} g
        WHERE g.id = ANY((SELECT ids FROM wanted)::bigint[]) AND {_COUNTS}
        ORDER BY g.id FOR NO KEY UPDATE SKIP LOCKED),
    busy AS MATERIALIZED (
        SELECT array_agg(g.id) AS ids FROM {GROUP} g
        WHERE g.id = ANY((SELECT ids FROM wanted)::bigint[]) AND {_COUNTS}
          AND g.id <> ALL (ARRAY(SELECT id FROM own))),
    held AS NOT MATERIALIZED (
        SELECT * FROM locked
        WHERE NOT ({which}) OR batch_id = ANY((SELECT ids FROM busy)::bigint[]) IS NOT TRUE)
    """


_TAKE_BACK = text(f"""
    WITH before AS MATERIALIZED (
        SELECT g.id, g.outcome FROM {GROUP} g WHERE g.id = :id AND {_COUNTS} FOR NO KEY UPDATE)
    UPDATE {GROUP} g
    SET succeeded = g.succeeded - CASE WHEN :succeeded THEN 1 ELSE 0 END,
        failed = g.failed - CASE WHEN :succeeded THEN 0 ELSE 1 END
    WHERE g.id = ANY(ARRAY(SELECT id FROM before))
    RETURNING g.flow, (SELECT outcome FROM before) IS NOT NULL AND g.outcome IS NULL AS reopened
    """)
_STEP_REOPENED = text(f"SELECT {STEP_REOPENED}(:id)")
_REOPEN = text(f"""
    UPDATE {GROUP} g SET callback_id = {_next(PENDING)}
    WHERE g.id = :id AND g.callback_id IS NOT NULL RETURNING g.callback_id, g.part_of""")
_WAIT_AGAIN = text(f"""
    WITH before AS MATERIALIZED (
        SELECT g.id, g.outcome FROM {GROUP} g WHERE g.id = :id AND {_COUNTS} FOR NO KEY UPDATE),
    entered AS (
        INSERT INTO {GROUP_IDS} (group_id, no, ids)
        SELECT b.id, (SELECT coalesce(max(i.no) + 1, 0) FROM {GROUP_IDS} i WHERE i.group_id = b.id),
            ARRAY[CAST(:callback AS bigint)]
        FROM before b)
    UPDATE {GROUP} g SET total = g.total + 1 WHERE g.id = ANY(ARRAY(SELECT id FROM before))
    RETURNING (SELECT outcome FROM before) IS NOT NULL AND g.outcome IS NULL AS reopened""")


_KEY_TAKEN = text(f"""
    SELECT g.flow, g.flow_key, o.id FROM {GROUP} g
    CROSS JOIN LATERAL (
        SELECT o.id FROM {GROUP} o
        WHERE o.flow = g.flow AND o.flow_key = g.flow_key AND o.outcome IS NULL OFFSET 0) AS o
    WHERE g.id = :id AND g.outcome = '{State.FAILED}'""")


def check_key_is_free(connection: Connection, group_id: int) -> None:
    """Raise UniqueKeyTakenError if the group is a flow that cannot be opened again."""
    taken = connection.execute(_KEY_TAKEN, {"id": group_id}).first()
    if taken is not None:
        raise flow_key_taken(taken.flow, taken.flow_key, taken.id)


def flow_key_taken(name: str, key: str, holder: int) -> UniqueKeyTakenError:
    return UniqueKeyTakenError(name, key, holder, of="key", by="flow")


def take_back(connection: Connection, group_id: int, task_id: int, state: State) -> None:
    """Count a member, which ended in ``state`` and waits again, as not ended.

    It waits for the group's row. A group that failed is open again once all its failures are taken
    back, or, without ``fail_fast``, one of them. Its next end inserts a callback with a new id.
    """
    values = {"id": group_id, "succeeded": state in GOOD}
    row = connection.execute(_TAKE_BACK, values).first()
    if row is None:  # it has succeeded, or was forgotten
        return
    if row.flow is not None:
        connection.execute(_STEP_REOPENED, {"id": task_id})
    reopened = row.reopened
    while reopened:
        row = connection.execute(_REOPEN, {"id": group_id}).first()
        if row is None or row.part_of is None:
            return
        group_id = row.part_of  # it waits for the new callback beside the old one
        values = {"id": group_id, "callback": row.callback_id}
        reopened = connection.execute(_WAIT_AGAIN, values).scalar()


_PRUNE = text(f"""
    WITH old AS MATERIALIZED (
        SELECT g.id FROM {GROUP} g
        WHERE g.outcome IS NOT NULL AND g.counted_at < {NOW} - CAST(:older AS interval)
        ORDER BY g.id LIMIT :most FOR UPDATE SKIP LOCKED)
    DELETE FROM {GROUP} g WHERE g.id = ANY(ARRAY(SELECT id FROM old)) RETURNING g.id""")


def prune_groups(connection: Connection, older: timedelta, most: int, *, now: Clock = None) -> int:
    """Delete groups that ended this long ago, without waiting for locks; return how many."""
    return len(connection.execute(_PRUNE, {"older": older, "most": most, "now": now}).all())
