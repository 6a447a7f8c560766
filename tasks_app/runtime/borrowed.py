"""Connections that handlers borrow, through ``ctx.session``.

Nobody but the executor ends a transaction on them, for effect and outcome are one commit. A session
in which something was set that outlives the transaction is not lent again: the next task must not
meet its lock_timeout, its tenant, its temporary tables or its advisory locks.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

COMMITS_LATER = (
    "ctx.session commits together with the task's outcome, when the handler has returned. "
    "Use flush(), or ctx.commit() for what is to stand whatever becomes of the rest."
)
_PERMIT = "tasks_app may commit"
_SENT = "_tasks_app_sent_a_commit"
_SPENT = "tasks_app does not lend again"
_SET = "tasks_app saw a setting"
_SETS = re.compile(r"\A\s*set\b", re.IGNORECASE)
_LOOKED_AT = 300
"""Characters at the beginning of a statement in which keywords are looked for."""
_ENDS = re.compile(
    r"\s*(commit|end|abort|rollback(?!\s+(work\s+|transaction\s+)?to\b)|prepare\s+transaction)\b",
    re.IGNORECASE,
)
_LASTS = re.compile(
    r"\A\s*(set(?!\s+(local|transaction|constraints)\b)|reset|listen|load|prepare|deallocate|discard)\b"
    r"|\b(create|replace|local|global|into)\s+temp(orary)?\b|\bwith\s+hold\b",
    re.IGNORECASE,
)
_LASTING_CALLS = ("set_config", "advisory_lock", "dblink_connect")
_COMMENTS = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)


class Trace(Enum):
    """What a statement leaves behind."""

    TRANSACTION = auto()
    """Nothing that the end of the transaction does not take away."""
    SETTING = auto()
    """Something that stays until the end of the transaction: its next statements meet it."""
    SESSION = auto()
    """Something that stays in the connection."""
    END = auto()
    """The end of the transaction itself."""


@lru_cache(1024)
def trace_of(statement: str) -> Trace:
    """Judge a statement by its words; a doubt costs a new connection, nothing else."""
    beginning = _COMMENTS.sub(" ", statement[:_LOOKED_AT])
    if _ENDS.match(beginning):
        return Trace.END
    if _LASTS.search(beginning) or any(call in statement for call in _LASTING_CALLS):
        return Trace.SESSION
    return Trace.SETTING if _SETS.match(beginning) else Trace.TRANSACTION


def lend(engine: Engine) -> None:
    """Watch what is done on an engine whose connections handlers get."""
    event.listen(engine, "commit", _refuse)
    event.listen(engine, "before_cursor_execute", _judge)
    event.listen(engine, "checkin", _retire)


class commit_permitted:  # noqa: N801  it is used as a function; contextmanager takes longer
    """Let the block commit on a connection of handlers; nobody else may."""

    __slots__ = ("_info",)

    def __init__(self, connection: Connection) -> None:
        self._info = connection.info

    def __enter__(self) -> None:
        self._info[_PERMIT] = True

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._info.pop(_PERMIT, None)
        if error is not None:
            setattr(error, _SENT, True)


def is_of_commit(error: BaseException) -> bool:
    """Tell whether a COMMIT may have been sent that brought this error, or no answer."""
    return getattr(error, _SENT, False)


def left_a_setting(connection: Connection) -> bool:
    """Tell whether a statement set something that later ones on this connection meet."""
    info = connection.info
    return _SPENT in info or _SET in info


def _refuse(connection: Connection) -> None:
    """Whatever way a handler found to COMMIT: its effects would stand without their outcome.

    SQLAlchemy takes the transaction for ended then, and would lend the connection again with it.
    """
    if _PERMIT not in connection.info:
        connection.info[_SPENT] = True
        raise RuntimeError(COMMITS_LATER)


def _judge(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    match trace_of(statement):
        case Trace.END:
            raise RuntimeError(COMMITS_LATER)
        case Trace.SESSION:
            connection.info[_SPENT] = True
        case Trace.SETTING:
            connection.info[_SET] = True
        case Trace.TRANSACTION:
            pass


def _retire(_connection: Any, entry: ConnectionPoolEntry) -> None:
    entry.info.pop(_SET, None)
    if entry.info.pop(_SPENT, False):
        entry.invalidate()
