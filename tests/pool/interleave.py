"""Two connections, step by step: who waits for whom, and statements stopped half-way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.event import listen, remove

PATIENCE_S = 15
_GATE = 4711
_BLOCKERS = text("SELECT pg_blocking_pids(:pid)")


def pid_of(connection: Connection) -> int:
    """The connection's server process."""
    return connection.connection.driver_connection.info.backend_pid


@contextmanager
def two(engine: Engine) -> Iterator[tuple[Connection, Connection]]:
    """Two connections; what they did not commit is rolled back."""
    with engine.connect() as a, engine.connect() as b:
        yield a, b
        a.rollback()
        b.rollback()


class Blocked:
    """A call in another thread whose statement waits for what ``by`` holds."""

    def __init__(self, engine: Engine, waiter: Connection, by: Connection, call: Callable) -> None:
        self._threads = ThreadPoolExecutor(1)
        self._future: Future = self._threads.submit(call, waiter)
        self._await_lock(engine, pid_of(waiter), pid_of(by))

    def _await_lock(self, engine: Engine, waiter: int, holder: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        with engine.connect() as monitor:
            while holder not in monitor.execute(_BLOCKERS, {"pid": waiter}).scalar_one():
                monitor.rollback()
                assert not self._future.done(), f"it did not wait: {self._future.result()!r}"
                assert time.monotonic() < deadline, "it neither waits nor ends"

    def result(self) -> Any:
        """What the call returned, now that nothing is in its way."""
        try:
            return self._future.result(PATIENCE_S)
        finally:
            self._threads.shutdown(wait=False)


def blocked(
    engine: Engine, waiter: Connection, by: Connection, call: Callable[[Connection], Any]
) -> Blocked:
    """Start ``call(waiter)`` and return once it waits for a lock of ``by``."""
    return Blocked(engine, waiter, by, call)


@contextmanager
def gate(engine: Engine) -> Iterator[Callable[[Connection, Callable], Blocked]]:
    """Stop statements between their snapshot and their first row lock.

    Inside, ``stop(connection, call)`` runs a verb whose clock is a function of ours that waits
    before it tells the time: the rows were read by then, and not locked. Leaving opens the gate.
    """
    with engine.connect() as leader:
        leader.execute(text("CREATE SCHEMA IF NOT EXISTS gate"))
        leader.execute(
            text(f"""
            CREATE OR REPLACE FUNCTION gate.statement_timestamp() RETURNS timestamptz
            LANGUAGE plpgsql VOLATILE AS $$ BEGIN
                PERFORM pg_catalog.pg_advisory_xact_lock_shared({_GATE});
                RETURN pg_catalog.statement_timestamp();
            END $$""")
        )
        leader.commit()
        leader.execute(text(f"SELECT pg_advisory_xact_lock({_GATE})"))

        def stop(connection: Connection, call: Callable) -> Blocked:
            connection.execute(text("SET LOCAL search_path = gate, public, pg_catalog"))
            return Blocked(engine, connection, leader, call)

        yield stop
        leader.rollback()


@contextmanager
def between(connection: Connection, act: Callable[[], Any], *, before: str) -> Iterator[None]:
    """Act once, before the connection's next statement that has this text in it."""
    acts = [act]

    def look(*event: Any) -> None:
        if before in event[2] and acts:
            acts.pop()()

    listen(connection, "before_cursor_execute", look)
    yield
    remove(connection, "before_cursor_execute", look)
    assert not acts, f"no statement had {before!r} in it"
