"""Held rows in SQL: due so late that neither claim nor scan finds them; their date stands beside.

One that expires is due when it has expired, so that the scan ends it then: no claim takes it. A row
that somebody's SQL made due again is not held, though its date still stands beside.
"""

from __future__ import annotations

FAR = "timestamptz '9899-01-01Z'"
"""Below the bound of ``moments_are_readable``."""
_FAR_OFF = "timestamptz '9500-01-01Z'"
"""Behind all that a producer may ask for, and before ``FAR`` in a test that lets time pass."""

HELD_DUE = f"CASE WHEN p.expires_at IS NULL THEN {FAR} ELSE greatest(p.due_at, p.expires_at) END"
"""When a row is due while it is held; made of it before it is held."""


def is_held(alias: str = "p") -> str:
    """Return the condition that a PENDING row is held; never null."""
    return f"""({alias}.held_due_at IS NOT NULL
        AND {alias}.due_at >= coalesce({alias}.expires_at, {_FAR_OFF}))"""


def own_date(alias: str = "p") -> str:
    """Return the date of a row that may be held: the one that it would have otherwise."""
    return f"CASE WHEN {is_held(alias)} THEN {alias}.held_due_at ELSE {alias}.due_at END"
