"""Rows of a selection, some thousand of a pool at a time, in the order of their ids.

``look`` reads a bounded number of rows and waits for no lock; ``lock`` checks them again, and
leaves out rows that do not fit any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.operations import Selection
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.fragments.conditions import is_held
from tasks_app.pool.tables import ATTEMPT, COMPLETED, ERROR, GROUP_IDS, PENDING, TABLE_OF

ROWS_PER_PAGE = 2_000  # rows per statement: some milliseconds

# Of an unfinished task: its history has it.
_LAST_ERROR = f"""(
    SELECT a.kind || coalesce(': ' || nullif(a.message, ''), '') FROM {ATTEMPT} a
    WHERE a.task_id = p.id ORDER BY a.attempt DESC, a.ended_at DESC LIMIT 1)"""


class SelectionLimits(NamedTuple):
    at: datetime  # ages count from here; tasks that finish later do not belong to it
    until: int  # nor do higher ids


@dataclass(frozen=True, slots=True)
class SelectedTask:
    id: int
    name: str
    state: State
    payload: str | None = None  # JSON text, if the caller wants it


def limits_of_now(connection: Connection) -> SelectionLimits:
    query = text(f"""
        SELECT statement_timestamp() AS at, (SELECT max(id) FROM {PENDING}) AS waiting,
            (SELECT max(id) FROM {COMPLETED}) AS completed, (SELECT max(id) FROM {ERROR}) AS failed
    """)
    row = connection.execute(query).one()
    return SelectionLimits(row.at, max(row.waiting or 0, row.completed or 0, row.failed or 0))


def read_page(
    connection: Connection, selection: Selection, end: SelectionLimits, after: int, most: int
) -> tuple[list[SelectedTask], int | None]:
    """Return up to ``most`` rows above the id ``after``, and the next ``after``; None: no more."""
    query = _look(selection.pool, tuple(selection.given()))
    values = {**_values(selection, end), "after": after, "most": ROWS_PER_PAGE}
    rows = connection.execute(query, values).all()
    found = [SelectedTask(row.id, row.name, State(row.state)) for row in rows if row.fits]
    if len(found) > most:
        return found[:most], found[most - 1].id
    return found, rows[-1].id if len(rows) == ROWS_PER_PAGE else None


def lock(
    connection: Connection,
    selection: Selection,
    end: SelectionLimits,
    ids: list[int],
    *,
    payloads: bool,
) -> list[SelectedTask]:
    """Lock those of ``ids`` that still fit, until the transaction ends; waits for them."""
    return _read(connection, selection, end, ids, "FOR UPDATE OF p", payloads=payloads)


def read(
    connection: Connection, selection: Selection, end: SelectionLimits, ids: list[int]
) -> list[SelectedTask]:
    """Return those of ``ids`` that still fit, with their payloads."""
    return _read(connection, selection, end, ids, "", payloads=True)


def _read(
    connection: Connection,
    selection: Selection,
    end: SelectionLimits,
    ids: list[int],
    locking: str,
    *,
    payloads: bool,
) -> list[SelectedTask]:
    pool, payload = selection.pool, "p.payload::text" if payloads else "NULL"
    query = text(f"""
        SELECT p.id, p.name, p.state, {payload} AS payload FROM {TABLE_OF[pool]} p
        WHERE p.id = ANY(CAST(:chosen AS bigint[])) AND {_fits(pool, tuple(selection.given()))}
        ORDER BY p.id {locking}
    """)
    rows = connection.execute(query, {**_values(selection, end), "chosen": ids})
    return [SelectedTask(row.id, row.name, State(row.state), row.payload) for row in rows]


@lru_cache(64)
def _look(pool: Pool, given: tuple[str, ...]) -> TextClause:
    """By a business key, group or ids, read only theirs: a subquery finds their ids once."""
    table = TABLE_OF[pool]
    only = {
        "biz_key": f"""
          AND p.id = ANY(ARRAY(SELECT b.id FROM {table} b WHERE b.biz_key = :biz_key))""",
        "group": f"""
          AND p.id = ANY(ARRAY(
            SELECT unnest(g.ids) FROM {GROUP_IDS} g WHERE g.group_id = :group))""",
        "ids": "AND p.id = ANY(CAST(:ids AS bigint[]))",
        "fingerprint": f"""
          AND p.id = ANY(ARRAY(
            SELECT b.id FROM {table} b WHERE b.fingerprint = decode(:fingerprint, 'hex')))""",
    }
    return text(f"""
        SELECT p.id, p.name, p.state, coalesce({_fits(pool, given)}, false) AS fits FROM {table} p
        WHERE p.id > :after AND p.id <= :until {" ".join(only.get(word, "") for word in given)}
        ORDER BY p.id LIMIT :most
    """)


def _fits(pool: Pool, given: tuple[str, ...]) -> str:
    waits = pool is Pool.PENDING
    since, error = ("p.created_at", _LAST_ERROR) if waits else ("p.finished_at", "p.error")
    conditions = {
        "state": "p.state = :state",
        "name": "p.name = :name",
        "queue": "p.queue = :queue",
        "biz_key": "p.biz_key = :biz_key",
        "group": "p.batch_id = :group",
        "fingerprint": "p.fingerprint = decode(:fingerprint, 'hex')",
        "error_kind": f"split_part({error}, ': ', 1) ~ :error_kind",
        "error_text": f"strpos(lower({error}), lower(:error_text)) > 0",
        "retrying": f"(p.attempt > 0 AND p.state = '{State.PENDING}') = :retrying",
        "held": f"{is_held()} = :held",
        "older_than": f"{since} <= :at - CAST(:older_than AS interval)",
        "newer_than": f"{since} > :at - CAST(:newer_than AS interval)",
    }
    found = [conditions[word] for word in given if word in conditions]
    return " AND ".join([*found, "true" if waits else "p.finished_at <= :at"])


def _values(selection: Selection, end: SelectionLimits) -> dict[str, object]:
    values = {**selection.given(), "at": end.at, "until": end.until}
    if (kind := selection.error_kind) is not None:  # the class itself, in any module
        escaped = "".join(letter if letter.isalnum() else f"\\{letter}" for letter in kind)
        values["error_kind"] = rf"^([^ ]*\.)?{escaped}$"
    if selection.ids is not None:
        values["ids"] = list(selection.ids)
    return values
