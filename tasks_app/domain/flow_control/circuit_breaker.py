"""Circuit breakers: what a dependency's failures lead to. Decisions only; the pool keeps the state.

CLOSED: its tasks run. OPEN: they are held, uncharged, for ``open_for``. PROBING: ``probes`` of them
are let through; one failure opens it again. RAMPING: more are let through each second, until none
is held: then it is CLOSED.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

LONGEST_RAMP = 2_000
"""Tasks a second; what is still held above that is let go at that rate."""
FIRST_RAMP = 10
LOST_AFTER = timedelta(seconds=10)
"""A probe that neither waits nor runs, and was not reported for this long, is given up."""


_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")
_MOST_CALLS, _MOST_PROBES = 1_000_000, 1_000
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(days=1)


class BreakerState(StrEnum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    RAMPING = "ramping"


class BreakerMode(StrEnum):
    """Who decides."""

    AUTO = "auto"
    OPEN = "open"
    """An operator: it stays open."""
    CLOSED = "closed"
    """An operator: it stays closed, whatever is reported."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """What code declares of a dependency: ``depends_on=Breaker("bank", probes=1)``."""

    dependency: str
    ratio: float = 0.5
    """Failures among all calls of ``window`` that open it, when there are ``least``."""
    least: int = 10
    window: timedelta = timedelta(minutes=1)
    open_for: timedelta = timedelta(seconds=30)
    probes: int = 3
    """Tasks that are let through to try; all must succeed."""


@dataclass(frozen=True, slots=True)
class BreakerStanding:
    """A breaker as the database has it."""

    breaker: Breaker
    names: Sequence[str]
    """Handlers that depend on it."""
    state: BreakerState
    mode: BreakerMode
    since: datetime
    at: datetime
    """When this was read, by the database's clock."""
    look_at: datetime | None
    good: int
    bad: int
    """Calls within its window, since it is in this state."""
    let_through: int
    """Probes of this round, or how many were let through last while it ramps."""
    let_at: datetime | None
    reason: str
    held: int = 0
    """Tasks that it holds, as far as they were counted."""

    @property
    def calls(self) -> str:
        """What came of those that :attr:`good` and :attr:`bad` count."""
        calls = self.good + self.bad
        return f"{self.bad} of {calls} failed" if calls else "none lately"


@dataclass(frozen=True, slots=True)
class BreakerStep:
    """Where a breaker goes from here."""

    state: BreakerState
    look_in: timedelta | None
    """When the leader looks at it again; None: not before something is reported."""
    reason: str = ""


NOW = timedelta(0)
SOON = timedelta(seconds=1)


def check_breaker(breaker: str | Breaker) -> Breaker:
    """Return what is declared, a bare name with the defaults.

    Raises:
        ValueError: it cannot work.
    """
    found = Breaker(breaker) if isinstance(breaker, str) else breaker
    if not isinstance(found, Breaker):
        raise ValueError(f"depends_on is of type {type(found).__name__}; a name or a Breaker")
    if not _NAME.match(str(found.dependency)):
        raise ValueError(f"depends_on names {found.dependency!r:.60}, which is no name")
    if not 0 < found.ratio <= 1:
        raise ValueError(f"the ratio of {found.dependency} is not above 0 and up to 1")
    if not 1 <= found.least <= _MOST_CALLS or not 1 <= found.probes <= _MOST_PROBES:
        raise ValueError(f"least or probes of {found.dependency} is no such number")
    if not _SHORTEST <= found.window <= _LONGEST or not _SHORTEST <= found.open_for <= _LONGEST:
        raise ValueError(f"window or open_for of {found.dependency} is not from 1 s to a day")
    return found


def judge(standing: BreakerStanding) -> BreakerStep | None:
    """Return what the outcomes so far lead to; None: nothing new."""
    breaker, good, bad = standing.breaker, standing.good, standing.bad
    if standing.mode is not BreakerMode.AUTO:
        return None
    match standing.state:
        case BreakerState.OPEN:
            return None
        case BreakerState.PROBING:
            if bad:
                return BreakerStep(BreakerState.OPEN, breaker.open_for, "a probe failed")
            if good >= breaker.probes:
                return BreakerStep(BreakerState.RAMPING, NOW)
            return None
        case BreakerState.CLOSED | BreakerState.RAMPING:
            calls = good + bad
            if calls >= breaker.least and bad >= breaker.ratio * calls:
                reason = f"{bad} of {calls} calls failed"
                return BreakerStep(BreakerState.OPEN, breaker.open_for, reason)
            return None


def failures_to_open(standing: BreakerStanding) -> float:
    """Return how many failed calls in a row would open it; infinity: none would."""
    breaker, calls = standing.breaker, standing.good + standing.bad
    if standing.mode is not BreakerMode.AUTO or standing.state is BreakerState.OPEN:
        return math.inf
    if standing.state is BreakerState.PROBING:
        return 1
    if breaker.ratio == 1:
        return math.inf if standing.good else breaker.least - calls
    missing = (breaker.ratio * calls - standing.bad) / (1 - breaker.ratio)
    return max(breaker.least - calls, missing)


def after_wait(standing: BreakerStanding) -> BreakerStep | None:
    """Return where an open breaker goes when its time is over; None: it stays."""
    if standing.state is not BreakerState.OPEN or standing.mode is not BreakerMode.AUTO:
        return None
    over = standing.at - standing.since >= standing.breaker.open_for
    return BreakerStep(BreakerState.PROBING, NOW) if over else None


def by_operator(mode: BreakerMode, state: BreakerState) -> BreakerStep:
    """Return where an operator's word leads; from open to the outcomes again: to probes."""
    match mode:
        case BreakerMode.OPEN:
            return BreakerStep(BreakerState.OPEN, None, "by an operator")
        case BreakerMode.CLOSED:
            return BreakerStep(BreakerState.CLOSED, NOW, "by an operator")
        case BreakerMode.AUTO:
            closed = state is BreakerState.CLOSED
            return BreakerStep(BreakerState.CLOSED if closed else BreakerState.PROBING, NOW)


def next_ramp(let_through: int) -> int:
    return min(LONGEST_RAMP, max(FIRST_RAMP, 2 * let_through))
