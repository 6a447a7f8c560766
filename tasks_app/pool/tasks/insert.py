"""Writing of many new rows: ids, arrays and order for INSERT, lines of text for COPY."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any
from zlib import crc32

from tasks_app.domain.tasks.records import KEYS, RowTemplate, TaskRow
from tasks_app.pool.connection.execute import Statement, Statements
from tasks_app.pool.tables import PENDING, SCHEMA, Clock

DEFAULTS = {
    "queue": "default",
    "priority": 5,
    "headers": None,
    "enabled": True,
    "retry_level": 0,
    "max_attempts": None,
    "retry": None,
    "expires_at": None,
    "timeout_ms": None,
    "hard_timeout_ms": None,
    "schedule_id": None,
    "batch_id": None,
    "order_skips": None,
    "fair_key": None,
    "more_limit_keys": None,
    "locks": None,
    "weight": None,
}
"""Defaults of the table's columns."""
ON_CONFLICT = "ON CONFLICT (name, unique_key) WHERE unique_key IS NOT NULL DO NOTHING"
LINES = 1_000  # of COPY that are sent together: the server reads while we write the next
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
IDS = f"""
    SELECT min(n.id), max(n.id),
        CASE WHEN max(n.id) - min(n.id) >= count(*) THEN array_agg(n.id) END,
        CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS bigint)
    FROM (
        SELECT nextval((SELECT CAST(pg_get_serial_sequence('{PENDING}', 'id') AS regclass))) AS id
        FROM generate_series(1, %(number)s)
    ) AS n
"""


def take_ids(number: int) -> Statements[tuple[Sequence[int], datetime]]:
    """Take so many ids, rising; consecutive unless other producers took some, too."""
    (first, last, scattered, clock_us), *_ = yield Statement(IDS, {"number": number})
    clock = _EPOCH + timedelta(microseconds=clock_us)  # a session's DateStyle may be any
    return scattered or range(first, last + 1), clock


_TURN = """
    SELECT pg_advisory_xact_lock(k.hash) FROM (
        SELECT DISTINCT hashtextextended(k.order_key, %(seed)s) AS hash
        FROM unnest(CAST(%(order_keys)s AS text[])) AS k(order_key) ORDER BY 1) AS k
"""


def in_turn(rows: Sequence[TaskRow]) -> Statement:
    """Wait, before ids are taken, for transactions that insert tasks of these order keys."""
    # Advisory locks, not rows: no claim waits for a producer. A call locks all its keys in one
    # order; several calls in a transaction should do so, too.
    seed = 7_246_101 + crc32((SCHEMA or "").encode())
    return Statement(_TURN, {"seed": seed, "order_keys": list({row.order_key for row in rows})})


OWN = {"id": "bigint", "payload": "text", **dict.fromkeys(KEYS, "text"), "kind": "int"}
SHARED = {
    "kind": "int",
    "name": "text",
    "queue": "text",
    "priority": "smallint",
    "headers": "text",
    "enabled": "boolean",
    "retry_level": "smallint",
    "max_attempts": "smallint",
    "retry": "text",
    "run_at": "timestamptz",
    "delay": "double precision",
    "expires_at": "timestamptz",
    "timeout_ms": "integer",
    "hard_timeout_ms": "integer",
    "schedule_id": "bigint",
    "batch_id": "bigint",
    "order_skips": "boolean",
    "fair_key": "text",
    "more_limit_keys": "text",
    "locks": "text",
    "weight": "integer",
}
INSTANT = "coalesce(CAST(%(now)s AS timestamptz), statement_timestamp())"


def unnested(columns: Mapping[str, str], values: str, alias: str = "") -> str:
    """Return arrays as rows; the names of their values begin with ``values``."""
    arrays = ", ".join(f"CAST(%({values}_{name})s AS {kind}[])" for name, kind in columns.items())
    return f"unnest({arrays}) AS {alias or values}({', '.join(columns)})"


def inserted(source: str, unique_key: str) -> str:
    """Return the INSERT of the rows ``n`` and their terms ``k`` of ``source``."""
    return f"""
    INSERT INTO {PENDING} (id, name, queue, priority, biz_key, unique_key, order_key, limit_key,
        payload, headers, enabled, retry_level, max_attempts, retry, due_at, scan_at, expires_at,
        timeout_ms, hard_timeout_ms, schedule_id, batch_id, order_skips, fair_key,
        more_limit_keys, locks, weight, created_at)
    SELECT n.id, k.name, k.queue, k.priority, n.biz_key, {unique_key}, n.order_key, n.limit_key,
        CAST(n.payload AS jsonb), CAST(k.headers AS jsonb), k.enabled, k.retry_level,
        k.max_attempts, k.retry, d.due_at, d.due_at,
        k.expires_at, k.timeout_ms, k.hard_timeout_ms, k.schedule_id, k.batch_id, k.order_skips,
        k.fair_key, CAST(k.more_limit_keys AS text[]), CAST(k.locks AS jsonb), k.weight, {INSTANT}
    FROM {source}
    CROSS JOIN LATERAL (
        SELECT coalesce(k.run_at, {INSTANT}) + make_interval(secs => k.delay) AS due_at
    ) AS d
    """


_ARRAYS = " JOIN ".join((unnested(OWN, "n"), unnested(SHARED, "k"))) + " USING (kind)"
_MANY = f"""
    {inserted(_ARRAYS, "n.unique_key")}
    ORDER BY k.name COLLATE "C", n.unique_key COLLATE "C", n.id
    {ON_CONFLICT} RETURNING id
"""


def insert_many(ids: Sequence[int | None], rows: Sequence[TaskRow], now: Clock) -> Statement:
    """Insert the rows whose key is free; yields their ids."""
    return Statement(_MANY, values_of(ids, rows, now))


def values_of(ids: Sequence[int | None], rows: Sequence[TaskRow], now: Clock) -> dict[str, Any]:
    """Return rows as arrays. Equal terms are sent once."""
    kinds = {terms: number for number, terms in enumerate(dict.fromkeys(map(TERMS, rows)))}
    values: dict[str, Any] = {
        f"k_{name}": [getattr(terms, name) for terms in kinds] for name in SHARED if name != "kind"
    }
    values["k_delay"] = [delay.total_seconds() for delay in values["k_delay"]]
    return {
        **values,
        "k_kind": list(kinds.values()),
        "n_id": list(ids),
        "n_payload": [row.payload for row in rows],
        **{f"n_{key}": [getattr(row, key) for row in rows] for key in KEYS},
        "n_kind": [kinds[row.terms] for row in rows],
        "now": now,
    }


TERMS = attrgetter("terms")


def copy_of(
    ids: Sequence[int], rows: Sequence[TaskRow], clock: datetime, now: Clock = None
) -> tuple[str, Iterator[str]]:
    """Return a COPY of rows without a unique_key, and its text; ``clock`` is the server's time."""
    # The terms of consecutive rows with the same terms become text once.
    runs = [(terms, list(run)) for terms, run in groupby(rows, TERMS)]
    kinds = dict.fromkeys(terms for terms, _ in runs)
    columns = [
        column
        for column, default in DEFAULTS.items()
        if any(getattr(terms, column) != default for terms in kinds)
    ]
    moments: dict[RowTemplate, tuple[datetime, ...]] = {}
    for terms in kinds:
        due = (terms.run_at or now or clock).astimezone(UTC) + terms.delay  # a day has 24 hours
        moments[terms] = (now or clock, due, due)
    if all(each == clock for three in moments.values() for each in three):
        moments = dict.fromkeys(kinds, ())
    ends = {}
    for terms in kinds:
        shared = terms.name, *(getattr(terms, column) for column in columns), *moments[terms]
        ends[terms] = "\t".join(map(_field, shared)) + "\n"
    keys = [key for key in KEYS if any(map(attrgetter(key), rows))]
    written = ["id", "idempotency_key", "payload", *keys, "name", *columns]
    written += ("created_at", "due_at", "scan_at") if any(moments.values()) else ()
    sql = f"COPY {PENDING} ({', '.join(written)}) FROM STDIN"
    return sql, _pieces(iter(ids), [(ends[terms], run) for terms, run in runs], keys)


def _pieces(
    ids: Iterator[int], runs: Iterable[tuple[str, Sequence[TaskRow]]], keys: Sequence[str]
) -> Iterator[str]:
    """Return lines; JSON text has no tabs or line ends, but backslashes."""
    for end, run in runs:
        for start in range(0, len(run), LINES):
            part = run[start : start + LINES]
            payloads = [row[0].replace("\\", r"\\") for row in part]
            for key in keys:
                payloads = [
                    f"{text}\t{_field(getattr(row, key))}"
                    for text, row in zip(payloads, part, strict=True)
                ]
            lines = zip(payloads, ids, _uuids(len(part)), strict=False)  # the ids go on
            yield "".join([f"{i}\t{uuid}\t{text}\t{end}" for text, i, uuid in lines])


def _uuids(number: int) -> list[str]:
    """Return random UUIDs, version 4. The server would make a system call for each."""
    digits = os.urandom(16 * number).hex()
    return [
        f"{digits[i : i + 12]}4{digits[i + 13 : i + 16]}a{digits[i + 17 : i + 32]}"
        for i in range(0, len(digits), 32)
    ]


def _field(value: object) -> str:
    match value:
        case None:
            return r"\N"
        case bool():
            return "t" if value else "f"
        case datetime():
            return value.isoformat()
        case _:
            return str(value).translate(_ESCAPES)


_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
