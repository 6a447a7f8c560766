"""How long a failed task waits before it runs again, and how often it may fail.

A policy is written in one line of text, which is also what a row stores:

* ``5s,30s,1m,10m``                  levels: the first failure waits level 1, and so on
* ``fixed 30s``                      the same wait each time
* ``exponential 1s x2 cap 1h``       full jitter: a random wait up to 1s, 2s, 4s … 1h

``5s,30s,1m jitter 10%`` and ``fixed 30s jitter 10%`` wait up to a tenth longer, at random.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Protocol

from tasks_app.domain.durations import (
    LONGEST,
    NO_DURATION,
    Duration,
    format_duration,
    parse_duration,
)

DEFAULT_MAX_ATTEMPTS = 3
MOST_LEVELS = 100
MOST_JITTER = 100  # percent
MOST_ATTEMPTS = 32_000  # fits into a smallint
LARGEST_FACTOR = 1_000  # its 64th power is still a float
RETRIES = "such as '5s,30s,1m', 'fixed 30s' or 'exponential 5s x2 cap 1h'"


class RetryPolicy(Protocol):
    """One of the three policies below."""

    @property
    def max_attempts(self) -> int:
        """This many charged failures lead to the error pool, unless the task has its own number."""

    def wait(self, level: int, rng: Random) -> timedelta:
        """Return the wait of ``level``, which is 1 after the first failure."""


@dataclass(frozen=True, slots=True)
class Levels:
    """A list of waits; the last one repeats. Each is longer by up to ``jitter`` percent."""

    waits: tuple[timedelta, ...]
    jitter: int = 0

    @property
    def max_attempts(self) -> int:
        """One run before the first level and one after each."""
        return len(self.waits) + 1

    def wait(self, level: int, rng: Random) -> timedelta:
        return _add_jitter(self.waits[min(level, len(self.waits)) - 1], self.jitter, rng)

    def __str__(self) -> str:
        return ",".join(map(format_duration, self.waits)) + _format_jitter(self.jitter)


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same wait each time, longer by up to ``jitter`` percent."""

    every: timedelta
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    jitter: int = 0

    def wait(self, level: int, rng: Random) -> timedelta:  # noqa: ARG002  each is the same
        return _add_jitter(self.every, self.jitter, rng)

    def __str__(self) -> str:
        return f"fixed {format_duration(self.every)}{_format_jitter(self.jitter)}"


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
        factor = f"{Decimal(repr(self.factor)):f}".removesuffix(".0")  # all digits, no exponent
        return f"exponential {base} x{factor} cap {cap}"


DEFAULT_POLICY: RetryPolicy = Exponential()

_JITTER = re.compile(r"^(.*\S) jitter (\d{1,3})%$", re.DOTALL)
_FIXED = re.compile(r"^fixed (\S+)$")
_EXPONENTIAL = re.compile(r"^exponential (\S+) x(\d+(?:\.\d+)?) cap (\S+)$")


def parse_policy(value: str | Sequence[Duration] | RetryPolicy) -> RetryPolicy:
    """Return the policy in ``value``; a sequence is a list of waits; raises ValueError."""
    if isinstance(value, Levels | Fixed | Exponential):
        return _checked(value)
    if isinstance(value, str):
        return _parse(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return _levels(value)
    raise ValueError(f"is of type {type(value).__name__}, which is not a retry policy")


def _checked(policy: Levels | Fixed | Exponential) -> RetryPolicy:
    if not isinstance(policy, Exponential):
        _check_jitter(policy.jitter)
    try:
        parse_policy(str(policy))
    except TypeError:
        raise ValueError("has a wait that is not a timedelta") from None
    if not 1 <= policy.max_attempts <= MOST_ATTEMPTS:
        raise ValueError(f"has max_attempts outside 1 .. {MOST_ATTEMPTS}")
    return policy


def _parse(written: str) -> RetryPolicy:
    if found := _EXPONENTIAL.match(written):
        factor = float(found[2])
        if factor > LARGEST_FACTOR:
            raise ValueError(f"has a factor above {LARGEST_FACTOR}")
        return Exponential(parse_duration(found[1]), factor, parse_duration(found[3]))
    jitter = 0
    if found := _JITTER.match(written):
        written, jitter = found[1], _check_jitter(int(found[2]))
    if found := _FIXED.match(written):
        return Fixed(parse_duration(found[1]), jitter=jitter)
    waits = written.split(",")
    try:
        return _levels(waits, jitter)
    except ValueError as error:
        if len(waits) == 1 and str(error).endswith(NO_DURATION):
            raise ValueError(f"is {written[:40]!r}, which is not a retry policy") from None
        raise


def _levels(waits: Sequence[Duration], jitter: int = 0) -> Levels:
    if not 1 <= len(waits) <= MOST_LEVELS:
        raise ValueError(f"has {len(waits)} levels")
    return Levels(tuple(map(parse_duration, waits)), jitter)


def _check_jitter(jitter: object) -> int:
    if type(jitter) is not int or not 0 <= jitter <= MOST_JITTER:
        raise ValueError(f"has a jitter of {jitter!r:.20}, which is not 0 .. {MOST_JITTER} percent")
    return jitter


def _add_jitter(wait: timedelta, jitter: int, rng: Random) -> timedelta:
    """Return a wait that is never shorter: a caller may depend on 30 s."""
    return min(wait * (1 + rng.random() * jitter / 100), LONGEST) if jitter else wait


def _format_jitter(jitter: int) -> str:
    return f" jitter {jitter}%" if jitter else ""
