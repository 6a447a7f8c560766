"""What stands where something was erased."""

from __future__ import annotations

import json

from tasks_app.domain.errors import InvalidTaskError

ERASED = "erased"
MARK = "$erased"
BEGIN = f'{{"{MARK}":'
"""With what the JSON text of an erased value begins; the instant follows, and nothing else."""


def is_erased(text: str) -> bool:
    """Whether a stored payload was erased: a user's may have a key of this name beside others."""
    if not text.startswith(BEGIN):
        return False
    try:
        return len(json.loads(text)) == 1
    except (ValueError, RecursionError):
        return False


def check_not_erased(text: str) -> None:
    """Pass if a new payload does not look like an erased one, which reaches no handler.

    Raises:
        InvalidTaskError: it does.
    """
    if is_erased(text):
        raise InvalidTaskError(f"payload.{MARK}", "is alone", "another name, or further keys")
