"""How long a failed task waits before it runs again, and how often it may fail.

A policy is written in one line of text, which is also what a row stores:

* ``5s,30s,1m,10m``                  levels: the first failure waits level 1, and so on
* ``fixed 30s``                      the same wait each time
* ``exponential 1s x2 cap 1h``       full jitter: a random wait up to 1s, 2s, 4s … 1h
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Protocol

from tasks_app.domain.durations import Duration, format_duration, parse_duration

DEFAULT_MAX_ATTEMPTS = 3
MOST_LEVELS = 100
MOST_ATTEMPTS = 32_000
"""Fits into a smallint."""
LARGEST_FACTOR = 1_000
"""Its 64th power is still a float."""


class RetryPolicy(Protocol):
    """Any of the three policies below."""

    @property
    def max_attempts(self) -> int:
        """This many charged failures lead to the error pool, unless the task has its own number."""

    def wait(self, level: int, rng: Random) -> timedelta:
        """Return the wait of ``level``, which is 1 after the first failure."""


@dataclass(frozen=True, slots=True)
class Levels:
    """A list of waits; the last one repeats."""

    waits: tuple[timedelta, ...]

    @property
    def max_attempts(self) -> int:
        """One run before the first level and one after each."""
        return len(self.waits) + 1

    def wait(self, level: int, rng: Random) -> timedelta:  # noqa: ARG002  nothing is random
        return self.waits[min(level, len(self.waits)) - 1]

    def __str__(self) -> str:
        return ",".join(map(format_duration, self.waits))


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same wait each time."""

    every: timedelta
    max_attempts: int = DEFAULT_MAX_ATTEMPTS

    def wait(self, level: int, rng: Random) -> timedelta:  # noqa: ARG002  nothing is random
        return self.every

    def __str__(self) -> str:
        return f"fixed {format_duration(self.every)}"


@dataclass(frozen=True, slots=True)
class Exponential:
    """Full jitter: uniform between 0 and ``base * factor ** (level - 1)``, at most ``cap``.

    Full jitter spreads a herd best (Exponential Backoff And Jitter, AWS Architecture Blog, 2015).
    """

    base: timedelta = timedelta(seconds=5)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)
    max_attempts: int = DEFAULT_MAX_ATTEMPTS

    def wait(self, level: int, rng: Random) -> timedelta:
        """Draw a wait; the exponent is bounded so that high levels cannot overflow."""
        ceiling = self.base.total_seconds() * self.factor ** min(level - 1, 64)
        return timedelta(seconds=rng.uniform(0, min(ceiling, self.cap.total_seconds())))

    def __str__(self) -> str:
        base, cap = format_duration(self.base), format_duration(self.cap)
        return f"exponential {base} x{_plain(self.factor)} cap {cap}"


DEFAULT_POLICY: RetryPolicy = Exponential()

_FIXED = re.compile(r"^fixed (\S+)$")
_EXPONENTIAL = re.compile(r"^exponential (\S+) x(\d+(?:\.\d+)?) cap (\S+)$")


def parse_policy(value: str | Sequence[Duration] | RetryPolicy) -> RetryPolicy:
    """Return the policy that ``value`` describes; a sequence is a list of waits.

    Raises:
        ValueError: it is no policy, or one whose text could not be read back from a row.
    """
    if isinstance(value, Levels | Fixed | Exponential):
        return _checked(value)
    if isinstance(value, str):
        if found := _FIXED.match(value):
            return Fixed(parse_duration(found[1]))
        if found := _EXPONENTIAL.match(value):
            return Exponential(
                parse_duration(found[1]), _factor(found[2]), parse_duration(found[3])
            )
        return _levels(value.split(","))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return _levels(value)
    raise ValueError(f"is of type {type(value).__name__}, which is not a retry policy")


def _levels(waits: Sequence[Duration]) -> Levels:
    if not 1 <= len(waits) <= MOST_LEVELS:
        raise ValueError(f"has {len(waits)} levels")
    return Levels(tuple(map(parse_duration, waits)))


def _checked(policy: Levels | Fixed | Exponential) -> RetryPolicy:
    try:
        parse_policy(str(policy))
    except TypeError:
        raise ValueError("has a wait that is not a timedelta") from None
    if not 1 <= policy.max_attempts <= MOST_ATTEMPTS:
        raise ValueError(f"has max_attempts outside 1 .. {MOST_ATTEMPTS}")
    return policy


def _factor(written: str) -> float:
    factor = float(written)
    if factor > LARGEST_FACTOR:
        raise ValueError(f"has a factor above {LARGEST_FACTOR}")
    return factor


def _plain(factor: float) -> str:
    """Write a factor without an exponent, in digits that read back as the same float."""
    return f"{Decimal(repr(factor)):f}".removesuffix(".0")
