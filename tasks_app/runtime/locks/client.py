"""Locks for code that is no task: on an engine, or beside a session of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from uuid import uuid4

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from tasks_app.domain.locks import LONGEST_WHO
from tasks_app.domain.locks import Ask
from tasks_app.domain.locks import Names
from tasks_app.domain.locks import parts_of
from tasks_app.domain.durations import Duration, parse_duration
from tasks_app.domain.errors import InvalidConnectionError, InvalidLockError
from tasks_app.runtime.db.connections import shown
from tasks_app.runtime.db.session_settings import settle_in
from tasks_app.runtime.handler_db.handler_sessions import HandlerSession
from tasks_app.runtime.locks.hold import Hold
from tasks_app.runtime.locks.renewer import BACKGROUND

Where = Engine | Session | Connection
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 86_400.0


@dataclass(frozen=True)
class Transactions:
    """Short transactions of our own on a caller's engine."""

    engine: Engine

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open one that commits at the end of the block."""
        with self.engine.connect() as connection:
            connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                settle_in(connection)
                yield connection

    @contextmanager
    def single(self) -> Iterator[Connection]:
        """Open a connection for one statement, which commits by itself: in one round trip."""
        with self.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")


def hold(  # noqa: PLR0913  all by keyword
    where: Where,
    *,
    exclusive: Names = (),
    shared: Names = (),
    counted: Mapping[str, int] | None = None,
    wait: Duration = 0,
    lease: Duration = "30s",
    snooze: Duration = "5s",
    who: str | None = None,
    renew: bool = True,
) -> Hold:
    """Hold a group of named resources while a block runs: all of them, or none.

    Args:
        where: an engine; of a session or connection, its engine. Locks are taken and released on
            a connection of their own, at once: what the block writes, it has to commit itself.
        exclusive: names of resources for this holder alone.
        shared: names of resources for all who share them.
        counted: names, and how many may hold each at a time.
        wait: how long to wait for it; 0: not at all.
        lease: how long the lock outlives a holder that died.
        snooze: how long a task is snoozed whose handler was denied.
        who: shown to others; default host and process.
        renew: a thread of this process renews the lease; without, ``renew()`` of the lock does.

    Raises:
        InvalidLockError: at once, if the group cannot be.
        LockDeniedError: when the block is entered, if it was not free in time.
        LockOrderError: when the block is entered, if it would wait while another group is held.
        LockLostError: when the block is left, if another holder has taken the lock over.
    """
    parts = parts_of(exclusive, shared, counted)
    ask = Ask(uuid4(), parts, (who or here(os.getpid()))[:LONGEST_WHO], lease_of(lease))
    return Hold(
        Transactions(engine_of(where)),
        ask,
        wait_s=span_of("wait", wait),
        snooze_s=span_of("snooze", snooze),
        renewing=BACKGROUND if renew else None,
    )


def lease_of(value: Duration) -> timedelta:
    """Return a lease of 1 s to 1 day.

    Raises:
        InvalidLockError: it is not.
    """
    seconds = span_of("lease", value)
    if not SHORTEST_LEASE_S <= seconds <= LONGEST_LEASE_S:
        raise InvalidLockError("lease", f"is {seconds:g} s", "1s .. 1d")
    return timedelta(seconds=seconds)


def span_of(word: str, value: Duration) -> float:
    """Return a span in seconds.

    Raises:
        InvalidLockError: it is no duration.
    """
    try:
        return parse_duration(value).total_seconds()
    except ValueError as error:
        raise InvalidLockError(word, str(error), "a span such as 5s") from None


def engine_of(where: Where) -> Engine:
    """Return the engine on which locks are taken.

    Raises:
        InvalidConnectionError: there is none, or it is a handler's.
    """
    if isinstance(where, HandlerSession):
        raise InvalidConnectionError(
            "In handlers use ctx.locks(...): it knows when the task is over."
        )
    if isinstance(where, Engine):
        return where
    if isinstance(where, Session):
        return where.get_bind().engine
    if isinstance(where, Connection):
        return where.engine
    raise InvalidConnectionError(
        f"{shown(where)} is no Engine, Session or Connection. "
        "Pass one of SQLAlchemy that is not async: async with uses it in a thread."
    )


@cache
def here(pid: int) -> str:
    """Name this process; cached, because it asks the system."""
    return f"{socket.gethostname()}:{pid}"
