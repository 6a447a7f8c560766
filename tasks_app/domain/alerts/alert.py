"""An alert, and the message that is sent of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks_app.domain.finding import Finding, Level


@dataclass(frozen=True, slots=True)
class Alert:
    """Something is wrong; ``key`` stays the same as long as it is the same trouble."""

    key: str
    fact: str
    advice: str


def alert_of(key: str, findings: Sequence[Finding]) -> Alert | None:
    """Return the alert of a check; None: it found nothing wrong."""
    bad = [finding for finding in findings if finding.level is not Level.OK]
    if not bad:
        return None
    worst = next((finding for finding in bad if finding.level is Level.FAIL), bad[0])
    more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
    return Alert(key, f"{worst.fact}{more}", worst.advice)


def message_of(key: str, fact: str, advice: str, *, over: bool, alert_id: int) -> dict[str, Any]:
    """Return what is posted: ``id`` and ``status`` together let a receiver drop a repetition."""
    status = "resolved" if over else "firing"
    return {"id": alert_id, "status": status, "key": key, "fact": fact, "advice": advice}
