"""Everything there is in the dispatch model: rows, broker, scanners and their memory, children."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from dev.verification.explorer import Step, fault
from dev.verification.rules import DispatchRules

T = TypeVar("T")

TaskState = Literal["uncommitted", "pending", "running", "done"]
PutOff = Literal["", "not due", "parked"]
TaskKind = Literal[
    "plain",
    "commits late",  # its producer's transaction is still open
    "raises once",  # its first attempt fails and is retried
    "long",  # runs for hours: nobody may have to wait for its end
    "unknown",  # no worker has its handler
    "early",  # written by hand with scan_at before due_at
]


class Task(NamedTuple):
    """One row, as far as scan and claim read it."""

    state: TaskState = "pending"
    raised: bool = False
    put_off: PutOff = ""
    """Why scan_at has not come."""

    @property
    def is_due(self) -> bool:
        """Whether a scan may find it."""
        return self.state == "pending" and not self.put_off


class Message(NamedTuple):
    """A message in the broker: ids, and nothing else."""

    ids: tuple[int, ...]
    is_hint: bool = False
    """From a producer, past the scan; its child then looks by itself at the front."""


class Scanner(NamedTuple):
    """One process that may lead the scan."""

    seen: tuple[int, ...] = ()
    """What its pass has read, and it has not yet published."""
    remembered: tuple[int, ...] = ()
    """What it published lately, each with the scan_at of its row: it leaves these out."""
    reaches_the_broker: bool = True
    must_probe: bool = False
    bookmark: int = -1
    """How far the last pass got; the passes in between go on from here."""
    old: tuple[int, ...] = ()
    """What a pass near the end does not read: their scan_at is before a pass that left nothing."""


class Hands(NamedTuple):
    """A child that works on a message."""

    left: tuple[int, ...]
    running: int | None = None
    looks: bool = False
    """Only hints came for a while: at the end it looks by itself what the queue has."""


class DispatchWorld(NamedTuple):
    """The whole state of the dispatch model."""

    tasks: tuple[Task, ...]
    scanners: tuple[Scanner, ...]
    children: tuple[Hands | None, ...]
    faults_left: tuple[int, ...]
    broker: tuple[Message, ...] = ()
    leader: int | None = None
    workers_live: bool = True
    broker_is_up: bool = True
    deaf: bool = False
    """The workers' consumers hear nothing from the broker."""


@dataclass(frozen=True, slots=True)
class DispatchSetup:
    """One configuration of the dispatch model."""

    kinds: tuple[TaskKind, ...]
    scanners: int = 1
    children: int = 1
    room: int = 1
    """Messages that a pass lets wait in the broker."""
    ids_per_message: int = 2
    faults: dict[str, int] = field(default_factory=dict)
    rules: DispatchRules = field(default_factory=DispatchRules)
    passes_in_between: bool = False
    """There are passes that only fill up: they begin at the bookmark."""
    passes_near_the_end: bool = False
    """Whole passes rest; those in between read what became due since one left nothing."""
    memory_lasts: bool = False
    """Nothing is forgotten in time: nobody may have to wait for that. For once the broker loses
    nothing and children give nothing back, for only time heals that."""

    @property
    def most_messages(self) -> int:
        """Messages that the broker may hold: the room, and what others put there unasked."""
        unasked = ("duplicate", "hint", "leadership lapses")
        return self.room + sum(self.faults.get(name, 0) for name in unasked)


Steps = Iterator[Step[DispatchWorld]]


def rationed(setup: DispatchSetup, name: str, what: str, after: DispatchWorld) -> Steps:
    """Yield the fault, if this configuration has one of its kind left."""
    left = dict(zip(setup.faults, after.faults_left, strict=True))
    if left.get(name):
        left[name] -= 1
        yield fault(what, after._replace(faults_left=tuple(left.values())))


def at(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])


def with_task(world: DispatchWorld, number: int, **changes: Any) -> DispatchWorld:
    task = world.tasks[number]._replace(**changes)
    return world._replace(tasks=at(world.tasks, number, task))


def with_scanner(world: DispatchWorld, number: int, **changes: Any) -> DispatchWorld:
    scanner = world.scanners[number]._replace(**changes)
    return world._replace(scanners=at(world.scanners, number, scanner))


def with_hands(world: DispatchWorld, number: int, hands: Hands) -> DispatchWorld:
    """A message ends when nothing of it is left."""
    is_over = not hands.left and hands.running is None and not hands.looks
    return world._replace(children=at(world.children, number, None if is_over else hands))


def with_message(world: DispatchWorld, message: Message) -> DispatchWorld:
    return world._replace(broker=(*world.broker, message))


def without_message(world: DispatchWorld, message: Message) -> DispatchWorld:
    place = world.broker.index(message)
    return world._replace(broker=(*world.broker[:place], *world.broker[place + 1 :]))


def tidy(setup: DispatchSetup, world: DispatchWorld) -> DispatchWorld:
    """Make equal worlds look equal: the broker has no order, and some ids matter no more.

    What is done is not read again. What runs or is put off comes back with another scan_at, and
    whoever remembers the old one does not mean it.
    """
    moves = setup.rules.memory_knows_scan_at
    gone = {
        number
        for number, task in enumerate(world.tasks)
        if task.state == "done" or (moves and (task.state == "running" or task.put_off))
    }
    scanners = tuple(
        scanner._replace(
            old=tuple(task for task in scanner.old if task not in gone),
            remembered=tuple(sorted({*scanner.remembered} - gone)),
        )
        for scanner in world.scanners
    )
    return world._replace(broker=tuple(sorted(world.broker)), scanners=scanners)
