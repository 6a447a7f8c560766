"""The database of a buffer: ours, or an engine of somebody else's."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from tasks_app.runtime.db.database import Database

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class GivenDatabase:
    """A database whose engine is somebody else's, who ends it, too."""

    engine: Engine

    def dispose(self) -> None:
        """Do nothing: its owner does."""


def database_of(database: Engine | str) -> Database | GivenDatabase:
    """Return the database of a URL, or of an engine that stays its owner's.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(database, str):
        return Database(database)
    if not isinstance(database, Engine):
        raise TypeError(
            f"A {type(database).__name__} is no Engine. Pass a synchronous Engine, or a URL."
        )
    ENGINES.add(database)
    return GivenDatabase(database)


ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()
"""Engines of others: in a forked child their connections are the parent's."""
