"""An alert, and the message that is sent of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

MOST_NAMED = 3
"""Names and queues of an error that a message has."""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something is wrong; ``key`` stays the same as long as it is the same trouble."""

    key: str
    fact: str
    advice: str
    settle: timedelta = timedelta(0)
    """It is told only if it lasts for longer: a deployment is no trouble."""


def message_of(key: str, fact: str, advice: str, *, over: bool, alert_id: int) -> dict[str, Any]:
    """Return what is posted: ``id`` and ``status`` together let a receiver drop a repetition."""
    status = "resolved" if over else "firing"
    return {"id": alert_id, "status": status, "key": key, "fact": fact, "advice": advice}


def cause_in(kind: str, names: Sequence[str], queues: Sequence[str]) -> str:
    """Return an error's class, and whose it is: on a phone nobody looks up a fingerprint."""
    if not names:
        return kind
    queue = "queue" if len(queues) == 1 else "queues"
    return f"{kind} in {_first(names)}, {queue} {_first(queues)}"


def _first(words: Sequence[str]) -> str:
    more = f" and {len(words) - MOST_NAMED} more" * (len(words) > MOST_NAMED)
    return ", ".join(words[:MOST_NAMED]) + more
