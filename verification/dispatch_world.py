"""Everything there is in the dispatch model: rows, ledger, broker, scanners, children."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from verification.rules import DispatchRules

TaskState = Literal["uncommitted", "pending", "running", "done"]
TaskKind = Literal[
    "plain",
    "commits late",  # its producer's transaction is still open
    "raises once",  # its first attempt fails and is retried
    "long",  # runs for hours: nobody may have to wait for its end
    "unknown",  # no worker has its handler
    "early",  # written by hand with scan_at before due_at
    "hinted",  # the scan leaves it to its hint for a moment
]

NO_LEDGER_ROW = 0
"""The dispatch id of a hint, and of any message whose ledger row is gone."""


class Task(NamedTuple):
    """One row, as far as scan and ledger read it."""

    state: TaskState = "pending"
    raised: bool = False
    waiting: bool = False
    """It has raised and waits for its next attempt: due_at is not now."""
    parked: bool = False
    left_to_hint: bool = False
    """scan_at is HINT_WAIT after due_at."""
    marked: bool = False
    """Only a mutant marks what it has published."""


class LedgerRow(NamedTuple):
    """One dispatch: a message that should be in the broker or held by a child."""

    dispatch: int
    ids: tuple[int, ...]
    hides: tuple[int, ...]
    """The ids that have not been rescheduled since: scan_at <= ledger.created_at."""


class Message(NamedTuple):
    """A message in the broker."""

    dispatch: int
    ids: tuple[int, ...]


class Scanner(NamedTuple):
    """One process that may lead the scan."""

    seen: tuple[int, ...] = ()
    """What its scan has read, and it has not yet written into the ledger."""
    unpublished: Message | None = None
    reaches_the_broker: bool = True
    must_probe: bool = False
    watermark: int = -1
    """Only a mutant remembers how far it got."""
    bookmark: int = -1
    """How far the last pass got; the passes in between go on from here."""
    old: tuple[int, ...] = ()
    """What a pass near the end does not read: their scan_at is before a pass that left nothing."""


class Hands(NamedTuple):
    """A child that works on a message. Also its slot, once it is dead."""

    dispatch: int
    left: tuple[int, ...]
    running: int | None = None


class DispatchWorld(NamedTuple):
    """The whole state of the dispatch model."""

    tasks: tuple[Task, ...]
    ledger: tuple[LedgerRow, ...]
    broker: tuple[Message, ...]
    scanners: tuple[Scanner, ...]
    leader: int | None
    children: tuple[Hands | None, ...]
    graves: tuple[Hands, ...]
    workers_live: bool
    broker_is_up: bool
    deaf: bool
    """The workers' consumers hear nothing from the broker."""
    faults_left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DispatchSetup:
    """One configuration of the dispatch model."""

    kinds: tuple[TaskKind, ...]
    scanners: int = 1
    children: int = 1
    ledger_room: int = 1
    ids_per_message: int = 2
    faults: dict[str, int] = field(default_factory=dict)
    rules: DispatchRules = field(default_factory=DispatchRules)
    passes_in_between: bool = False
    """There are passes that only fill up: they begin at the bookmark."""
    passes_near_the_end: bool = False
    """Whole passes rest; those in between read what became due since one left nothing."""
    ledger_clock_runs: bool = True
    """If not, nobody may have to wait until a ledger row is overdue (and the broker, for once,
    loses nothing, for only this clock heals that)."""

    @property
    def fault_names(self) -> tuple[str, ...]:
        """In the order of `DispatchWorld.faults_left`."""
        return tuple(self.faults)

    @property
    def most_messages(self) -> int:
        """Messages that the broker may hold: the ledger's capacity, and what faults add."""
        extra = sum(self.faults.get(name, 0) for name in ("duplicate", "hint", "impatience"))
        extra += self.faults.get("leadership lapses", 0) + self.faults.get("scanner crash", 0)
        return self.ledger_room + extra


def first_dispatch_world(setup: DispatchSetup) -> DispatchWorld:
    return DispatchWorld(
        tasks=tuple(
            Task(
                "uncommitted" if kind == "commits late" else "pending",
                left_to_hint=kind == "hinted",
            )
            for kind in setup.kinds
        ),
        ledger=(),
        broker=(),
        scanners=(Scanner(),) * setup.scanners,
        leader=None,
        children=(None,) * setup.children,
        graves=(),
        workers_live=True,
        broker_is_up=True,
        deaf=False,
        faults_left=tuple(setup.faults.values()),
    )


def spend_one(setup: DispatchSetup, world: DispatchWorld, fault: str) -> DispatchWorld | None:
    """Use up one fault of a kind; None if this configuration has none left."""
    if fault not in setup.faults:
        return None
    index = setup.fault_names.index(fault)
    left = world.faults_left
    if left[index] == 0:
        return None
    return world._replace(faults_left=(*left[:index], left[index] - 1, *left[index + 1 :]))


def with_task(world: DispatchWorld, number: int, task: Task) -> DispatchWorld:
    tasks = world.tasks
    return world._replace(tasks=(*tasks[:number], task, *tasks[number + 1 :]))


def with_scanner(world: DispatchWorld, number: int, scanner: Scanner) -> DispatchWorld:
    scanners = world.scanners
    return world._replace(scanners=(*scanners[:number], scanner, *scanners[number + 1 :]))


def with_hands(world: DispatchWorld, number: int, hands: Hands | None) -> DispatchWorld:
    children = world.children
    return world._replace(children=(*children[:number], hands, *children[number + 1 :]))


def without_ledger_row(world: DispatchWorld, dispatch: int) -> DispatchWorld:
    """The same world, one room in the ledger freed."""
    return world._replace(ledger=tuple(row for row in world.ledger if row.dispatch != dispatch))


def rescheduled(setup: DispatchSetup, world: DispatchWorld, task: int) -> DispatchWorld:
    """RUNNING -> PENDING: scan_at is now, so no older ledger row hides it (H11)."""
    world = with_task(world, task, world.tasks[task]._replace(state="pending"))
    for number, scanner in enumerate(world.scanners):
        if task in scanner.old:
            old = tuple(other for other in scanner.old if other != task)
            world = with_scanner(world, number, scanner._replace(old=old))
    if not setup.rules.ledger_hides_only_what_it_saw:
        return world
    return world._replace(ledger=tuple(hides_no_more(row, task) for row in world.ledger))


def hides_no_more(row: LedgerRow, task: int) -> LedgerRow:
    """The task's scan_at is now later than the row's created_at."""
    return row._replace(hides=tuple(other for other in row.hides if other != task))


def tidy(world: DispatchWorld) -> DispatchWorld:
    """Make equal worlds look equal: number the ledger anew, forget ids that it has lost."""
    ledger = sorted(world.ledger, key=lambda row: (row.ids, row.hides, row.dispatch))
    new_name = {row.dispatch: place for place, row in enumerate(ledger, start=1)}

    def renamed(message: Message) -> Message:
        return Message(new_name.get(message.dispatch, NO_LEDGER_ROW), message.ids)

    def renamed_hands(hands: Hands) -> Hands:
        return hands._replace(dispatch=new_name.get(hands.dispatch, NO_LEDGER_ROW))

    return world._replace(
        ledger=tuple(row._replace(dispatch=new_name[row.dispatch]) for row in ledger),
        broker=tuple(sorted(renamed(message) for message in world.broker)),
        scanners=tuple(
            scanner
            if scanner.unpublished is None
            else scanner._replace(unpublished=renamed(scanner.unpublished))
            for scanner in world.scanners
        ),
        children=tuple(None if c is None else renamed_hands(c) for c in world.children),
        graves=tuple(renamed_hands(grave) for grave in world.graves),
    )
