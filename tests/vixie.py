"""How pg_cron reads an expression and when it starts a job: entry.c and ShouldRunTask, retold.

Shares no line with the product, whose expressions are read by cronsim.
"""

from __future__ import annotations

import re
from datetime import datetime

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun"]
FIELDS = ((0, 59, []), (0, 23, []), (1, 31, []), (1, 12, MONTHS), (0, 7, DAYS))


class UnreadError(Exception):
    """cron.schedule refuses it."""


class Vixie:
    """An expression as pg_cron has it."""

    def __init__(self, expression: str) -> None:
        fields = expression.split()
        if len(fields) != len(FIELDS):
            raise UnreadError
        found = [_list(text, *field) for text, field in zip(fields, FIELDS, strict=True)]
        self._minutes, self._hours, self._days, self._months, weekdays = found
        self._weekdays = weekdays | ({0, 7} if weekdays & {0, 7} else set())
        self._both = fields[2][0] == "*" or fields[4][0] == "*"

    def starts(self, hands: datetime) -> bool:
        day, weekday = hands.day in self._days, hands.isoweekday() % 7 in self._weekdays
        return (
            hands.minute in self._minutes
            and hands.hour in self._hours
            and hands.month in self._months
            and ((day and weekday) if self._both else (day or weekday))
        )


def _list(text: str, low: int, high: int, names: list[str]) -> set[int]:
    """What is behind the last term that can be read is skipped, up to the next blank."""
    found: set[int] = set()
    more = True
    while more:
        numbers, text = _range(text, low, high, names)
        found |= numbers
        more, text = text.startswith(","), text[1:]
    return found


def _range(text: str, low: int, high: int, names: list[str]) -> tuple[set[int], str]:
    if text.startswith("*"):
        first, last, text = low, high, text[1:]
    else:
        first, text = _number(text, low, names)
        if not text.startswith("-"):
            if text.startswith("/") or not low <= first <= high:
                raise UnreadError
            return {first}, text
        last, text = _number(text[1:], low, names)
    step = 1
    if text.startswith("/"):
        step, text = _number(text[1:], 0, [])
    if not (low <= first <= high and low <= last <= high and 0 < step <= high):
        raise UnreadError
    return set(range(first, last + 1, step)), text


def _number(text: str, low: int, names: list[str]) -> tuple[int, str]:
    word = re.match("[0-9A-Za-z]*", text)[0]  # type: ignore[index]  it matches anything
    rest = text[len(word) :]
    if word.lower() in names:
        return names.index(word.lower()) + low, rest
    if not word.isdigit():
        raise UnreadError
    return int(word), rest
