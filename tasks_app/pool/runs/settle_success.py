"""Succeed: the settle of one success in the transaction of its effects, in as little as it takes.

Either it is asked, and its COMMIT follows; or it is the last word of its transaction, which the
COMMIT travels along with: then it fails where the fence is lost, and with it the COMMIT.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import psycopg
from psycopg.errors import DivisionByZero, NotNullViolation

from tasks_app.domain.coordination.groups import Called
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.psycopg_io import ado, do
from tasks_app.pool.connection.steps import Rows, Statement
from tasks_app.pool.fragments.move_rows import attempts_of
from tasks_app.pool.fragments.transition_log import LOG, lines_of_successes
from tasks_app.pool.groups.count import LOCKED, counting, locking
from tasks_app.pool.tables import CARRIED, COMPLETED, PENDING, admits

_KEPT = ", ".join(CARRIED)
_NOW = "statement_timestamp()"


def _statements(condition: str, **parts: Any) -> tuple[str, str]:
    """Return the statement without and with a line in the log of transitions."""
    return _statement(condition, **parts), _statement(condition, logs=True, **parts)


def _statement(
    condition: str,
    first: str = "",
    also: str = "",
    told: str = "",
    rows: str = "gone",
    result: str = "%(result)s::jsonb",
    *,
    logs: bool = False,
) -> str:
    return f"""
    WITH {first}gone AS (
        DELETE FROM {PENDING} p
        WHERE p.id = %(id)s AND {admits(Event.SUCCEED)} AND p.attempt = %(attempt)s
          AND p.lease_token = %(token)s AND {condition}
        RETURNING p.*) {also}{lines_of_successes("gone", _NOW) if logs else ""}
    INSERT INTO {COMPLETED} ({_KEPT}, state, result, run_ms, finished_at)
    SELECT {_KEPT}, '{State.SUCCEEDED}', {result}, %(run_ms)s::integer, {_NOW}
    FROM {rows} {told}
"""


_ALONE = "p.batch_id IS NULL"
_GROUP = f"SELECT p.batch_id FROM {PENDING} p WHERE p.id = %(id)s"
_SUCCEED = _statements(_ALONE, told="RETURNING id")
_MEMBER = _statements(
    LOCKED,
    first=f"{locking(_GROUP)}, ",
    also=f", {counting('gone', succeeds='true', now=_NOW)}",
    told="RETURNING (SELECT jsonb_build_array(c.id, c.queue, c.wait_s)::text"
    " FROM called c WHERE c.wait_s IS NOT NULL)",
)
"""Of a group, which is counted: for those whom the first statement did not find. As text, since the
owner of a connection decides how it reads JSON."""
_LAST = _statements(
    _ALONE,
    rows="(SELECT) AS one LEFT JOIN gone ON true",
    result="CASE WHEN id IS NOT NULL THEN %(result)s::jsonb END",  # or it stands in the error
)
"""Without a row it inserts one without an id, which fails: so does the COMMIT behind it."""


def _forget(answer: str, *, tried: bool = False) -> tuple[str, str]:
    """Return what deletes the row of a success that is not kept, as :func:`_statements` does."""
    gone = f"""
    WITH gone AS (
        DELETE FROM {PENDING} p
        WHERE p.id = %(id)s AND {admits(Event.SUCCEED)} AND p.attempt = %(attempt)s
          AND p.lease_token = %(token)s AND {_ALONE}
        RETURNING p.id, p.attempt, p.owner, p.started_at){attempts_of("gone") if tried else ""}"""
    return f"{gone} {answer}", f"{gone}{lines_of_successes('gone', _NOW)} {answer}"


_FIRST = {
    "": _SUCCEED,
    ", forgets": _forget("SELECT id FROM gone"),
    ", forgets all": _forget("SELECT id FROM gone", tried=True),
}
_FAILS = "SELECT 1 / count(*) FROM gone"
"""Without a row it divides by zero, and the COMMIT behind it fails, too."""
_LASTS = {
    "": _LAST,
    ", forgets": _forget(_FAILS),
    ", forgets all": _forget(_FAILS, tried=True),
}
_OWN_ROW = f"""
    SELECT FROM {PENDING} p WHERE p.id = $1 AND p.attempt = $2 AND p.lease_token = $3
    FOR NO KEY UPDATE
""".encode()
_TYPES = {"id": 20, "attempt": 23, "token": 2950, "result": 3802, "run_ms": 23}
"""Those of the values, as pg_type knows them."""


class LastWord(NamedTuple):
    """A statement that ends a transaction, in the words of libpq."""

    name: bytes
    """Under which it is prepared."""
    sql: bytes
    """Its values are ``$1`` and so on."""
    types: list[int]
    """Lists, since psycopg 3.2 in C takes nothing else."""
    values: list[bytes | None]


def _numbered(statement: str) -> bytes:
    for number, name in enumerate(_TYPES, 1):
        statement = statement.replace(f"%({name})s", f"${number}")
    return statement.encode()


_WORDS = {
    manner: tuple(
        (f"tasks_app succeeds{told}{manner}".encode(), _numbered(sql), list(_TYPES.values()))
        for told, sql in zip(("", ", told"), statements, strict=True)
    )
    for manner, statements in _LASTS.items()
}


def _manner(settlement: Settlement) -> str:
    """Return by which of the statements this success is written."""
    if settlement.is_kept:
        return ""
    return ", forgets all" if settlement.fence.attempt > 1 else ", forgets"


def last_word(settlement: Settlement) -> LastWord:
    """Return what writes one success, waiting for its row, of a task that is in no group.

    It fails, as :func:`is_fence_lost` knows, instead of doing nothing.
    """
    (task_id, attempt, token), result = settlement.fence, settlement.result
    values = [
        b"%d" % task_id,
        b"%d" % attempt,
        token.hex.encode(),
        None if result is None else result.encode(),
        None if settlement.run_ms is None else b"%d" % settlement.run_ms,
    ]
    return LastWord(*_WORDS[_manner(settlement)][LOG.has_successes], values)


def is_fence_lost(error: psycopg.Error) -> bool:
    """Tell whether a last word failed because the run is not ours any more: without a row."""
    if isinstance(error, DivisionByZero):
        return True
    return isinstance(error, NotNullViolation) and error.diag.column_name == "id"


def own_row(fence: Fence) -> LastWord:
    """Return what locks the row of a run.

    Where a transaction sees what was when it began, a renewal would else update the row behind its
    snapshot, and the settle at its end fail. A locked row is passed by: the lock is its lease.
    """
    values: list[bytes | None] = [
        b"%d" % fence.task_id,
        b"%d" % fence.attempt,
        fence.token.hex.encode(),
    ]
    return LastWord(b"", _OWN_ROW, [20, 23, 2950], values)


def succeed(
    connection: psycopg.Connection[Any], settlement: Settlement, called: list[Called] | None = None
) -> bool:
    """Write one success, waiting for its row and group; False: the fence is lost: do not commit.

    A callback that was inserted is added to ``called``.
    """
    values = _values(settlement)
    logs = LOG.has_successes
    if do(connection, Statement(_FIRST[_manner(settlement)][logs], values)):
        return True
    return _counted(do(connection, Statement(_MEMBER[logs], values)), called)


async def asucceed(
    connection: psycopg.AsyncConnection[Any],
    settlement: Settlement,
    called: list[Called] | None = None,
) -> bool:
    """Do the same on an async connection."""
    values = _values(settlement)
    logs = LOG.has_successes
    if await ado(connection, Statement(_FIRST[_manner(settlement)][logs], values)):
        return True
    return _counted(await ado(connection, Statement(_MEMBER[logs], values)), called)


def _counted(rows: Rows, called: list[Called] | None) -> bool:
    if rows and rows[0][0] is not None and called is not None:
        called.append(Called(*json.loads(rows[0][0])))
    return bool(rows)


def _values(settlement: Settlement) -> dict[str, Any]:
    fence = settlement.fence
    return {
        "id": fence.task_id,
        "attempt": fence.attempt,
        "token": fence.token,
        "result": settlement.result,
        "run_ms": settlement.run_ms,
    }
