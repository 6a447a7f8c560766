"""Fair queues: their weights, and their waiting tasks by key and priority.

A queue is fair if it has a row. An index finds its tasks with a key, a few of each line, however
many wait.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.flow_control.admission import FairQueueKey
from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.conditions import is_free, queue_runs
from tasks_app.pool.tables import FAIR, NOW, PENDING, UNGATED, Clock

MOST_LINES = 1_000  # read in one pass; the next pass goes on behind the last key

_QUEUES = text(f"SELECT queue, weights FROM {FAIR}")
_SET = text(f"""
    INSERT INTO {FAIR} (queue, weights) VALUES (:queue, CAST(:weights AS jsonb))
    ON CONFLICT (queue) DO UPDATE SET weights = excluded.weights, changed_by = current_user,
        changed_at = statement_timestamp()""")
_UNSET = text(f"DELETE FROM {FAIR} WHERE queue = :queue RETURNING queue")

# As in the index. The lanes of a queue are between its name with a colon and with a semicolon.
_LANE = """(p.queue || ':' || p.fair_key) COLLATE "C\""""
_KEYED = f"p.state <> '{State.RUNNING}' AND p.fair_key IS NOT NULL"  # exactly as in the index
_LINES = text(f"""
    WITH RECURSIVE line AS (
        (SELECT {_LANE} AS lane, p.priority FROM {PENDING} p
         WHERE {_KEYED} AND {_LANE} > CAST(:queue AS text) || ':' || CAST(:after AS text)
           AND {_LANE} < CAST(:queue AS text) || ';'
         ORDER BY {_LANE}, p.priority LIMIT 1)
        UNION ALL
        SELECT n.* FROM line l CROSS JOIN LATERAL (
            SELECT {_LANE} AS lane, p.priority FROM {PENDING} p
            WHERE {_KEYED} AND ({_LANE}, p.priority) > (l.lane, l.priority)
              AND {_LANE} < CAST(:queue AS text) || ';'
            ORDER BY {_LANE}, p.priority LIMIT 1) AS n)
    SELECT substr(lane, length(CAST(:queue AS text)) + 2) AS key, priority FROM line LIMIT :most""")
_WAITING = text(f"""
    SELECT k.key, (SELECT count(*) FROM (
        SELECT FROM {PENDING} p
        WHERE {_KEYED} AND {_LANE} = CAST(:queue AS text) || ':' || k.key LIMIT :most) AS p)
        AS number
    FROM unnest(CAST(:keys AS text[])) AS k(key)""")
_ROW = """p.id, p.name, p.scan_at, p.enabled, p.expires_at, p.queue, p.order_key, p.limit_key,
    p.locks, p.parked_kind"""
_DUE = f"""
    p.scan_at <= {NOW} AND (CAST(:names AS text[]) IS NULL OR p.name = ANY(CAST(:names AS text[])))
    AND (
        p.id <> ALL (CAST(:out AS bigint[]))
        OR p.scan_at > to_timestamp(
            (CAST(:out_at AS float8[]))[array_position(CAST(:out AS bigint[]), p.id)]))
"""


def _heads(locking: str) -> TextClause:
    return text(f"""
    SELECT l.key, l.priority, p.id, p.name, date_part('epoch', p.scan_at) AS scan_at,
        NOT p.enabled OR coalesce(p.expires_at <= {NOW}, false) AS barred,
        NOT ({UNGATED}) AS gated, NOT {is_free()} AS held
    FROM unnest(CAST(:keys AS text[]), CAST(:priorities AS smallint[]), CAST(:numbers AS int[]))
        AS l(key, priority, number)
    CROSS JOIN LATERAL (
        SELECT k.* FROM (
            SELECT {_ROW}, p.fair_key FROM {PENDING} p
            WHERE l.key <> '' AND {_KEYED} AND {_LANE} = CAST(:queue AS text) || ':' || l.key
              AND p.priority = l.priority
              AND {_DUE}
            ORDER BY p.scan_at, p.id LIMIT l.number {locking}) AS k
        UNION ALL
        SELECT n.* FROM (
            SELECT {_ROW}, p.fair_key FROM {PENDING} p
            WHERE l.key = '' AND p.queue = :queue AND p.state = '{State.PENDING}'
              AND p.priority = l.priority AND {_DUE}
            ORDER BY p.scan_at, p.id LIMIT l.number {locking}) AS n
        WHERE n.fair_key IS NULL) AS p
    WHERE {queue_runs(":queue")}
    ORDER BY l.key, l.priority, p.scan_at, p.id""")


_HEADS, _HEADS_LOCKED = _heads(""), _heads("FOR NO KEY UPDATE OF p SKIP LOCKED")


@dataclass(frozen=True, slots=True)
class Head:
    id: int
    name: str
    scan_at: float  # seconds since 1970
    barred: bool  # disabled or expired; to be swept
    gated: bool  # behind gates
    held: bool  # held by a breaker


def fair_queues(connection: Connection) -> dict[str, dict[str, float]]:
    """Return the weights of the keys of each fair queue; other keys have 1."""
    return {row.queue: row.weights for row in connection.execute(_QUEUES)}


def set_fair(connection: Connection, queue: str, weights: Mapping[str, float]) -> None:
    connection.execute(_SET, {"queue": queue, "weights": json.dumps(dict(weights))})


def unset_fair(connection: Connection, queue: str) -> bool:
    """Order a queue's tasks by priority and age again; False: they are already."""
    return connection.execute(_UNSET, {"queue": queue}).first() is not None


def fair_lines(
    connection: Connection, queue: str, after: str = ""
) -> tuple[list[FairQueueKey], str]:
    """Return the lines of keys after ``after``, and where to go on; empty: at the beginning."""
    # Their tasks may not be due yet. The ten lines without a key are always included.
    values = {"queue": queue, "after": after, "most": MOST_LINES}
    found = [FairQueueKey(row.key, row.priority) for row in connection.execute(_LINES, values)]
    cut = found[-1].key if len(found) == MOST_LINES else ""
    if cut and found[0].key != cut:  # the last key's lines may be cut in two
        found = [line for line in found if line.key != cut]
        cut = found[-1].key
    return [*(FairQueueKey("", priority) for priority in range(10)), *found], cut


def count_waiting(
    connection: Connection, queue: str, keys: Sequence[str], most: int
) -> dict[str, int]:
    """Return how many tasks of each key wait, due or not, up to ``most``."""
    values = {"queue": queue, "keys": list(keys), "most": most}
    return {row.key: row.number for row in connection.execute(_WAITING, values)}


def first_of_lines(
    connection: Connection,
    queue: str,
    wanted: Mapping[FairQueueKey, int],
    out: Mapping[int, float],
    *,
    names: Sequence[str] | None = None,
    lock: bool = False,
    now: Clock = None,
) -> dict[FairQueueKey, list[Head]]:
    """Return up to ``wanted`` due tasks of each line, oldest first; only of ``names``, if given."""
    # With ``lock`` the rows stay locked until the transaction ends, and locked rows are left out.
    # ``out`` has the ids that are in messages, with the instant of each; a task that came back
    # into the pool since then counts as free.
    values = {
        "queue": queue,
        "keys": [line.key for line in wanted],
        "priorities": [line.priority for line in wanted],
        "numbers": list(wanted.values()),
        "out": list(out),
        "out_at": list(out.values()),
        "names": None if names is None else list(names),
        "now": now,
    }
    found: dict[FairQueueKey, list[Head]] = {}
    for row in connection.execute(_HEADS_LOCKED if lock else _HEADS, values):
        head = Head(row.id, row.name, row.scan_at, row.barred, row.gated, row.held)
        found.setdefault(FairQueueKey(row.key, row.priority), []).append(head)
    return found
