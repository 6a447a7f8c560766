"""Slow passes over the due rows are made rarer, so that they take a small share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """How often slow passes of one kind are made."""

    slow_s: float
    """A faster pass is followed by no rest."""
    rest: float
    """The rest after a slow pass, in multiples of its duration …"""
    longest_rest_s: float
    """… but never longer than this: rows that only such a pass finds would wait too long."""


LONGEST_REST_S = 10.0


@dataclass(frozen=True, slots=True)
class PollPaces:
    """How often one child reads what it need not read each time."""

    front: Pace = Pace(0.01, 200, LONGEST_REST_S)
    """Passes from the front of the index. Slow ones take a two-hundredth of the time, so that of a
    hundred passes hardly one is slow."""
    back: Pace = Pace(0.0, 20, LONGEST_REST_S)
    """Passes that do not go on where the last one ended: a twentieth of the time."""
    empty: Pace = Pace(0.005, 20, 5.0)
    """Polls for a kind of tasks that found none: a twentieth of the time."""


PACES = PollPaces()


@dataclass(slots=True)
class Throttle:
    """Says how long to rest after each pass of one kind."""

    pace: Pace
    _last_s: float = 0.0

    def rest_after(self, took_s: float) -> float:
        """Return the seconds to rest after a pass of ``took_s``: by the faster of the last two.

        One slow pass proves nothing: the machine, or the database, may have stalled meanwhile.
        """
        faster_s, self._last_s = min(took_s, self._last_s), took_s
        if faster_s <= self.pace.slow_s:
            return 0.0
        return min(self.pace.rest * faster_s, self.pace.longest_rest_s)

    def forget(self) -> None:
        """Treat the next pass as the first one."""
        self._last_s = 0.0


class EmptyPollBackoff:
    """A kind of tasks of which the pool has none is polled rarely while there are others.

    To find none, a claim reads all that is due of the other kinds: beside a hundred thousand tasks
    that takes as long as to claim a thousand of them.
    """

    def __init__(
        self, pace: Pace = PACES.empty, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._throttle = Throttle(pace)
        self._clock = clock
        self._until = 0.0

    @property
    def lasts(self) -> bool:
        """Whether to poll for other kinds only, as long as there are some."""
        return self._clock() < self._until

    def looked(self, began: float, *, found: int) -> None:
        """Learn from a poll that began at this instant and is over."""
        now = self._clock()
        if found:
            self._throttle.forget()
            self._until = now
        else:
            self._until = now + self._throttle.rest_after(now - began)
