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

LONGEST_RAMP = 2_000  # tasks per second; all further held tasks are let through at this rate
FIRST_RAMP = 10
LOST_AFTER = timedelta(seconds=10)  # a probe without task and report counts as lost after this


_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")
_MOST_CALLS, _MOST_PROBES = 1_000_000, 1_000
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(days=1)


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    RAMPING = "ramping"


class BreakerMode(StrEnum):
    """Whether the outcomes decide, or an operator has fixed the state."""

    AUTO = "auto"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Breaker:
    """The declaration of a dependency: ``depends_on=Breaker("bank", probes=1)``."""

    dependency: str
    ratio: float = 0.5  # opens it, as the share of failed calls in `window`, if there are `least`
    least: int = 10
    window: timedelta = timedelta(minutes=1)
    open_for: timedelta = timedelta(seconds=30)
    probes: int = 3  # tasks that are let through as a trial; all must succeed


@dataclass(frozen=True, slots=True)
class StoredBreaker:
    breaker: Breaker
    names: Sequence[str]  # handlers that depend on it
    state: BreakerState
    mode: BreakerMode
    since: datetime
    at: datetime  # when this was read, by the database's clock
    look_at: datetime | None
    good: int  # calls within its window, since it is in this state
    bad: int
    let_through: int  # probes of this round; in RAMPING, the size of the last portion
    let_at: datetime | None
    reason: str
    held: int = 0  # held tasks, if they were counted

    @property
    def calls(self) -> str:
        calls = self.good + self.bad
        return f"{self.bad} of {calls} failed" if calls else "none lately"


@dataclass(frozen=True, slots=True)
class BreakerStep:
    state: BreakerState
    look_in: timedelta | None  # when the leader checks it again; None: after the next report
    reason: str = ""


NOW = timedelta(0)
SOON = timedelta(seconds=1)


def check_breaker(breaker: str | Breaker) -> Breaker:
    """Return the declaration; a bare name has the defaults. Raises ValueError."""
    found = Breaker(breaker) if isinstance(breaker, str) else breaker
    if not isinstance(found, Breaker):
        raise ValueError(f"depends_on is of type {type(found).__name__}; a name or a Breaker")
    if not _NAME.match(str(found.dependency)):
        raise ValueError(f"depends_on names {found.dependency!r:.60}, which is not a valid name")
    if not 0 < found.ratio <= 1:
        raise ValueError(f"the ratio of {found.dependency} is not above 0 and up to 1")
    if not 1 <= found.least <= _MOST_CALLS or not 1 <= found.probes <= _MOST_PROBES:
        raise ValueError(f"least or probes of {found.dependency} is out of range")
    if not _SHORTEST <= found.window <= _LONGEST or not _SHORTEST <= found.open_for <= _LONGEST:
        raise ValueError(f"window or open_for of {found.dependency} is not from 1 s to a day")
    return found


def step_after_calls(standing: StoredBreaker) -> BreakerStep | None:
    """Return the step that follows from the outcomes so far; None: it stays."""
    breaker, good, bad = standing.breaker, standing.good, standing.bad
    if standing.mode is not BreakerMode.AUTO or standing.state is BreakerState.OPEN:
        return None
    if standing.state is BreakerState.PROBING:
        if bad:
            return BreakerStep(BreakerState.OPEN, breaker.open_for, "a probe failed")
        return BreakerStep(BreakerState.RAMPING, NOW) if good >= breaker.probes else None
    calls = good + bad
    if calls < breaker.least or bad < breaker.ratio * calls:
        return None
    return BreakerStep(BreakerState.OPEN, breaker.open_for, f"{bad} of {calls} calls failed")


def failures_to_open(standing: StoredBreaker) -> float:
    """Return how many failed calls in a row would open it, or infinity."""
    breaker, calls = standing.breaker, standing.good + standing.bad
    if standing.mode is not BreakerMode.AUTO or standing.state is BreakerState.OPEN:
        return math.inf
    if standing.state is BreakerState.PROBING:
        return 1
    if breaker.ratio == 1:
        return math.inf if standing.good else breaker.least - calls
    missing = (breaker.ratio * calls - standing.bad) / (1 - breaker.ratio)
    return max(breaker.least - calls, missing)


def step_after_wait(standing: StoredBreaker) -> BreakerStep | None:
    """Return the step of an open breaker after its time is over; None: it stays open."""
    if standing.state is not BreakerState.OPEN or standing.mode is not BreakerMode.AUTO:
        return None
    over = standing.at - standing.since >= standing.breaker.open_for
    return BreakerStep(BreakerState.PROBING, NOW) if over else None


def step_by_operator(mode: BreakerMode, state: BreakerState) -> BreakerStep:
    """Return the step that an operator's mode leads to; AUTO leads from OPEN to PROBING."""
    if mode is BreakerMode.OPEN:
        return BreakerStep(BreakerState.OPEN, None, "by an operator")
    if mode is BreakerMode.CLOSED:
        return BreakerStep(BreakerState.CLOSED, NOW, "by an operator")
    closed = state is BreakerState.CLOSED
    return BreakerStep(BreakerState.CLOSED if closed else BreakerState.PROBING, NOW)


def next_ramp(let_through: int) -> int:
    return min(LONGEST_RAMP, max(FIRST_RAMP, 2 * let_through))
