"""What a pass of the dispatcher did, and when the next one is worth making."""

from __future__ import annotations

from dataclasses import dataclass, field

AGAIN_S = 0.05
"""Shortest pause between two passes while one due instant follows the other."""
MORE_S = 0.1
"""The pause while there is more than the broker was given: children work that off meanwhile."""
FULL_S = 0.25
"""The same where the broker has no room for more: it holds about a second of work."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What one pass did."""

    published: int = 0
    """Ids in messages."""
    more: bool = False
    """Rows were left over: scan again as soon as there is room."""
    next_due_s: float | None = None
    """In how many seconds the next row becomes due that no hint will announce."""
    depths: dict[str, int] = field(default_factory=dict)
    """How many messages were in the broker before, of queues with some."""

    @property
    def did_something(self) -> bool:
        """Whether the next pass is likely to have something to do, too."""
        return bool(self.published or self.more)

    def again_in(self, interval_s: float) -> float:
        """Return the pause before the next pass: short while work moves, longer without room.

        A scanner with nothing to do wakes up for the next row, not a whole interval after it.
        """
        if self.more:
            return min(interval_s / 4, MORE_S if self.published else FULL_S)
        wanted = interval_s if self.next_due_s is None else max(AGAIN_S, self.next_due_s)
        return min(interval_s, wanted)
