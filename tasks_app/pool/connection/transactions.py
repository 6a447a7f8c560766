"""Transactions: how long they wait for locks, their number, and whether one has committed."""

from __future__ import annotations

from sqlalchemy import Connection, text

_THIS = text("SELECT CAST(pg_current_xact_id() AS text)")
_STATUS = text("SELECT pg_xact_status(CAST(:transaction AS xid8))")
_PATIENCE = text("SELECT set_config('lock_timeout', :span, true)")
_VERDICTS = {"committed": True, "aborted": False}


def this_transaction(connection: Connection) -> str:
    return str(connection.execute(_THIS).scalar_one())


def has_committed(connection: Connection, transaction: str) -> bool | None:
    """Tell what became of a transaction; None: it goes on, or is too long ago."""
    status = connection.execute(_STATUS, {"transaction": transaction}).scalar()
    return _VERDICTS.get(str(status))


def wait_for_locks(connection: Connection, span: str) -> None:
    """Let statements of this transaction fail after waiting ``span`` for a lock."""
    connection.execute(_PATIENCE, {"span": span})
