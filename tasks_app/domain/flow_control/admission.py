"""Gates: what a task must pass before it may run, and which tasks pass when there is room.

A gate is an order key, or what a limit is set for: a queue, a name, a limit key. The pool reads how
each stands; this decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit


class Waiting(NamedTuple):
    """A task that is due, and what it must pass."""

    task_id: int
    gates: tuple[Gate, ...]


NEVER = datetime.min  # noqa: DTZ901  nobody looked yet


class TokenBucket(NamedTuple):
    """What the row of a gate says of its bucket."""

    tokens: float | None
    """Left at ``since_s`` ago; None: nothing was ever taken."""
    since_s: float
    at: datetime


@dataclass(slots=True, eq=False)
class Capacity:
    """How a gate stands at one moment."""

    free: float
    """How many may pass; infinity: any number."""
    head: int | None = None
    """Of an order key: this one alone."""
    ordered: bool = False
    leaves_s: float = math.inf
    """Seconds until its head expires, which lets the next one pass."""
    tokens: float = math.inf
    """What its bucket holds."""
    running: int = 0
    since: datetime | None = None
    """When the oldest run began; None: nothing runs."""
    at: datetime = NEVER

    def admits(self, task_id: int) -> bool:
        return self.free >= 1 and (not self.ordered or task_id == self.head)


def room_of(
    gate: Gate, limit: Limit | None, running: int, head: int | None, bucket: TokenBucket | None
) -> Capacity:
    """Return how a gate stands, from what runs behind it and what its bucket had left."""
    if gate.kind is GateKind.ORDER:
        free = 1.0 if running == 0 and head is not None else 0.0
        return Capacity(free, head, ordered=True, running=running)
    if limit is None:
        return Capacity(math.inf, running=running)
    free = math.inf if limit.most is None else max(0.0, limit.most - running)
    if limit.burst is None:
        return Capacity(free, running=running)
    left, since_s, at = bucket or _UNTOUCHED
    tokens = limit.tokens(left, since_s)
    return Capacity(max(0.0, min(free, math.floor(tokens))), tokens=tokens, running=running, at=at)


_UNTOUCHED = TokenBucket(None, 0.0, NEVER)


@dataclass(slots=True)
class Admission:
    """The tasks that may run, and those that each gate holds."""

    ids: list[int] = field(default_factory=list)
    held: dict[Gate, list[int]] = field(default_factory=dict)
    behind: set[Gate] = field(default_factory=set)
    """All gates of those that are held."""


def admit(waiting: Sequence[Waiting], rooms: Mapping[Gate, Capacity]) -> Admission:
    """Let pass what finds room at all of its gates, in the order given; hold the others.

    A task that waits for a gate that is not among the rooms is left out: it is looked at again.
    """
    admission = Admission()
    for task_id, gates in waiting:
        passed: list[Capacity] = []
        for gate in gates:
            room = rooms.get(gate)
            if room is None:
                break
            if not room.admits(task_id):
                admission.held.setdefault(gate, []).append(task_id)
                admission.behind.update(gates)
                break
            passed.append(room)
        else:
            for room in passed:
                room.free -= 1
            admission.ids.append(task_id)
    return admission
