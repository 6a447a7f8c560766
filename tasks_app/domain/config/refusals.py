"""What a database refuses to a role, and what to do about it."""

from __future__ import annotations

NOT_GRANTED = "42501"
"""SQLSTATE: insufficient privilege."""
MAY_NOT = (
    "This database role may not do that. The owner of the tables gives it what it needs: "
    "tasks-app grants KIND --role ROLE --apply"
)
READ_ONLY = (
    "The database lets this role only read: it is a standby, or default_transaction_read_only is "
    "on for the role or the database. Connect to the primary, or set it off."
)
