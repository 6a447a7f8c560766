"""Parked rows in SQL: what is written when one stands aside and when it comes back."""

from __future__ import annotations

from tasks_app.domain.flow_control.waiting_reason import WORDS, WaitingKind

UNPARKED = "parked = NULL, parked_kind = NULL, parked_for = NULL"
"""The SET of whatever ends a wait."""


def parked_as(kind: WaitingKind, subject: str) -> str:
    """Return the SET that parks a row; ``subject`` is an expression."""
    return f"""parked = '{WORDS[kind]} ' || {subject},
        parked_kind = '{kind}', parked_for = {subject}"""


def is_parked_as(kind: WaitingKind) -> str:
    """Return the condition on the row ``p``; never null, so that it can be negated."""
    return f"p.parked_kind IS NOT DISTINCT FROM '{kind}'"
