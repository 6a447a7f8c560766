"""A process that a handler forks shares our sockets, and must neither use them nor keep them open.

Its exit would send the server a goodbye in our name; as a daemon it would keep the transactions,
and so the locks, of a child that is long dead.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

_ours: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_from_forks(engine: Engine) -> None:
    """Let no process that is forked from now on use the connections of an engine."""
    event.listen(engine, "connect", _enter)


def keep_from_fork(connection: Any) -> None:
    """Do the same for one connection of psycopg that shares another's socket."""
    _ours.add(connection)


def _enter(_connection: Any, entry: ConnectionPoolEntry) -> None:
    _ours.add(entry.driver_connection)


def _cut_off() -> None:
    """In the forked process: replace each socket by /dev/null, where every read is the end."""
    with suppress(Exception):
        null = os.open(os.devnull, os.O_RDWR)
        for connection in list(_ours):
            with suppress(Exception):  # closed already
                os.dup2(null, connection.fileno(), inheritable=False)
        os.close(null)
    _ours.clear()


os.register_at_fork(after_in_child=_cut_off)
