"""Logical locks: what may be requested, and what a caller gets back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from tasks_app.domain.durations import Duration
from tasks_app.domain.errors import InvalidLockError, TasksError
from tasks_app.domain.flow_control.admission import Admission
from tasks_app.domain.flow_control.limits import Gate
from tasks_app.domain.handlers.outcomes import Snooze
from tasks_app.domain.tasks.options import Locks, Names
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


StoredLocks = Mapping[str, Any]
_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
OF_HANDLER = "handler"  # the key that tells made names from those that a producer gave


def stored_locks(given: Any) -> dict[str, Any]:
    """Return locks as a row has them; a name, or some, are exclusive. Raises InvalidLockError."""
    if not isinstance(given, str | Locks) and not isinstance(given, list | tuple | set | frozenset):
        problem = f"is of type {type(given).__name__}"
        raise InvalidLockError("locks", problem, "a name, a list of names, or Locks(shared=…)")
    of = given if isinstance(given, Locks) else Locks(given)
    parts = lock_parts(of.exclusive, of.shared, of.counted)
    stored: dict[str, Any] = {
        mode.value: [part.resource for part in parts if part.mode is mode]
        for mode in (LockMode.EXCLUSIVE, LockMode.SHARED)
    }
    stored["counted"] = {part.resource: part.most for part in parts if part.most is not None}
    return {word: names for word, names in stored.items() if names}


def named_locks(locks: StoredLocks, payload: Any) -> dict[str, Any]:
    """Return a handler's locks with the fields of a payload in the names.

    Raises InvalidLockError: a field is missing, or a name cannot be.
    """
    fields = payload if isinstance(payload, Mapping) else {}

    def name(template: str) -> str:
        return _FIELD.sub(lambda found: _text_of(fields, found[1]), template)

    made = Locks(
        dict.fromkeys(map(name, locks.get("exclusive", ()))),
        dict.fromkeys(map(name, locks.get("shared", ()))),
        {name(template): most for template, most in locks.get("counted", {}).items()},
    )
    return {**stored_locks(made), OF_HANDLER: True}


def _text_of(fields: Mapping[Any, Any], word: str) -> str:
    value = fields.get(word)
    if not isinstance(value, str | int | float):
        what = f"is of type {type(value).__name__}" if word in fields else "it lacks"
        problem = f"name the payload's field {word}, which {what}"
        raise InvalidLockError("locks", problem, "text or a number in that field")
    return str(value)


def declared_parts(stored: StoredLocks) -> tuple[LockPart, ...]:
    """Return the group of a row, sorted; of a name that is there twice the stricter one."""
    counted = stored.get("counted", {}).items()
    modes = {name: LockPart(name, LockMode.COUNTED, int(most)) for name, most in counted}
    for mode in (LockMode.SHARED, LockMode.EXCLUSIVE):
        modes |= {name: LockPart(name, mode) for name in stored.get(mode, ())}
    return tuple(modes[name] for name in sorted(modes))


class InLine(NamedTuple):
    """A holder of a resource, or somebody in the line before it."""

    place: int
    mode: LockMode
    who: str
    task_id: int | None
    held: bool


@dataclass(slots=True)
class LockRoom:
    """Whom a resource lets pass: what the tasks want, beside holders and earlier waiters."""

    resource: str
    line: list[InLine]  # holders first, then who waits, by their places
    wanted: dict[int, LockPart]  # by task
    most: int | None = None  # an operator's number of counted holders
    cut: bool = False  # more wait than are in ``line``
    left: list[InLine] = field(default_factory=list)  # places of tasks that passed

    def admits(self, task_id: int) -> bool:
        return self.obstacle(task_id) is None

    def obstacle(self, task_id: int) -> str | None:
        """Return what keeps the task out, in words."""
        part, ahead = self.wanted[task_id], list[InLine]()
        for one in self.line:
            if one.task_id != task_id:
                ahead.append(one)
            elif not one.held:
                break
        else:
            if self.cut:
                return f"{self.resource} is waited for by many"
        if part.mode is LockMode.EXCLUSIVE:
            against = ahead
        else:
            against = [one for one in ahead if one.mode is not part.mode]
        if not against and part.most is not None:
            most = part.most if self.most is None else self.most
            if not most:
                return f"{self.resource} may be held by none"
            against = ahead if len(ahead) >= most else []
        if not against:
            return None
        one = against[0]
        return str(Obstacle(self.resource, one.mode, one.who, one.task_id, held=one.held))

    def enter(self, task_id: int, tokens: int = 0) -> None:  # noqa: ARG002  it has no bucket
        self.leave(task_id)
        self.line.insert(0, InLine(0, self.wanted[task_id].mode, "a task", task_id, held=True))

    def leave(self, task_id: int) -> None:
        """Remove a task that waits."""
        places = self._places(task_id)
        self.left += places
        self.line = [one for one in self.line if one not in places]

    def hold(self, task_id: int) -> None:
        if not self._places(task_id):
            self.line.append(InLine(0, self.wanted[task_id].mode, "a task", task_id, held=False))

    def has_place(self, task_id: int) -> bool:
        """Whether it had one before it passed, or was held."""
        return any(one.place and one.task_id == task_id for one in (*self.line, *self.left))

    def _places(self, task_id: int) -> list[InLine]:
        return [one for one in self.line if one.task_id == task_id and not one.held]


def keep_in_order(admission: Admission, rooms: Mapping[Gate, Any], ids: Iterable[int]) -> None:
    """Let those of ``ids`` that pass, but are not claimed yet, have a place before who is held."""
    waiting = list(ids)
    for gate, held in admission.held.items():
        room = rooms[gate]
        if isinstance(room, LockRoom):
            first = [i for i in waiting if i in room.wanted and not room.has_place(i)]
            held[:0] = first
            waiting = [i for i in waiting if i not in first]
            admission.ids = [i for i in admission.ids if i not in first]
