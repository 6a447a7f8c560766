"""Migrate a pool while others work on it: in short steps, none of which waits long for a lock."""

from __future__ import annotations

import random
import time

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.errors import SchemaError
from tasks_app.pool import schema
from tasks_app.pool.operations import sequences
from tasks_app.pool.schema import Say
from tasks_app.runtime.db.database import Database

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
                for each in sequences.advance(connection):
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
