"""Hints without a broker: sent and received by PostgreSQL's NOTIFY."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.pool.connection.sessions import driver_of, is_pooled
from tasks_app.pool.dispatch.notifications import listen, notify, received_queues
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import patience_s

log = quiet_logger(__name__)
LONGEST_PATIENCE_S = 30.0  # between two tries to connect; the first are as near as other threads'
JOIN_S = 1.0
CHECK_MS = 500  # how often it checks, without a query, if work needs its connection
GIVEN_WAY_S = 60.0  # how long it then stays without one


@contextmanager
def dedicated_connection(database: Database) -> Iterator[Connection]:
    """Open a connection that stays out of the pools, with autocommit; it ends with the block."""
    connection = database.engine.execution_options(isolation_level="AUTOCOMMIT").connect()
    connection.detach()
    try:
        yield connection
    except BaseException:
        connection.invalidate()
        raise
    finally:
        connection.close()


class Listener:
    """Wakes one process; while it listens it has a connection of its own.

    ``wake`` gets the queues of the notices; none: any queue may have work.
    """

    def __init__(
        self,
        database: Database,
        wake: Callable[[set[str]], None],
        patience: Callable[[], float] = patience_s,
    ) -> None:
        self._database = database
        self._wake = wake
        self._patience = patience
        self._ends = threading.Event()
        self._patience_s = 0.0
        self._read_end, self._write_end = os.pipe()
        self._thread = threading.Thread(target=self._work, name="tasks_app listener", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """End at once, unless a connection is just being made."""
        self._ends.set()
        os.write(self._write_end, b"\0")
        self._thread.join(JOIN_S)
        if not self._thread.is_alive():
            os.close(self._read_end)
            os.close(self._write_end)

    def _work(self) -> None:
        while not self._ends.is_set():
            try:
                with dedicated_connection(self._database) as connection:
                    if is_pooled(connection):
                        log.info(
                            "LISTEN does not work through the pooler in front of the database: "
                            "this process polls for work"
                        )
                        return
                    self._listen(connection)
                if not self._ends.is_set():
                    log.info("connections are scarce: this process polls for work")
                    self._ends.wait(GIVEN_WAY_S)
            except Exception as error:
                if not self._patience_s:  # once per outage
                    log.warning(
                        "the database does not wake this process, so it polls for work: %s",
                        first_line(error),
                    )
                self._patience_s = min(2 * self._patience_s or self._patience(), LONGEST_PATIENCE_S)
                self._ends.wait(self._patience_s)

    def _listen(self, connection: Connection) -> None:
        """Listen until the end, or until work needs the server's connections."""
        began = time.monotonic()
        listen(connection)
        if self._patience_s:
            log.info("the database wakes this process again")
            self._patience_s = 0.0
        poll = select.poll()
        for descriptor in (driver_of(connection).fileno(), self._read_end):
            poll.register(descriptor, select.POLLIN)
        self._wake(set())  # what came before this was not heard
        while not self._ends.is_set() and self._database.losses.crowded < began:
            poll.poll(CHECK_MS)
            if queues := received_queues(connection):
                self._wake(queues)


class NotifyHints:
    """A :class:`HintPublisher`. It connects when first used, and keeps one connection."""

    def __init__(self, settings: Settings) -> None:
        self._database = Database(settings.database, prepare=settings.prepare)

    def publish(self, queue: str, ids: Sequence[int]) -> None:  # noqa: ARG002  a broker's wants them
        with self._database.single() as connection:
            notify(connection, queue)

    def start(self, queue: str, ids: Sequence[int]) -> bool:  # noqa: ARG002
        return False

    def finish(self) -> None: ...

    def depth(self, queue: str) -> int:  # noqa: ARG002
        return 0  # notices do not pile up
