"""The connections that threads keep for their next runs: taking one anew is a fifth of a short run.

Only a clean one is kept: nothing is set in it that the next task would meet. A session works on the
same one: a thread never needs two.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from sqlalchemy import Connection

from tasks_app.runtime.borrowed import left_a_setting
from tasks_app.runtime.chained import unchain
from tasks_app.runtime.database import Database
from tasks_app.runtime.liveness import lives, rest


class KeptConnections:
    """At most one per thread; each is used by its thread alone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[int, Connection] = {}

    def take(self) -> Connection:
        """Return a connection without a transaction; it is the caller's."""
        engine = self._database.handler_engine
        kept = self._kept.pop(threading.get_ident(), None)
        if kept is not None and kept.engine is engine and lives(kept):
            return kept
        return engine.connect()

    def put_back(self, connection: Connection) -> None:
        """Roll back what is open, and keep it if the next task may have it."""
        if not connection.closed:
            connection.rollback()
        if may_be_kept(connection):
            self.keep(connection)
        else:
            connection.close()

    def keep(self, connection: Connection) -> None:
        """Keep one that :func:`may_be_kept`, and has no transaction, for the thread's next run."""
        rest(connection)
        self._kept[threading.get_ident()] = connection

    def rest(self) -> None:
        """End this thread's transaction, if one was begun for a run that did not come."""
        kept = self._kept.get(threading.get_ident())
        if kept is not None:
            try:
                unchain(kept)
            except Exception:  # the database is away, say
                self._kept.pop(threading.get_ident(), None)
                with suppress(Exception):
                    kept.invalidate()

    def close(self) -> None:
        """Close all, when no thread runs a task any more."""
        while self._kept:
            with suppress(Exception):  # the database is away, say
                self._kept.popitem()[1].close()


def may_be_kept(connection: Connection) -> bool:
    """Tell whether nothing is set in a connection that the next task would meet."""
    spoiled = connection.closed or connection.invalidated or left_a_setting(connection)
    return not (spoiled or connection.get_execution_options())
