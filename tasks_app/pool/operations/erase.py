"""Erase: what tasks hold that are over is removed, wherever it stands; rows and outcomes stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.errors import SchemaError
from tasks_app.domain.tasks.erased import ERASED, MARK
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import (
    ALL,
    ATTEMPT,
    AUDIT,
    COMPLETED,
    ERROR,
    LARGE_VALUE,
    LOG_LINES,
    NOW,
    PROGRESS,
    TRANSITION,
)

SUBJECT = "subject"
"""The header that names whom a task is about, beside its biz_key."""
_FIND = text(f"""
    SELECT t.id, t.pool, t.state FROM {ALL} t
    WHERE t.biz_key = ANY(CAST(:biz_keys AS text[]))
       OR CAST(:subject AS text) IS NOT NULL AND t.headers ->> '{SUBJECT}' = :subject
    ORDER BY t.id
""")
_MARKED = f"jsonb_build_object('{MARK}', {NOW})"
_IDS = "CAST(:ids AS bigint[])"
_OF_POOL = f"""
    SET payload = {_MARKED}, headers = {_MARKED},
        result = CASE WHEN t.result IS NOT NULL THEN {_MARKED} END,
        error = CASE WHEN t.error LIKE '%: %' THEN split_part(t.error, ': ', 1) || ': {ERASED}'
            ELSE t.error END,
        sub_status = CASE WHEN t.sub_status IS NOT NULL THEN '{ERASED}' END
    WHERE t.id = ANY({_IDS})
      AND (NOT (t.payload ? '{MARK}') OR t.sub_status <> '{ERASED}')
"""
_ABOUT = f"(t.ids && {_IDS} OR t.what ->> 'biz_key' = ANY(CAST(:biz_keys AS text[])))"
_OPEN = f"""EXISTS (
    SELECT FROM {AUDIT} o WHERE o.id = coalesce(t.bulk, t.id) AND o.until IS NOT NULL
      AND (SELECT s.after FROM {AUDIT} s WHERE s.id = o.id OR s.bulk = o.id
           ORDER BY s.id DESC LIMIT 1) IS NOT NULL)"""
"""The bulk goes on, and its patch would be applied as it stands."""
_HAS_TEXT = "(t.patch IS NOT NULL OR t.what ?| ARRAY['why', 'error_text'])"
_IN_BULK = f"""(t.id = ANY(ARRAY(SELECT a.bulk FROM {AUDIT} a WHERE a.ids && {_IDS}))
    OR {_ABOUT})"""
_STATEMENTS = {
    COMPLETED: f"UPDATE {COMPLETED} t {_OF_POOL}",
    ERROR: f"UPDATE {ERROR} t {_OF_POOL}",
    ATTEMPT: f"""
        UPDATE {ATTEMPT} t SET message = '{ERASED}', traceback = NULL, encrypted_message = NULL
        WHERE t.task_id = ANY({_IDS}) AND t.message <> '{ERASED}'""",
    TRANSITION: f"""
        UPDATE {TRANSITION} t SET
            detail = CASE WHEN t.detail IS NOT NULL THEN '{ERASED}' END,
            why = CASE WHEN t.why IS NOT NULL THEN '{ERASED}' END
        WHERE t.task_id = ANY({_IDS}) AND (t.detail <> '{ERASED}' OR t.why <> '{ERASED}')""",
    LOG_LINES: f"DELETE FROM {LOG_LINES} t WHERE t.task_id = ANY({_IDS})",
    LARGE_VALUE: f"DELETE FROM {LARGE_VALUE} t WHERE t.task_id = ANY({_IDS})",
    PROGRESS: f"DELETE FROM {PROGRESS} t WHERE t.task_id = ANY({_IDS})",
}
_AUDIT = text(f"""
    UPDATE {AUDIT} t SET patch = CASE WHEN t.patch IS NOT NULL THEN {_MARKED} END,
        what = t.what - 'why' - 'error_text'
    WHERE {_IN_BULK} AND {_HAS_TEXT} AND NOT coalesce(t.patch ? '{MARK}', false) AND NOT {_OPEN}
""")
_OPEN_BULKS = text(f"""
    SELECT DISTINCT coalesce(t.bulk, t.id) FROM {AUDIT} t
    WHERE {_IN_BULK} AND {_HAS_TEXT} AND {_OPEN} ORDER BY 1
""")


_MAY = text("SELECT has_table_privilege(:audit, 'UPDATE') AS may, current_user AS role")


class Meant(NamedTuple):
    """The tasks that an erasure means."""

    over: list[int]
    waiting: list[int]
    running: list[int]


def check_may_erase(connection: Connection) -> None:
    """Pass if this role may erase: who only adds lines to the audit may not.

    Raises:
        SchemaError: it may not.
    """
    row = connection.execute(_MAY, {"audit": AUDIT}).one()
    if not row.may:
        raise SchemaError(
            f"The database role {row.role} may not erase: it may not change the audit. "
            "Run it as the owner of the tables."
        )


def find(connection: Connection, biz_keys: Sequence[str], subject: str | None) -> Meant:
    """Return the tasks of these keys, or about this subject. By subject it reads every row."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    rows = connection.execute(_FIND, {"biz_keys": list(biz_keys), "subject": subject}).all()
    meant = Meant([], [], [])
    for row in rows:
        if row.pool != "pending":
            meant.over.append(row.id)
        elif row.state == State.RUNNING:
            meant.running.append(row.id)
        else:
            meant.waiting.append(row.id)
    return meant


def erase(connection: Connection, ids: Sequence[int]) -> dict[str, int]:
    """Erase what tasks hold that are over; return how many rows changed, by table."""
    values = {"ids": sorted(ids), "now": None}
    return {
        table.rpartition(".")[2]: connection.execute(text(statement), values).rowcount
        for table, statement in _STATEMENTS.items()
    }


def erase_audit(connection: Connection, ids: Sequence[int], biz_keys: Sequence[str]) -> int:
    """Erase what operators typed about these tasks; return how many lines changed."""
    values = {"ids": sorted(ids), "biz_keys": list(biz_keys), "now": None}
    return connection.execute(_AUDIT, values).rowcount


def open_bulks(connection: Connection, ids: Sequence[int], biz_keys: Sequence[str]) -> list[int]:
    """Return the bulks that changed such tasks and are not over, so that their lines stay."""
    values = {"ids": sorted(ids), "biz_keys": list(biz_keys)}
    return list(connection.execute(_OPEN_BULKS, values).scalars())
