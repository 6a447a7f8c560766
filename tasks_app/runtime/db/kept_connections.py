"""What a thread keeps of its connections from one run to the next that follows at once."""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg

from tasks_app.runtime.handler_db.handler_connections import HandlerConnection


class KeptConnections:
    """Of all threads of a child."""

    def __init__(self) -> None:
        self._begun: dict[int, HandlerConnection] = {}

    def begun(self, driver: HandlerConnection) -> None:
        """Keep one whose transaction was begun ahead; it is back in its pool."""
        self._begun[threading.get_ident()] = driver

    def rest(self) -> None:
        """End what was begun for this thread: no run follows."""
        begun = self._begun.pop(threading.get_ident(), None)
        if begun is not None:
            with suppress(psycopg.Error):  # it is gone anyway
                begun.rest()
