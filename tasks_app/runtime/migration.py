"""Migrations and reindexing while others work on the pool, in steps that wait for no lock long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.errors import ConfigurationError, InvalidSelectionError, SchemaError
from tasks_app.pool import schema
from tasks_app.pool.operations import maintenance
from tasks_app.pool.schema import Say
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import sqlstate

IN_USE = {"55P03", "40P01"}
"""lock_not_available, deadlock_detected: other transactions locked the table."""
PATIENCE_S = 300.0
LONGEST_PAUSE_S = 5.0


def migrate(
    database: Database, say: Say = lambda _: None, *, patience_s: float = PATIENCE_S
) -> tuple[str | None, str]:
    """Bring the schema up to date, and its sequences; return the version before and after.

    Each migration commits by itself, so one that was killed is simply run again. A process that
    migrates while another does waits for it.

    Raises:
        SchemaError: this code is too old for the schema, or a table stayed locked for too long.
    """
    engine = database.migration_engine()
    try:
        # The turn is a transaction of its own, which locks nothing that a migration could want.
        with engine.connect() as turn, engine.connect() as connection:
            schema.take_turn(turn, say, refused=turn.rollback)
            schema.be_patient(turn)
            before, is_behind = schema.current(connection), schema.is_behind(connection)
            connection.rollback()
            if is_behind:
                _upgrade(connection, say if before else lambda _: None, patience_s)
            with connection.begin():
                for each in maintenance.advance_sequences(connection):
                    say(f"{each.name} was behind: {each.next} came next, {each.highest} is taken")
            return before, schema.current(connection) or schema.newest()
    finally:
        engine.dispose()


def _upgrade(connection: Connection, say: Say, patience_s: float) -> None:
    until = time.monotonic() + patience_s
    pause_s = 0.25
    while True:
        try:
            schema.upgrade(connection, say)
            return
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in IN_USE:
                raise
            if time.monotonic() > until:
                raise SchemaError(
                    f"Others kept a table for {patience_s:g} s; what was done until then stays. "
                    "End their transactions (tasks-app doctor names them), and migrate again."
                ) from None
        connection.rollback()
        say("a table is in use; trying again")
        time.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311  jitter, or two would meet again
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


REINDEX_PATIENCE_S = 60.0
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
    patience_s: float = REINDEX_PATIENCE_S,
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
            if maintenance.tables_of_other_roles(connection):
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
                    maintenance.reindex(connection, index.name)
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
    for name in maintenance.invalid_indexes(connection):
        try:
            maintenance.drop_index(connection, name)
        except DBAPIError as error:
            if sqlstate(error) not in IN_USE:
                raise
            continue
        dropped.append(name)
    return dropped
