"""Logical locks: what may be requested, and what a caller gets back."""

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


class LockMode(StrEnum):
    """How a resource is held."""

    EXCLUSIVE = "exclusive"
    """By one."""
    SHARED = "shared"
    """By any number, while nobody holds it in another mode."""
    COUNTED = "counted"
    """By at most ``most`` at a time."""


class LockPart(NamedTuple):
    """One resource of a group."""

    resource: str
    mode: LockMode
    most: int | None = None
    """How many may hold it counted; an operator's number in ``task_lock`` wins."""


Names = str | Iterable[str]


def parts_of(
    exclusive: Names = (), shared: Names = (), counted: Mapping[str, int] | None = None
) -> tuple[LockPart, ...]:
    """Return a group, sorted: all groups are taken in one order.

    Raises:
        InvalidLockError: a name or number is invalid, or a resource is named twice.
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


def _parts(exclusive: Names, shared: Names, counted: Mapping[str, int]) -> Iterator[LockPart]:
    for mode, names in ((LockMode.EXCLUSIVE, exclusive), (LockMode.SHARED, shared)):
        for name in (names,) if isinstance(names, str) else names:
            yield LockPart(_checked(name, mode), mode)
    number: Any
    for name, number in counted.items():
        if type(number) is not int or not 1 <= number <= MOST_COUNTED:
            raise InvalidLockError(
                f"counted[{name!r}]"[:80], "is no number of holders", f"1 .. {MOST_COUNTED}"
            )
        yield LockPart(_checked(name, LockMode.COUNTED), LockMode.COUNTED, number)


def _checked(name: Any, mode: LockMode) -> str:
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
    """A request for a group."""

    token: UUID
    """Made by the caller before the request: it releases the group even if the reply is lost."""
    parts: tuple[LockPart, ...]
    who: str
    lease: timedelta
    run: Fence | None = None
    """The task's run that asks: its locks end with it."""

    @property
    def resources(self) -> list[str]:
        return [part.resource for part in self.parts]


class Granted(NamedTuple):
    """The whole group is held."""

    fence: int
    """Higher than that of every earlier holder of one of these resources."""
    granted_at: datetime


class Obstacle(NamedTuple):
    """A resource that cannot be locked, and one of those who are in the way."""

    resource: str
    mode: LockMode
    who: str
    task_id: int | None
    since: datetime | None = None
    """When ``who`` was granted it, or asked for it."""
    held: bool = True
    """False: ``who`` waits, too, and came earlier."""

    def __str__(self) -> str:
        whose = f"{self.who} (task {self.task_id})" if self.task_id else self.who
        verb = "is held by" if self.held else "is waited for by"
        return f"{self.resource} {verb} {whose}, {self.mode}"


class LockDeniedError(Snooze, TasksError):
    """The group could not be locked. Raised out of a handler, it is a Snooze: nothing is charged.

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
    """The lock was not held to the end: its lease ended, so somebody else could take it."""

    def __init__(self, resources: Iterable[str]) -> None:
        names = ", ".join(resources)
        super().__init__(
            f"The lock on {names} was lost: its lease ended, and somebody else could take it. "
            "Roll back, and begin again."
        )


class LostUpdateError(TasksError):
    """The row was changed since it was read."""

    def __init__(self, row: str) -> None:
        super().__init__(f"{row} was changed since it was read. Read it again, and decide anew.")


class LockOrderError(TasksError, RuntimeError):
    """A holder of one group would wait for another, which can deadlock."""

    def __init__(self, held: Iterable[str]) -> None:
        super().__init__(
            f"This code holds {', '.join(held)} and would wait for more. "
            "Ask for all in one group, or say wait=0."
        )
