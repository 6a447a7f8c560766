"""Half-open ranges of keys: ``low <= {what} < high``; None is no bound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tasks_app.domain.partition.keys import Key, in_utc, write_key


@dataclass(frozen=True, slots=True)
class Range:
    """From ``low`` to before ``high``. That both have one type is not checked here."""

    low: Key | None = None
    high: Key | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", in_utc(self.low))
        object.__setattr__(self, "high", in_utc(self.high))

    def __contains__(self, key: Any) -> bool:
        return (self.low is None or self.low <= key) and (self.high is None or key < self.high)

    def __str__(self) -> str:
        return self.words("key")

    def words(self, what: str) -> str:
        """Return it as people write it; ``what`` names what lies in it."""
        match self.low, self.high:
            case None, None:
                return f"every {what}"
            case None, high:
                return f"{what} < {quoted(high)}"
            case low, None:
                return f"{quoted(low)} <= {what}"
            case low, high:
                return f"{quoted(low)} <= {what} < {quoted(high)}"

    @property
    def bounds(self) -> tuple[Key, ...]:
        return tuple(bound for bound in (self.low, self.high) if bound is not None)

    @property
    def is_reversed(self) -> bool:
        return self._compare(lambda low, high: low > high)

    @property
    def is_empty(self) -> bool:
        return self._compare(lambda low, high: low == high)

    def overlaps(self, other: Range) -> bool:
        """Whether there may be a key in both."""
        return _before(self.low, other.high) and _before(other.low, self.high)

    def _compare(self, judge: Any) -> bool:
        return self.low is not None and self.high is not None and bool(judge(self.low, self.high))


def between(cuts: Iterable[Key]) -> list[Range]:
    """Return the ranges between ascending cuts, the outer ones without an outer bound."""
    bounds = [None, *cuts, None]
    return [Range(low, high) for low, high in pairwise(bounds)]


def quoted(key: Key | None) -> str:
    """Return a key as people read it: text in quotes, shortened."""
    if key is None:
        return "NULL"
    if isinstance(key, str):
        return repr(key if len(key) <= _MOST else key[:_MOST] + "…")
    word = write_key(key)
    return word if len(word) <= _MOST else word[:_MOST] + "…"


_MOST = 60


def _before(low: Any, high: Any) -> bool:
    return low is None or high is None or bool(low < high)
