"""What a database refuses to a role, or for the sake of a row, and what to do about it."""

from __future__ import annotations

NOT_GRANTED = "42501"
"""SQLSTATE: insufficient privilege."""
OF_ONE_ROW = ("22", "23", "54", "P0")
"""SQLSTATEs: its data, a constraint, a limit of PostgreSQL's, and what PL/pgSQL of theirs raises.
They would come again, whoever tries."""
MAY_NOT = (
    "This database role may not do that. The owner of the tables gives it what it needs: "
    "tasks-app grants KIND --role ROLE --apply"
)
READ_ONLY = (
    "The database lets this role only read: it is a standby, or default_transaction_read_only is "
    "on for the role or the database. Connect to the primary, or set it off."
)
