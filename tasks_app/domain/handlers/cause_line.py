"""A cause in one line that anybody may read: in a log, in Flower.

It has the first line of the exception's text, without any value of the payload: drivers put the
failing row behind the first line, and handlers put values into their messages.
"""

from __future__ import annotations

from typing import Any

from tasks_app.domain.errors import UnreadableTaskError
from tasks_app.domain.handlers.settlement import (
    BAD_OUTCOME,
    BROKEN_OFF,
    CONNECTION_LOST,
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    PROCESS_DIED,
    REFUSED,
    VANISHED,
)
from tasks_app.domain.large_values.reference import reference_in
from tasks_app.domain.tasks.error_text import clean
from tasks_app.domain.tasks.masks import MASK, leaves, without
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.run import Cause

LONGEST_TEXT = 300
HIDDEN = MASK
OUR_WORDS = (
    *(PROCESS_DIED, VANISHED, INTERRUPTED, CONNECTION_LOST, REFUSED, BROKEN_OFF, OUTCOME_UNKNOWN),
    *(BAD_OUTCOME, "disabled", "expired"),
)
"""Causes whose text is our own; no handler's exception has such a name."""


def exception_text(cause: Cause, payload: str | None) -> str:
    """Return an exception's kind and first line, without values of the payload.

    Without a payload, which may be large or elsewhere, its values are unknown: the kind alone.
    """
    line = cause.message.partition("\n")[0]
    if not line:
        return cause.kind
    if cause.kind not in OUR_WORDS:
        line = HIDDEN if payload is None else masked(line, payload)
    return clean(f"{cause.kind}: {line}", LONGEST_TEXT)


def masked(line: str, payload: str) -> str:
    """Replace every value of the payload in the line."""
    document = decoded(payload)
    return HIDDEN if document is None else without(line, leaves(document))


def decoded(text: str) -> Any:
    """Return the value of a JSON text; None: it cannot be read, or is kept outside of its row."""
    if reference_in(text) is not None:
        return None
    try:
        return decode(text, "payload")
    except UnreadableTaskError:
        return None
