"""Server processes of PostgreSQL are kept for the next connection, within a job of the first tier.

Half of what such a test took was the start of server processes with cold caches. A connection
that is closed is reset by ``DISCARD ALL`` and kept; who connects with the same words gets it in a
new object of psycopg. Tests about connections themselves ask for ``cold_connections``.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from typing import Any

from psycopg import AsyncConnection, Connection, generators
from psycopg._connection_base import BaseConnection
from psycopg.pq import ConnStatus, ExecStatus, PGconn, PipelineStatus, TransactionStatus

MOST = 24
"""Kept at a time, of the hundred that the server allows."""


class Warm:
    """What is kept."""

    def __init__(self) -> None:
        self.on = False
        self._kept: list[tuple[str, PGconn]] = []
        self._lock = threading.Lock()
        self._dead = PGconn.connect_start(b"host=/nowhere")
        self._dead.finish()

    def turn(self, *, on: bool) -> None:
        """Keep connections from now on, or close all that are kept."""
        self.on = on
        if not on:
            self.clear()

    def take(self, words: str) -> PGconn | None:
        """Return one that was made with these words and lives."""
        while self.on:
            with self._lock:
                place = next((n for n, (w, _) in enumerate(self._kept) if w == words), None)
                if place is None:
                    return None
                _, found = self._kept.pop(place)
            if _lives(found):
                return found
            found.finish()
        return None

    def keep(self, connection: Any) -> bool:
        """Take it over from who closes it, if it is one of ours; keep it if it is as new."""
        words = getattr(connection, "_words", None)
        if not self.on or words is None or getattr(connection, "_pool", None):
            return False
        with self._lock:  # two threads may close it
            pgconn, connection.pgconn = connection.pgconn, self._dead
        connection._closed = True
        if not _resets(pgconn):
            pgconn.finish()
            return True
        with self._lock:
            self._kept.append((words, pgconn))
            spilt = self._kept.pop(0)[1] if len(self._kept) > MOST else None
        if spilt is not None:
            spilt.finish()
        return True

    def clear(self) -> None:
        """Close what is kept."""
        with self._lock:
            kept, self._kept = self._kept, []
        for _, pgconn in kept:
            pgconn.finish()


def _lives(pgconn: PGconn) -> bool:
    """Whether the server has said nothing since: it would be that it ends the connection."""
    return not select.select([pgconn.socket], [], [], 0)[0]


def _resets(pgconn: PGconn) -> bool:
    return (
        pgconn.status == ConnStatus.OK
        and pgconn.transaction_status == TransactionStatus.IDLE
        and pgconn.pipeline_status == PipelineStatus.OFF
        and pgconn.exec_(b"DISCARD ALL").status == ExecStatus.COMMAND_OK
    )


WARM = Warm()


def install() -> None:
    """Let connections of this process come from there and return to it, whenever it is on."""
    closed, aclosed = Connection.close, AsyncConnection.close

    def connect(cls: type[Any], conninfo: str = "", **options: Any) -> Iterator[Any]:
        pgconn = WARM.take(conninfo)
        if pgconn is None:
            pgconn = yield from generators.connect(conninfo, **options)  # type: ignore[misc]
        connection = cls(pgconn)
        connection._words = conninfo
        return connection

    def close(self: Connection) -> None:
        if not WARM.keep(self):
            closed(self)

    async def aclose(self: AsyncConnection) -> None:
        if not WARM.keep(self):
            await aclosed(self)

    BaseConnection._connect_gen = classmethod(connect)  # type: ignore[method-assign,assignment]
    Connection.close, AsyncConnection.close = close, aclose  # type: ignore[method-assign]
