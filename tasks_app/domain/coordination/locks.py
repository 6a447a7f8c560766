"""Logical locks: what may be asked for, and what a caller is told.

A group is taken whole or not at all. Two groups get along in a resource if both share it, or if
both count in it and there is room; nobody gets along with ``exclusive``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from tasks_app.domain.durations import Duration
from tasks_app.domain.errors import InvalidLockError, TasksError
from tasks_app.domain.handlers.outcomes import Snooze
from tasks_app.domain.tasks.run import Fence

LONGEST_NAME, LONGEST_WHO = 255, 300
MOST_RESOURCES = 100
"""In one group: the rows of all of them are locked for a moment."""
MOST_COUNTED = 1_000_000


class Mode(StrEnum):
    """How a resource is held."""

    EXCLUSIVE = "exclusive"
    """By one alone."""
    SHARED = "shared"
    """By any number, while nobody holds it otherwise."""
    COUNTED = "counted"
    """By so many at a time."""


class Part(NamedTuple):
    """One resource of a group."""

    resource: str
    mode: Mode
    most: int | None = None
    """How many may count in it; an operator's number in ``task_lock`` wins."""


Names = str | Iterable[str]


def parts_of(
    exclusive: Names = (), shared: Names = (), counted: Mapping[str, int] | None = None
) -> tuple[Part, ...]:
    """Return a group in the one order in which all groups are taken, whoever asks for them.

    Raises:
        InvalidLockError: a name or number cannot be, or a resource is named twice.
    """
    parts = sorted(_parts(exclusive, shared, counted or {}))
    if not parts:
        raise InvalidLockError("locks", "name no resource", "at least one")
    if len(parts) > MOST_RESOURCES:
        raise InvalidLockError(
            "locks", f"name {len(parts)} resources", f"at most {MOST_RESOURCES} in one group"
        )
    for one, next_one in pairwise(parts):
        if one.resource == next_one.resource:
            raise InvalidLockError(
                next_one.mode, f"names {one.resource!r} again", "each resource once in a group"
            )
    return tuple(parts)


def _parts(exclusive: Names, shared: Names, counted: Mapping[str, int]) -> Iterator[Part]:
    for mode, names in ((Mode.EXCLUSIVE, exclusive), (Mode.SHARED, shared)):
        for name in (names,) if isinstance(names, str) else names:
            yield Part(_checked(name, mode), mode)
    number: Any
    for name, number in counted.items():
        if type(number) is not int or not 1 <= number <= MOST_COUNTED:
            raise InvalidLockError(
                f"counted[{name!r}]"[:80], "is no number of holders", f"1 .. {MOST_COUNTED}"
            )
        yield Part(_checked(name, Mode.COUNTED), Mode.COUNTED, number)


def _checked(name: Any, mode: Mode) -> str:
    allowed = f"text of 1 to {LONGEST_NAME} characters, such as 'account:7'"
    if not isinstance(name, str):
        raise InvalidLockError(mode, f"has a {type(name).__name__} in it", allowed)
    if not 1 <= len(name) <= LONGEST_NAME or "\0" in name or not _encodes(name):
        raise InvalidLockError(mode, f"has {name[:40]!r} in it", allowed)
    return name


def _encodes(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Ask:
    """Who wants what."""

    token: UUID
    """Made by whoever asks, before he does: with it a group is released whatever was answered."""
    parts: tuple[Part, ...]
    who: str
    lease: timedelta
    run: Fence | None = None
    """The run of a task that asks: its locks end with it."""

    @property
    def resources(self) -> list[str]:
        """The names, in order."""
        return [part.resource for part in self.parts]


class Granted(NamedTuple):
    """All of the group is held."""

    fence: int
    """Higher than that of everybody who held one of these resources before."""
    granted_at: datetime


class Obstacle(NamedTuple):
    """A resource that cannot be had, and one of those who are in the way."""

    resource: str
    mode: Mode
    who: str
    task_id: int | None
    since: datetime | None = None
    """When it was granted to him, or asked for."""
    held: bool = True
    """False: he waits himself, and came before."""

    def __str__(self) -> str:
        whose = f"{self.who} (task {self.task_id})" if self.task_id else self.who
        verb = "is held by" if self.held else "is waited for by"
        return f"{self.resource} {verb} {whose}, {self.mode}"


class LockDeniedError(Snooze, TasksError):
    """The group could not be had. In a handler it means: later, and charge nothing.

    Attributes:
        obstacles: who was in the way, by resource.
    """

    def __init__(self, obstacles: tuple[Obstacle, ...], waited_s: float, after: Duration) -> None:
        more = f", and {len(obstacles) - 1} more" if len(obstacles) > 1 else ""
        waited = f" after {waited_s:.1f} s" if waited_s else ""
        first = str(obstacles[0]) if obstacles else "its rows are locked by somebody"
        super().__init__(after, f"Denied{waited}: {first}{more}. Try again later, or wait longer.")
        self.obstacles = obstacles


class LockLostError(TasksError):
    """The lock was not held to the end: its lease ended, and somebody took it over."""

    def __init__(self, resources: Iterable[str]) -> None:
        names = ", ".join(resources)
        super().__init__(
            f"The lock on {names} was lost: its lease ended, and somebody else could take it. "
            "Roll back, and begin again."
        )


class LostUpdateError(TasksError):
    """Somebody changed the row since it was read."""

    def __init__(self, row: str) -> None:
        super().__init__(f"{row} was changed since it was read. Read it again, and decide anew.")


class LockOrderError(TasksError, RuntimeError):
    """Who holds a group would wait for another one: so deadlocks begin."""

    def __init__(self, held: Iterable[str]) -> None:
        super().__init__(
            f"This code holds {', '.join(held)} and would wait for more. "
            "Ask for all in one group, or say wait=0."
        )
