"""How new rows are written: as one INSERT, as arrays, as lines of COPY.

Only what differs from a column's default is written at all: most tasks are a name and a payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import compress
from operator import attrgetter
from typing import Any

from tasks_app.domain.tasks.records import KEYS, RowTemplate, TaskRow
from tasks_app.pool.tables import PENDING

_DEFAULTS = {
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
}
"""What the table puts into the columns that are left out."""
_ON_CONFLICT = "ON CONFLICT (name, unique_key) WHERE unique_key IS NOT NULL DO NOTHING"
_LINES = 1_000
"""Of COPY that are sent together: the server reads while we write the next."""


def insertion(row: TaskRow, now: datetime | None) -> tuple[str, Mapping[str, Any]]:
    """Return the INSERT of one row, which returns its id, and its values."""
    payload, *own, terms = row
    keys = tuple([value is not None for value in own])
    sql, constants = _insertion(terms, keys, now)
    return sql, {**constants, "payload": payload, **dict(zip(KEYS, own, strict=True))}


@lru_cache(1024)
def _insertion(
    terms: RowTemplate, keys: tuple[bool, ...], now: datetime | None
) -> tuple[str, Mapping[str, Any]]:
    values = {"name": terms.name} | {
        column: getattr(terms, column)
        for column, default in _DEFAULTS.items()
        if getattr(terms, column) != default
    }
    columns = {column: f"%({column})s" for column in values}
    columns["payload"] = "CAST(%(payload)s AS jsonb)"
    columns |= {key: f"%({key})s" for key in compress(KEYS, keys)}
    columns |= _moments(terms, now)
    sql = f"""
        INSERT INTO {PENDING} ({", ".join(columns)}) VALUES ({", ".join(columns.values())})
        {_ON_CONFLICT if "unique_key" in columns else ""} RETURNING id
    """
    return sql, {
        **values,
        "now": now,
        "run_at": terms.run_at,
        "delay": terms.delay.total_seconds(),
        "hint_wait": terms.hint_wait.total_seconds(),
    }


def _moments(terms: RowTemplate, now: datetime | None) -> dict[str, str]:
    """Return SQL for when the row was made, is due and is scanned, unless all of that is now."""
    instant = "CAST(%(now)s AS timestamptz)" if now else "statement_timestamp()"
    due = "CAST(%(run_at)s AS timestamptz)" if terms.run_at else instant
    if terms.delay:
        due += " + make_interval(secs => CAST(%(delay)s AS double precision))"
    scan = due
    if terms.hint_wait:
        scan += " + make_interval(secs => CAST(%(hint_wait)s AS double precision))"
    columns = {"created_at": instant, "due_at": due, "scan_at": scan}
    return {name: sql for name, sql in columns.items() if sql != "statement_timestamp()"}


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
    "hint_wait": "double precision",
    "schedule_id": "bigint",
    "batch_id": "bigint",
    "order_skips": "boolean",
    "fair_key": "text",
}
INSTANT = "coalesce(CAST(%(now)s AS timestamptz), statement_timestamp())"


def unnested(columns: Mapping[str, str], values: str, alias: str = "") -> str:
    """Return arrays as rows; the names of their values begin with ``values``."""
    alias = alias or values
    arrays = ", ".join(f"CAST(%({values}_{name})s AS {kind}[])" for name, kind in columns.items())
    return f"unnest({arrays}) AS {alias}({', '.join(columns)})"


def inserted(source: str, unique_key: str) -> str:
    """Return the INSERT of what ``source`` yields: rows ``n`` and their terms ``k``."""
    return f"""
    INSERT INTO {PENDING} (id, name, queue, priority, biz_key, unique_key, order_key, limit_key,
        payload, headers, enabled, retry_level, max_attempts, retry, due_at, scan_at, expires_at,
        timeout_ms, hard_timeout_ms, schedule_id, batch_id, order_skips, fair_key, created_at)
    SELECT n.id, k.name, k.queue, k.priority, n.biz_key, {unique_key}, n.order_key, n.limit_key,
        CAST(n.payload AS jsonb), CAST(k.headers AS jsonb), k.enabled, k.retry_level,
        k.max_attempts, k.retry, d.due_at, d.due_at + make_interval(secs => k.hint_wait),
        k.expires_at, k.timeout_ms, k.hard_timeout_ms, k.schedule_id, k.batch_id, k.order_skips,
        k.fair_key, {INSTANT}
    FROM {source}
    CROSS JOIN LATERAL (
        SELECT coalesce(k.run_at, {INSTANT}) + make_interval(secs => k.delay) AS due_at
    ) AS d
    """


_ARRAYS = " JOIN ".join((unnested(OWN, "n"), unnested(SHARED, "k"))) + " USING (kind)"
_MANY = f"""
    {inserted(_ARRAYS, "n.unique_key")}
    ORDER BY k.name COLLATE "C", n.unique_key COLLATE "C", n.id
    {_ON_CONFLICT} RETURNING id
"""


def arrays(
    ids: Sequence[int], rows: Sequence[TaskRow], now: datetime | None
) -> tuple[str, Mapping[str, Any]]:
    """Return one INSERT of many rows, which returns the ids of those whose key was free."""
    return _MANY, values_of(ids, rows, now)


def values_of(
    ids: Sequence[int | None], rows: Sequence[TaskRow], now: datetime | None
) -> dict[str, Any]:
    """Return rows as arrays. The terms of each kind are sent once."""
    kinds = {terms: number for number, terms in enumerate(dict.fromkeys(map(_TERMS, rows)))}
    values: dict[str, Any] = {
        f"k_{name}": [getattr(terms, name) for terms in kinds] for name in SHARED if name != "kind"
    }
    for span in ("k_delay", "k_hint_wait"):
        values[span] = [wait.total_seconds() for wait in values[span]]
    return {
        **values,
        "k_kind": list(kinds.values()),
        "n_id": list(ids),
        "n_payload": [row.payload for row in rows],
        **{f"n_{key}": [getattr(row, key) for row in rows] for key in KEYS},
        "n_kind": [kinds[row.terms] for row in rows],
        "now": now,
    }


_TERMS = attrgetter("terms")
