"""What our own sessions set, whatever the role's or the database's settings are."""

from __future__ import annotations

import os

from sqlalchemy import Connection, make_url

from tasks_app.pool.connection.planner import PLANNED

NETWORK = {
    "client_encoding": "utf8",  # not the role's, which may lack characters; poolers accept it, too
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms: a silent partition is noticed while a lease still holds
}
CHECK = {"client_connection_check_interval": "500"}
"""In ms. Else a killed client's statement holds its locks for as long as it runs."""
BRIEF = {**CHECK, "statement_timeout": "100"}
"""In ms, for statements that others wait behind. The one that is cut off is sent again alone."""
OURS = {
    **CHECK,
    **PLANNED,
    # How values are written and read.
    "IntervalStyle": "postgres",
    "DateStyle": "ISO",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read\\ committed",  # of single statements
    # In ms. Else a housekeeper that waits for a lock looks dead, and its child is killed.
    "lock_timeout": "1000",
    "statement_timeout": "30000",
    # In ms. A process that is stopped or cut off within a transaction must not keep its locks: a
    # scanner's would end all scanning.
    "idle_in_transaction_session_timeout": "5000",
}
UNHURRIED = {
    **CHECK,
    **dict.fromkeys(
        ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"), "0"
    ),
}
FOR_A_TRANSACTION = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', true)"
    for name, value in OURS.items()
    if name != "default_transaction_isolation"  # it is too late for this one
)


def options_of(url: str) -> tuple[str, ...]:
    """Return the options of the URL, or else of the environment, which ours would replace.

    Among them may be a ``search_path`` or a ``role``: without it the pool would be another one.
    """
    options = make_url(url).query.get("options") or os.environ.get("PGOPTIONS") or ()
    return (options,) if isinstance(options, str) else options


def settle_in(connection: Connection) -> None:
    """Apply our settings until the end of the transaction that has just begun."""
    connection.exec_driver_sql(FOR_A_TRANSACTION)
