"""Count: members that end are counted in the very statement that moves them.

So whoever ends the last one calls the callback, in the same transaction, and nobody else can: a
group's row is locked while it is counted, and its outcome, which the table computes, is met once.
"""

from __future__ import annotations

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import GROUP, NOW, PENDING, quoted

GOOD = (State.SUCCEEDED, State.SKIPPED)
"""Ends that count as success; all others count as failure."""
ENDS = f"goes_to <> '{State.PENDING}'"
CARRIED = (
    *("name", "queue", "priority", "biz_key", "order_key", "limit_key", "payload", "enabled"),
    *("retry_level", "max_attempts", "retry", "expires_at", "timeout_ms", "hard_timeout_ms"),
    *("order_skips", "fair_key", "more_limit_keys"),
)
"""What a callback's row has, beside its instants and headers."""
_OPEN = "g.outcome IS NULL"
"""What is over counts nobody any more."""


def _of(column: str) -> str:
    return f"(SELECT {column} FROM tally)[array_position((SELECT ids FROM tally), g.id)]"


def called(now: str = NOW) -> str:
    """Return the CTE that inserts the callbacks of ``counted`` groups whose outcome is met.

    It yields them as ``Called`` has them; ``wait_s`` is null for those that are the scan's alone.
    """
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
        WHERE k.given IS NOT NULL
        RETURNING id, queue, CASE WHEN enabled AND fair_key IS NULL
            THEN CAST(extract(epoch FROM due_at - {now}) AS float8) END AS wait_s)
    """


def counting(moved: str, *, succeeds: str = f"goes_to IN ({quoted(*GOOD)})", now: str = NOW) -> str:
    """Return CTEs that count the members among the rows of the CTE ``moved``, and call.

    All of ``moved`` have ended, and their groups are locked. ``succeeds`` tells the good ends.
    """
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
        WHERE g.id = ANY((SELECT ids FROM tally)::bigint[]) AND {_OPEN}
        RETURNING g.*),
    {called(now)}
    """


def locking(source: str) -> str:
    """Return the CTE ``own``: the groups that ``source`` selects, locked, however long it takes.

    Before their members: the holder of a group's lock may want any of them.
    """
    return f"""
    own AS MATERIALIZED (
        SELECT g.id FROM {GROUP} g WHERE g.id = ANY(ARRAY({source})) AND {_OPEN}
        ORDER BY g.id FOR NO KEY UPDATE)
    """


LOCKED = "(SELECT count(*) FROM own) >= 0"
"""The condition, always true, that the groups are locked by now."""


def sparing(source: str) -> str:
    """Return CTEs that leave out of ``source`` those whose group somebody else holds: ``held``.

    Of rows that are locked already, without waiting.
    """
    wanted = f"SELECT batch_id FROM {source} WHERE batch_id IS NOT NULL AND {ENDS}"
    return f"""
    wanted AS MATERIALIZED (SELECT array_agg(w.batch_id) AS ids FROM ({wanted}) AS w),
    own AS MATERIALIZED (
        SELECT g.id FROM {GROUP} g WHERE g.id = ANY((SELECT ids FROM wanted)::bigint[]) AND {_OPEN}
        ORDER BY g.id FOR NO KEY UPDATE SKIP LOCKED),
    busy AS MATERIALIZED (
        SELECT array_agg(g.id) AS ids FROM {GROUP} g
        WHERE g.id = ANY((SELECT ids FROM wanted)::bigint[]) AND {_OPEN}
          AND g.id <> ALL (ARRAY(SELECT id FROM own))),
    held AS NOT MATERIALIZED (
        SELECT * FROM {source}
        WHERE NOT ({ENDS}) OR batch_id = ANY((SELECT ids FROM busy)::bigint[]) IS NOT TRUE)
    """
