"""The state of the run model at one moment, and the parameters of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dev.verification.rows import NO_ONE, Fence, Kind, Outcome, Row, State, fence_holds, new_row
from dev.verification.rules import RunRules

DESIGN = RunRules()

Phase = Literal[
    "idle",  # between messages
    "hung",  # the claim was carried out, its reply never comes
    "claimed",  # holds claims, the slot names no running id
    "running",  # a handler runs, the slot names it
    "settling",  # COMMIT is sent
    "outcome unknown",  # an at_most_once COMMIT failed; the error is written until answered
    "leaving",  # its worker was asked to stop, nothing of it runs any more
    "gone",  # the process is dead and nobody replaces it yet
]


class Collected(NamedTuple):
    """An outcome that waits for the housekeeper's next flush."""

    fence: Fence
    outcome: Outcome


class Grave(NamedTuple):
    """The slot of a dead child: it tells which task ran."""

    worker: int
    owner: int
    running: tuple[Fence, ...]


class Reaping(NamedTuple):
    """A housekeeper's progress in reaping a dead child. It read the slot once, at the start."""

    grave: Grave
    half_way: bool = False

    def waits_for(self, row: int | None) -> bool:
        """Whether the charge needs a row that somebody else has locked."""
        return any(fence.id == row for fence in self.grave.running)


class Child(NamedTuple):
    """One worker child: main thread and housekeeper."""

    owner: int
    phase: Phase = "idle"
    token: int = NO_ONE
    todo: tuple[Fence, ...] = ()
    """Claimed, not started."""
    running: tuple[Fence, ...] = ()
    outbox: tuple[Collected, ...] = ()
    returns: tuple[Fence, ...] = ()
    """Releases that the housekeeper repeats until they are answered."""
    suspects: tuple[Fence, ...] = ()
    """Those of them that lost their connection alone, perhaps through their own doing."""
    left_open: tuple[int, ...] = ()
    """Tasks whose writes stand uncommitted on the kept connection; only mutants have such."""
    asked_to_stop: bool = False
    reaping: Reaping | None = None
    is_orphan: bool = False


class LateClaim(NamedTuple):
    """A claim whose sender is dead or has stopped waiting; it may still be carried out."""

    owner: int
    token: int
    ids: tuple[int, ...]


class LateSettle(NamedTuple):
    """A settle whose sender is dead; it may still be carried out."""

    fence: Fence
    outcome: Outcome


class HalfDone(NamedTuple):
    """What a verb of two statements has read; only mutants have such verbs."""

    verb: Literal["rescue", "cancel"]
    id: int
    seen: State


class World(NamedTuple):
    """The whole state of the run model."""

    rows: tuple[Row, ...]
    children: tuple[Child, ...]
    graves: tuple[Grave, ...]
    late: frozenset[LateClaim | LateSettle]
    parent_lives: tuple[bool, ...]
    faults_left: tuple[int, ...]
    half_done: HalfDone | None = None
    before_last_commits: tuple[tuple[Row, ...], ...] = ()
    """Oldest first; kept only where a failover may lose the last commits."""
    held_row: int | None = None
    """The task whose row a person's open transaction has locked."""
    after_outage: bool = False
    """The database was away; rescuers wait for one renewal interval."""
    wrong: str = ""
    """Set by what had no right to happen, where a look at the rows would not show it."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """One configuration of the run model."""

    kinds: tuple[Kind, ...]
    workers: tuple[int, ...] = (0, 0)
    """The worker of each child."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each fault may strike."""
    rules: RunRules = DESIGN
    innocent: tuple[int, ...] = ()
    """Tasks that must never be charged a failure nor end in the error pool (P3)."""
    innocent_crashes: int = 0
    """How many crashes may be counted on an innocent."""
    most_runs: int = 99
    """How often a task that kills may run (P3)."""
    charges_are_deaths: bool = False
    """No handler raises here, so there may be no more failures than deaths (P3)."""
    leases_never_lapse: bool = False
    """Nothing goes wrong with time here, so no handler may start without its fence."""
    counts_attempts: bool = False
    failover_forgets: int = 1
    """How many commits, at most, the replica has not seen."""
    dead_leave_no_statements: bool = False
    """What the dead had sent is never carried out: a smaller world."""

    @property
    def fault_names(self) -> tuple[str, ...]:
        """In the order of `World.faults_left`."""
        return tuple(self.faults)

    def children_of(self, worker: int) -> Iterator[int]:
        return (number for number, its in enumerate(self.workers) if its == worker)


def first_world(setup: RunSetup) -> World:
    return World(
        rows=tuple(new_row(kind) for kind in setup.kinds),
        children=tuple(Child(owner=number + 1) for number in range(len(setup.workers))),
        graves=(),
        late=frozenset(),
        parent_lives=(True,) * (max(setup.workers) + 1),
        faults_left=tuple(setup.faults.values()),
    )


def with_row(world: World, number: int, row: Row) -> World:
    rows = world.rows
    return world._replace(rows=(*rows[:number], row, *rows[number + 1 :]))


def with_child(world: World, number: int, child: Child) -> World:
    children = world.children
    return world._replace(children=(*children[:number], child, *children[number + 1 :]))


def spend(setup: RunSetup, world: World, fault: str) -> World | None:
    """Use up one fault of a kind; None if this configuration has none left."""
    if fault not in setup.faults:
        return None
    index = setup.fault_names.index(fault)
    left = world.faults_left[index]
    if left == 0:
        return None
    faults = world.faults_left
    return world._replace(faults_left=(*faults[:index], left - 1, *faults[index + 1 :]))


def spent(setup: RunSetup, world: World, fault: str) -> int:
    if fault not in setup.faults:
        return 0
    return setup.faults[fault] - world.faults_left[setup.fault_names.index(fault)]


def note_stale_write(world: World, fence: Fence, what: str) -> World:
    """Remember a write that changed a row whose newest claim it does not hold (P6)."""
    row = world.rows[fence.id]
    if row.state == "RUNNING" and row.token == fence.token:
        return world
    return world._replace(wrong=f"P6: {what} of T{fence.id} by one that lost its claim")


def holds(setup: RunSetup, world: World, fence: Fence) -> bool:
    """Whether a write with this fence would find its row."""
    return fence_holds(setup.rules, world.rows[fence.id], fence)


def fences_of(child: Child) -> Iterator[Fence]:
    yield from child.todo
    yield from child.running
    for collected in child.outbox:
        yield collected.fence
    yield from child.returns


def tokens_in_use(world: World) -> set[int]:
    """Every token that anybody still remembers; any other is as good as a new random one."""
    used = {row.token for row in world.rows}
    for child in world.children:
        used.add(child.token)
        used.update(fence.token for fence in fences_of(child))
        if child.reaping is not None:
            used.update(fence.token for fence in child.reaping.grave.running)
    for grave in world.graves:
        used.update(fence.token for fence in grave.running)
    for sent in world.late:
        used.add(sent.token if isinstance(sent, LateClaim) else sent.fence.token)
    return used


def owners_in_use(world: World) -> set[int]:
    used = {row.owner for row in world.rows}
    used.update(child.owner for child in world.children)
    used.update(grave.owner for grave in world.graves)
    used.update(c.reaping.grave.owner for c in world.children if c.reaping is not None)
    used.update(sent.owner for sent in world.late if isinstance(sent, LateClaim))
    return used


def unused_name(used: set[int], child: int, children: int) -> int:
    """A name that nobody remembers; made so that equal worlds look equal."""
    name = child + 1
    while name in used:
        name += children
    return name
