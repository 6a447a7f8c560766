"""What a pass of the dispatcher did, and when the next one is worth making."""

from __future__ import annotations

from dataclasses import dataclass

AGAIN_S = 0.05
"""Shortest pause between two passes: while rows are left over whose speed is not known, and while
one due instant follows the other."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What one pass did."""

    published: int = 0
    """Ids in new messages."""
    republished: int = 0
    """Messages that went out again."""
    more: bool = False
    """Rows were left over: scan again as soon as there is room."""
    skipped: bool = False
    """Another process was scanning."""
    next_due_s: float | None = None
    """In how many seconds the next row becomes due that no hint will announce."""
    half_s: float | None = None
    """In how many seconds half of what was published will have run, as far as that is known."""
    still: int = 0
    """How many passes before this one published nothing, either."""

    @property
    def did_something(self) -> bool:
        """Whether the next pass is likely to have something to do, too."""
        return bool(self.published or self.republished or self.more)

    def again_in(self, interval_s: float) -> float:
        """Return the pause before the next pass: short while work moves, longer without room.

        A scanner with nothing to do wakes up for the next row, not a whole interval after it.
        """
        if not self.more:
            wanted = interval_s if self.next_due_s is None else max(AGAIN_S, self.next_due_s)
            return min(interval_s, wanted)
        if self.half_s is not None:
            return min(interval_s / 4, self.half_s)
        if self.published:
            return min(interval_s, AGAIN_S)
        return min(interval_s / 4, AGAIN_S * 2.0 ** min(max(0, self.still - 3), 9))
