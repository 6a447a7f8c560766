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


_TEXT = " ".join(
    f"WHEN '{kind}' THEN '{words} '"
    for kind, words in WORDS.items()
    if kind != WaitingKind.ENCRYPTION  # newer than that index
)
PARKED_BY_OLD_CODE = f"""p.state = 'PENDING'
    AND p.parked IS DISTINCT FROM (CASE p.parked_kind {_TEXT} END || p.parked_for)
    AND (p.parked_kind IS DISTINCT FROM '{WaitingKind.ENCRYPTION}'
      OR p.parked IS DISTINCT FROM '{WORDS[WaitingKind.ENCRYPTION]} ' || p.parked_for)"""
"""Text and kind disagree: code of 0.1.0 writes the text alone. In the words of the index
``task_pending_parked_by_old_code``, which else has those alone that wait for a key; both go with
the next release."""
