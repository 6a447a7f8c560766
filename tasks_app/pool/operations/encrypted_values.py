"""Encrypted values in all places: counted by key, read in pages, replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.encryption import TOKEN_BEGIN, TOKEN_MARK, Token, parse_token, token_in
from tasks_app.domain.flow_control.limits import WaitingKind
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import (
    ALL,
    ATTEMPT,
    COMPLETED,
    ERROR,
    FLOW_STEP,
    GROUP,
    LARGE_VALUE,
    PENDING,
    STEP,
)


class SecretColumn(NamedTuple):
    """A column that may hold encrypted values; the fields but ``name`` are SQL."""

    name: str  # the table's and the column's, without the schema
    table: str
    kind: str  # of its tokens: payload, result or error
    id: str
    value: str  # the column's value as text; tokens of text columns stand alone
    task: str  # the task's name
    set: str  # the assignment of ``g.new``
    most: int = 1_000  # rows of a page, at most


def _json(pool: str, column: str) -> SecretColumn:
    name = f"{pool.rpartition('.')[2]}.{column}"
    new = f"{column} = CAST(g.new AS jsonb)"
    return SecretColumn(name, pool, column, "t.id", f"CAST(t.{column} AS text)", "t.name", new)


def _callback(column: str) -> SecretColumn:
    value, name = f"CAST(t.{column} -> 'payload' AS text)", f"t.{column} ->> 'name'"
    new = f"{column} = jsonb_set(t.{column}, '{{payload}}', CAST(g.new AS jsonb))"
    return SecretColumn(f"task_group.{column}", GROUP, "payload", "t.id", value, name, new)


_NAME = f"(SELECT a.name FROM {ALL} a WHERE a.id = t.task_id LIMIT 1)"


def _large(kind: str) -> SecretColumn:
    value = f"CASE WHEN t.kind = '{kind}' THEN t.content END"
    name, new = f"task_large_value.content ({kind})", "content = g.new"
    return SecretColumn(name, LARGE_VALUE, kind, "t.task_id", value, _NAME, new, most=1)


# In the order of a task's life: a value that moves on meanwhile is found again.
PLACES = (
    _callback("then_row"),
    _callback("on_failure"),
    *(_json(pool, "payload") for pool in (PENDING, ERROR, COMPLETED)),
    _json(COMPLETED, "result"),
    SecretColumn(
        *("task_flow_step.result", FLOW_STEP, "result", "t.task_id"),
        *("CAST(t.result AS text)", "t.task_name", "result = CAST(g.new AS jsonb)"),
    ),
    SecretColumn(
        *("task_step.result", STEP, "result", "t.task_id"),
        *("CAST(t.result AS text)", _NAME, "result = CAST(g.new AS jsonb)"),
    ),
    SecretColumn(
        *("task_attempt.encrypted_message", ATTEMPT, "error", "t.task_id"),
        *("t.encrypted_message", _NAME, "encrypted_message = g.new"),
    ),
    *map(_large, ("payload", "result")),
)


class Stored(NamedTuple):
    id: int
    task: str | None  # the task's name; None: it was removed
    value: str
    token: Token


class ValuePage(NamedTuple):
    """The encrypted values of the next rows of a place."""

    after: int | None  # where the next page begins; None: this was the last
    found: list[Stored]


def _encrypted(place: SecretColumn) -> str:
    token = "v%.%.%" if place.kind == "error" else f'{TOKEN_BEGIN} "v%.%.%"}}'
    return f"{place.value} LIKE '{token}'"


def read(connection: Connection, place: SecretColumn, after: int, most: int) -> ValuePage:
    query = text(f"""
        SELECT {place.id} AS id,
            CASE WHEN {_encrypted(place)} THEN {place.task} END AS task,
            CASE WHEN {_encrypted(place)} THEN {place.value} END AS value
        FROM {place.table} t WHERE {place.id} > :after
        ORDER BY {place.id} FETCH FIRST (CAST(:most AS bigint)) ROWS WITH TIES
    """)
    rows = connection.execute(query, {"after": after, "most": most}).all()
    found = [
        Stored(row.id, row.task, row.value, token)
        for row in rows
        if row.value is not None and (token := _token_of(place, row.value)) is not None
    ]
    return ValuePage(rows[-1].id if len(rows) >= most else None, found)


def _token_of(place: SecretColumn, value: str) -> Token | None:
    return parse_token(value) if place.kind == "error" else token_in(value)


def replace(
    connection: Connection, place: SecretColumn, changes: Sequence[tuple[Stored, str]]
) -> int:
    """Replace values that are still the same, in unlocked rows; return how many were."""
    values: dict[str, Any] = {
        "ids": [old.id for old, _ in changes],
        "olds": [old.value for old, _ in changes],
        "news": [new for _, new in changes],
    }
    statement = text(f"""
        WITH given AS MATERIALIZED (
            SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:olds AS text[]),
                CAST(:news AS text[])) AS g(id, old, new)),
        free AS MATERIALIZED (
            SELECT {place.id} AS id FROM {place.table} t
            WHERE {place.id} = ANY(CAST(:ids AS bigint[]))
            ORDER BY {place.id} FOR NO KEY UPDATE SKIP LOCKED)
        UPDATE {place.table} t SET {place.set} FROM given g
        WHERE {place.id} = g.id AND {place.value} = g.old
          AND {place.id} = ANY(ARRAY(SELECT f.id FROM free f))
    """)
    return connection.execute(statement, values).rowcount


def count(connection: Connection) -> list[tuple[str, str, int]]:
    """Return (place, key's id, number of its values); reads all rows."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    found: list[tuple[str, str, int]] = []
    for place in PLACES:
        token = "s.value" if place.kind == "error" else f"CAST(s.value AS jsonb) ->> '{TOKEN_MARK}'"
        query = text(f"""
            SELECT split_part({token}, '.', 2) AS key, count(*) AS number
            FROM (SELECT {place.value} AS value FROM {place.table} t
                  WHERE {_encrypted(place)}) AS s
            GROUP BY 1 ORDER BY 1
        """)
        rows = connection.execute(query)
        found += [(place.name, row.key, row.number) for row in rows]
    return found


def keys_in_use(connection: Connection, most: int) -> dict[str, str]:
    """Return keys of the ``most`` oldest and newest rows, each with a place; skips large values."""
    found: dict[str, str] = {}
    for place in PLACES:
        if place.most == 1:
            continue
        ends = " UNION ALL ".join(
            f"(SELECT {place.value} AS value FROM {place.table} t ORDER BY {place.id} {way} "
            "LIMIT :most)"
            for way in ("ASC", "DESC")
        )
        rows = connection.execute(text(f"SELECT e.value FROM ({ends}) AS e"), {"most": most})
        for value in {value for value in rows.scalars() if value is not None}:
            token = _token_of(place, value)
            if token is not None:
                found.setdefault(token.key_id, place.name)
    return found


MOST_WAITING = 10_000


def waiting_for_keys(connection: Connection) -> dict[str, int]:
    """Return how many of up to MOST_WAITING tasks are parked for which key that a worker lacks."""
    query = text(f"""
        SELECT w.key, count(*) AS number FROM (
            SELECT p.parked_for AS key FROM {PENDING} p
            WHERE p.state = '{State.PENDING}' AND p.parked_kind = '{WaitingKind.ENCRYPTION}'
            LIMIT {MOST_WAITING}) AS w
        GROUP BY w.key ORDER BY w.key
    """)
    return {row.key: row.number for row in connection.execute(query)}
