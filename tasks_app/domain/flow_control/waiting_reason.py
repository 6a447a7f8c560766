"""Why a due task stands aside: a kind and its subject, which decide, and a text for people."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class WaitingKind(StrEnum):
    """What ``task_pending.parked_kind`` may say."""

    ORDER = "order"
    QUEUE = "queue"
    NAME = "name"
    KEY = "key"
    BREAKER = "breaker"
    LET_THROUGH = "let_through"
    """Its breaker is not closed, and it may run all the same: a probe, or a part of the ramp."""
    HANDLER = "handler"
    """No live worker of its queue knows its name."""
    ENCRYPTION = "encryption"
    """The worker that claimed it lacks a key to decrypt or encrypt with."""


WORDS: dict[str, str] = {
    WaitingKind.ORDER: "order",
    WaitingKind.QUEUE: "limit queue",
    WaitingKind.NAME: "limit name",
    WaitingKind.KEY: "limit key",
    WaitingKind.BREAKER: "held by breaker",
    WaitingKind.LET_THROUGH: "let through by breaker",
    WaitingKind.HANDLER: "no live worker of this queue has a handler named",
    WaitingKind.ENCRYPTION: "encryption key missing:",
}
"""The text is these words, a blank and the subject. Those of gates also name the rows of
``task_gate``."""


class WaitingReason(NamedTuple):
    """What a row waits for; its text stands in ``parked``."""

    kind: WaitingKind
    subject: str
    """An order key, a queue, a task's name, a limit key, or a breaker's dependency."""

    def __str__(self) -> str:
        return f"{WORDS[self.kind]} {self.subject}"
