"""Migrations and reindexing while the pool works, in steps that wait only shortly for locks."""

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

IN_USE = {"55P03", "40P01"}  # lock_not_available, deadlock_detected
PATIENCE_S = 300.0
REINDEX_PATIENCE_S = 60.0  # for the transactions that were open at its start; it blocks no others
LONGEST_PAUSE_S = 5.0


def migrate(
    database: Database, say: Say = lambda _: None, *, patience_s: float = PATIENCE_S
) -> tuple[str | None, str]:
    """Bring the schema and its sequences up to date; return the version before and after.

    Each migration commits by itself, so run a killed one again. Of two processes one waits.
    Raises SchemaError: this code is too old for the schema, or a table stayed locked for too long.
    """
    engine = database.migration_engine()
    try:
        # The turn is a transaction of its own, whose lock no migration needs.
        with engine.connect() as turn, engine.connect() as connection:
            schema.lock_migrations(turn, say, refused=turn.rollback)
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
                    f"Other transactions locked a table for {patience_s:g} s; earlier migrations "
                    "stay. End them (tasks-app doctor names them), and migrate again."
                ) from None
        connection.rollback()
        say("a table is in use; trying again")
        time.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311  jitter, or two would meet again
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class Reindexed:
    """The result of a reindexing."""

    done: Sequence[tuple[str, int, int]]  # each index, with its bytes before and after
    in_use: Sequence[str]  # the old index stays: a transaction stayed open for too long
    dropped: Sequence[str]  # halves that earlier tries left


def reindex(
    database: Database,
    names: Sequence[str] = (),
    say: Callable[[str], object] = lambda _: None,
    *,
    patience_s: float = REINDEX_PATIENCE_S,
) -> Reindexed:
    """Rebuild the named indexes; without names those that are bloated.

    Run a killed one again: it drops what is half done, and skips what is no longer bloated.
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
            known = _indexes(connection)
            for name in names:
                if name not in known:
                    raise InvalidSelectionError(
                        f"tasks_app has no index {name}. tasks-app maintain --all lists them."
                    )
            bloated = [index for index in known.values() if index.is_bloated]
            chosen = [known[name] for name in dict.fromkeys(names)] or bloated
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


def _indexes(connection: Connection) -> dict[str, maintenance.RelationSize]:
    return {size.name: size for size in maintenance.sizes(connection) if size.kind == "index"}


def _clean(connection: Connection) -> list[str]:
    """Drop half-built indexes; one that another process builds is locked, and stays."""
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
