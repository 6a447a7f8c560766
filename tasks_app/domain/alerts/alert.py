"""An alert, and the message that is sent of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any


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
