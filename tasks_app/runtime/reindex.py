"""Reindex: bloated indexes are written anew, one at a time, while others read and write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.errors import ConfigurationError, InvalidSelectionError
from tasks_app.pool.operations import maintenance
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import sqlstate
from tasks_app.runtime.migration import IN_USE

PATIENCE_S = 60.0
"""For the transactions that were open when it began: nobody waits behind it meanwhile."""


@dataclass(frozen=True, slots=True)
class Reindexed:
    """What came of it."""

    done: Sequence[tuple[str, int, int]]
    """Each index, with its bytes before and after."""
    in_use: Sequence[str]
    """A transaction stayed open for too long, so the old index stays."""
    dropped: Sequence[str]
    """Halves that earlier tries left."""


def reindex(
    database: Database,
    names: Sequence[str] = (),
    say: Callable[[str], object] = lambda _: None,
    *,
    patience_s: float = PATIENCE_S,
) -> Reindexed:
    """Write the named indexes anew; without names those that are bloated.

    Each is done or not, so one that was killed is simply run again: it drops what it finds half
    done, and leaves out what is no longer bloated.

    Raises:
        ConfigurationError: this role does not own the tables.
        InvalidSelectionError: an index is none of ours.
    """
    engine = database.migration_engine()
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if maintenance.others_tables(connection):
                raise ConfigurationError(
                    "This role does not own the tables, and only their owner may reindex. "
                    "Run it with the TASKS_APP_DATABASE_URL that migrates."
                )
            maintenance.set_lock_timeout(connection, patience_s)
            chosen = _chosen(connection, names)
            dropped = _clean(connection)
            done, in_use = [], []
            for index in chosen:
                try:
                    maintenance.rewrite(connection, index.name)
                except DBAPIError as error:
                    if sqlstate(error) not in IN_USE:
                        raise
                    in_use.append(index.name)
                    with suppress(DBAPIError):
                        _clean(connection)
                    continue
                after = _indexes(connection)[index.name].bytes
                done.append((index.name, index.bytes, after))
                say(f"{index.name}: {index.bytes:,} bytes became {after:,}")
            return Reindexed(done, in_use, dropped)
    finally:
        engine.dispose()


def _chosen(connection: Connection, names: Sequence[str]) -> list[maintenance.RelationSize]:
    there = _indexes(connection)
    unknown = [name for name in names if name not in there]
    if unknown:
        raise InvalidSelectionError(
            f"{unknown[0]} is no index of tasks_app. tasks-app maintain --all lists them."
        )
    if names:
        return [there[name] for name in dict.fromkeys(names)]
    return [index for index in there.values() if index.is_bloated]


def _indexes(connection: Connection) -> dict[str, maintenance.RelationSize]:
    return {size.name: size for size in maintenance.sizes(connection) if size.kind == "index"}


def _clean(connection: Connection) -> list[str]:
    """Drop what is half done. Another one's that still runs is locked, and stays."""
    dropped = []
    for name in maintenance.left_over(connection):
        try:
            maintenance.drop(connection, name)
        except DBAPIError as error:
            if sqlstate(error) not in IN_USE:
                raise
            continue
        dropped.append(name)
    return dropped
