"""Deferred: what a COMMIT would refuse is refused before it, where the rows can be tried again."""

from __future__ import annotations

from sqlalchemy import Connection, text

_IMMEDIATE = text("SET CONSTRAINTS ALL IMMEDIATE")


def check(connection: Connection) -> None:
    """Carry out what was deferred to the COMMIT; it holds for the rest of the transaction."""
    connection.execute(_IMMEDIATE)


def foresee(connection: Connection) -> None:
    """Do so, and take it back: what follows is deferred again, and so is this."""
    savepoint = connection.begin_nested()
    try:
        check(connection)
    finally:
        savepoint.rollback()
