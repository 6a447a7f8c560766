"""Logical locks: what may be requested, and what a caller gets back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
MOST_RESOURCES = 100  # in one group: the rows of all of them are locked for a moment
MOST_COUNTED = 1_000_000


class LockMode(StrEnum):
    EXCLUSIVE = "exclusive"  # by one holder
    SHARED = "shared"  # by any number, if no holder has another mode
    COUNTED = "counted"  # by at most `most` at a time


class LockPart(NamedTuple):
    resource: str
    mode: LockMode
    most: int | None = None  # holders of a counted one; an operator's number in task_lock wins


Names = str | Iterable[str]


def lock_parts(
    exclusive: Names = (), shared: Names = (), counted: Mapping[str, int] | None = None
) -> tuple[LockPart, ...]:
    """Return a group, sorted, so that all groups lock in one order; raises InvalidLockError."""
    modes = ((LockMode.EXCLUSIVE, exclusive), (LockMode.SHARED, shared))
    parts = [
        LockPart(_checked(name, mode), mode)
        for mode, names in modes
        for name in ((names,) if isinstance(names, str) else names)
    ]
    number: Any
    for name, number in (counted or {}).items():
        if type(number) is not int or not 1 <= number <= MOST_COUNTED:
            path = f"counted[{name!r}]"[:80]
            raise InvalidLockError(path, "is not a number of holders", f"1 .. {MOST_COUNTED}")
        parts.append(LockPart(_checked(name, LockMode.COUNTED), LockMode.COUNTED, number))
    parts.sort()
    if not parts:
        raise InvalidLockError("locks", "name no resource", "at least one")
    if len(parts) > MOST_RESOURCES:
        allowed = f"at most {MOST_RESOURCES} in one group"
        raise InvalidLockError("locks", f"name {len(parts)} resources", allowed)
    for one, other in pairwise(parts):
        if one.resource == other.resource:
            problem = f"names {one.resource!r} again"
            raise InvalidLockError(other.mode, problem, "each resource once in a group")
    return tuple(parts)


def _checked(name: Any, mode: LockMode) -> str:
    allowed = f"text of 1 to {LONGEST_NAME} characters, such as 'account:7'"
    if not isinstance(name, str):
        raise InvalidLockError(mode, f"has a {type(name).__name__} in it", allowed)
    is_unicode = name.encode(errors="replace").decode() == name  # it has no lone surrogate
    if not 1 <= len(name) <= LONGEST_NAME or "\0" in name or not is_unicode:
        raise InvalidLockError(mode, f"has {name[:40]!r} in it", allowed)
    return name


@dataclass(frozen=True, slots=True)
class LockRequest:
    token: UUID  # made before the request, so the caller can release even if the reply is lost
    parts: tuple[LockPart, ...]
    who: str
    lease: timedelta
    run: Fence | None = None  # the run of the task that requests: its locks end with it

    @property
    def resources(self) -> list[str]:
        return [part.resource for part in self.parts]


class GrantedLocks(NamedTuple):
    fence: int  # higher than that of every earlier holder of one of these resources
    granted_at: datetime


class Obstacle(NamedTuple):
    """A resource that cannot be locked, and one of the holders or waiters in the way."""

    resource: str
    mode: LockMode
    who: str
    task_id: int | None
    since: datetime | None = None  # when it was granted to `who`, or requested
    held: bool = True  # False: `who` also waits, and came earlier

    def __str__(self) -> str:
        whose = f"{self.who} (task {self.task_id})" if self.task_id else self.who
        verb = "is held by" if self.held else "is waited for by"
        return f"{self.resource} {verb} {whose}, {self.mode}"


class LockDeniedError(Snooze, TasksError):
    """The group could not be locked; ``obstacles`` says why. In a handler it acts as a Snooze."""

    def __init__(self, obstacles: tuple[Obstacle, ...], waited_s: float, after: Duration) -> None:
        more = f", and {len(obstacles) - 1} more" if len(obstacles) > 1 else ""
        waited = f" after {waited_s:.1f} s" if waited_s else ""
        first = str(obstacles[0]) if obstacles else "another transaction has locked its rows"
        super().__init__(after, f"Denied{waited}: {first}{more}. Try again later, or wait longer.")
        self.obstacles = obstacles


class LockLostError(TasksError):
    """The lease of the lock ended before the work did, so another holder could get the lock."""

    def __init__(self, resources: Iterable[str]) -> None:
        super().__init__(
            f"The lock on {', '.join(resources)} was lost: its lease ended, and another holder "
            "may have it. Roll back, and start again."
        )


class LostUpdateError(TasksError):
    def __init__(self, row: str) -> None:
        super().__init__(f"{row} was changed since it was read. Read it again, and decide again.")


class LockOrderError(TasksError, RuntimeError):
    """A holder of one group would wait for another group, which can deadlock."""

    def __init__(self, held: Iterable[str]) -> None:
        super().__init__(
            f"This code holds {', '.join(held)} and would wait for more. "
            "Request all of them in one group, or pass wait=0."
        )
