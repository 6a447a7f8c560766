"""Generated payloads: most are plain JSON, many hold one thing or another that JSON cannot."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

GOOD: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 1.5, -0.0, 1e23, 5e-324, 1.7976931348623157e308,
    "", "x" * 300, "ä😀", "\u2028", "\\u0000", '"', "\x01\x1f\x7f", "\uffff", "__type__", "null",
)  # fmt: skip
BAD: tuple[Any, ...] = (
    "\x00", "a\x00b", "\ud800", "😀\udfff", float("nan"), float("inf"), -float("inf"), 2**63,
    -(2**63) - 1, 10**5000, Decimal("1.5"), Decimal("NaN"), date(2026, 1, 1), datetime.now(UTC),
    UUID(int=1), b"bytes", bytearray(b"x"), {1, 2}, frozenset(), 1j, object(), int, len, range(3),
    iter([]), ..., Exception("x"),
)  # fmt: skip
BAD_KEYS: tuple[Any, ...] = (1, 1.5, None, True, b"k", (1,), "\x00", "\ud800", UUID(int=1))


class Oddities:
    """Makes one payload after another, and says whether it is plain JSON within the limits."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._spoilers: tuple[Callable[[dict[str, Any]], None], ...] = (
            self._bad_value, self._bad_value, self._bad_key, self._cycle, self._deep, self._long,
        )  # fmt: skip

    def payload(self) -> tuple[Any, bool]:
        """The next one; every third is spoilt somewhere, one in twenty is no object at all."""
        if self._dice.random() < 0.05:
            return self._dice.choice((*BAD, [], [1], "x", 7, True)), False
        whole = {"fuzz": self._value(4), "n": self._dice.getrandbits(40)}
        good = self._dice.random() < 0.67
        if not good:
            self._dice.choice(self._spoilers)(whole)
        return whole, good

    def _value(self, depth: int) -> Any:
        roll = self._dice.random()
        if depth == 0 or roll < 0.5:
            return self._leaf()
        size = self._dice.randint(0, 4)
        if roll < 0.75:
            return [self._value(depth - 1) for _ in range(size)]
        if roll < 0.8:
            return tuple(self._value(depth - 1) for _ in range(size))
        return {self._text(): self._value(depth - 1) for _ in range(size)}

    def _leaf(self) -> Any:
        return self._dice.choice(
            (
                self._dice.choice(GOOD),
                self._dice.randint(-(2**63), 2**63 - 1),
                self._dice.uniform(-1e6, 1e6) * 10.0 ** self._dice.randint(-300, 300),
                self._text(),
            )
        )

    def _text(self) -> str:
        tops = (0x7F, 0xFF, 0xD7FF, 0x10FFFF)
        points = (self._dice.randint(1, self._dice.choice(tops)) for _ in range(6))
        return "".join(chr(p) for p in points if not 0xD800 <= p <= 0xDFFF)

    # -- one wrong thing, anywhere

    def _somewhere(self, whole: dict[str, Any]) -> Any:
        """A container in it, one down to four levels below the top."""
        inner: Any = whole
        for level in range(self._dice.randint(0, 4)):
            below: Any = self._dice.choice(({}, []))
            if isinstance(inner, dict):
                inner[f"level{level}"] = below
            else:
                inner.append(below)
            inner = below
        return inner

    def _put(self, whole: dict[str, Any], value: Any) -> None:
        inner = self._somewhere(whole)
        if isinstance(inner, dict):
            inner["odd"] = value
        else:
            inner.append(value)

    def _bad_value(self, whole: dict[str, Any]) -> None:
        self._put(whole, self._dice.choice(BAD))

    def _bad_key(self, whole: dict[str, Any]) -> None:
        self._put(whole, {self._dice.choice(BAD_KEYS): 1})

    def _cycle(self, whole: dict[str, Any]) -> None:
        self._put(whole, whole)

    def _deep(self, whole: dict[str, Any]) -> None:
        deep: Any = 1
        for _ in range(self._dice.choice((33, 100, 5000))):
            deep = self._dice.choice(([deep], {"d": deep}))
        self._put(whole, deep)

    def _long(self, whole: dict[str, Any]) -> None:
        self._put(whole, self._dice.choice(("x" * 70_000, ["y"] * 70_000, "ä" * 40_000)))
