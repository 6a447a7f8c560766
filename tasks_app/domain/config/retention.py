"""What is kept of tasks that are over, and how long.

Ages: ``30d``, ``forever``, or ``30d,mail.send=1d,audit.write=forever``, for single names.
History: ``all``, or ``all,bulk=none,mail=failures``, for single queues.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from tasks_app.domain.durations import format_duration, parse_duration
from tasks_app.domain.tasks.options import NAME, QUEUE

FOREVER = "forever"
Age = timedelta | None  # None: forever


@dataclass(frozen=True, slots=True)
class Keep:
    age: Age
    names: dict[str, Age] = field(default_factory=dict)

    @property
    def longest(self) -> Age:
        """The age at which a partition is dropped: it holds all names of a day. None: never."""
        ages = [self.age, *self.names.values()]
        return None if None in ages else max(age for age in ages if age is not None)

    @property
    def shortest(self) -> Age:
        """The age from which a row may be too old; None: never."""
        ages = (self.age, *self.names.values())
        return min((age for age in ages if age is not None), default=None)

    @property
    def early(self) -> dict[str, timedelta]:
        """Names whose rows are deleted before their partition is dropped."""
        longest = self.longest or timedelta.max
        return {name: age for name, age in self.names.items() if age is not None and age < longest}


def parse_keep(text: str) -> Keep:
    """Read the text of a setting; raises ValueError."""
    first, *others = (part.strip() for part in text.split(","))
    names = {}
    for other in others:
        name, equals, age = (part.strip() for part in other.partition("="))
        if not equals or not NAME.match(name):
            raise ValueError(f"{other[:60]!r} is not name=age")
        names[name] = _age(age)
    return Keep(_age(first), names)


def _age(text: str) -> Age:
    if text == FOREVER:
        return None
    age = parse_duration(text)
    if not age:
        raise ValueError("an age of 0")
    return age


def format_age(age: Age) -> str:
    return FOREVER if age is None else format_duration(age)


class HistoryLevel(StrEnum):
    """Which succeeded tasks are kept; others, and members of groups, always are."""

    ALL = "all"
    FAILURES = "failures"  # keeps the succeeded tasks that were claimed more than once
    NONE = "none"


class HistoryLevels(NamedTuple):
    default: HistoryLevel
    queues: dict[str, HistoryLevel]


def parse_histories(text: str) -> HistoryLevels:
    """Read the text of the setting; raises ValueError."""
    first, *others = (part.strip() for part in text.split(","))
    if "=" in first:
        problem = f"{first[:60]!r} is not the history of all other queues"
        raise ValueError(f"{problem}, as in 'all,{first[:60]}'")
    queues = {}
    for other in others:
        queue, equals, history = (part.strip() for part in other.partition("="))
        if not (queue and equals):
            raise ValueError(f"{other[:60]!r} is not queue=history")
        if not QUEUE.fullmatch(queue):
            raise ValueError(f"{queue[:60]!r} is not the name of a queue")
        if queue in queues:
            raise ValueError(f"queue {queue[:60]!r} has two histories")
        queues[queue] = parse_history(history)
    return HistoryLevels(parse_history(first), queues)


def parse_history(text: str) -> HistoryLevel:
    if text not in list(HistoryLevel):
        raise ValueError(f"{str(text)[:60]!r} is not one of {', '.join(HistoryLevel)}")
    return HistoryLevel(text)
