"""Everything there is in the model of gates: tasks that stand before them, and who looks at what.

A gate lets one run at a time. Everybody else is held, out of sight, until somebody wakes him: the
end of a run, a claim that has held a task and checks once more, or the gate's timed check.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dev.verification.rules import GateRules

Place = Literal["later", "visible", "held", "deciding", "running", "done"]
Bar = Literal["", "stands still", "expired", "nobody has a hand free"]
Soon = Literal["", "soon", "late"]
"""When a gate is checked: never, in a second, or so late that no task waits for it."""


class Task(NamedTuple):
    """One row, as far as gates read it."""

    place: Place = "visible"
    bar: Bar = ""
    by: int = -1
    """The gate that holds it; or, while its claim decides, the gate that will."""
    tried: bool = False
    """It has begun once."""

    @property
    def may_run(self) -> bool:
        return not self.bar


class GateState(NamedTuple):
    """One gate's row, and what processes are about to do with it."""

    look: Soon = ""
    words: int = 0
    """Runs that have ended behind it, and whose child has not looked yet who waits for that."""
    looks: int = 0
    """Claims that have held a task, and are about to look once more."""
    idle: int = 0
    """So many looks in a row left a place free that somebody who may run waited for."""


class GateWorld(NamedTuple):
    """The whole state of the model of gates."""

    tasks: tuple[Task, ...]
    gates: tuple[GateState, ...]
    words_lost: bool
    """A child died between the end of its run and its word: then the late look has to do."""
    faults_left: tuple[int, ...]


class Kind(NamedTuple):
    """A task, the gates that it has to pass, and its possible ends."""

    gates: tuple[int, ...] = (0,)
    bar: Bar = ""
    may: tuple[Literal["stand still", "expire", "retry", "be cancelled"], ...] = ()


@dataclass(frozen=True, slots=True)
class GateSetup:
    """One configuration of the model of gates."""

    kinds: tuple[Kind, ...]
    ordered: frozenset[int] = frozenset()
    """Gates that are order keys: of theirs the first goes, and keeps its place for its retry."""
    faults: dict[str, int] = field(default_factory=dict)
    rules: GateRules = field(default_factory=GateRules)

    @property
    def fault_names(self) -> tuple[str, ...]:
        """In the order of `GateWorld.faults_left`."""
        return tuple(self.faults)


def first_gate_world(setup: GateSetup) -> GateWorld:
    number = 1 + max(gate for kind in setup.kinds for gate in kind.gates)
    return GateWorld(
        tuple(Task(bar=kind.bar) for kind in setup.kinds),
        (GateState(),) * number,
        words_lost=False,
        faults_left=tuple(setup.faults.values()),
    )


def with_task(world: GateWorld, number: int, **changes: object) -> GateWorld:
    tasks = list(world.tasks)
    tasks[number] = tasks[number]._replace(**changes)  # type: ignore[arg-type]
    return world._replace(tasks=tuple(tasks))


def with_gate(world: GateWorld, number: int, **changes: object) -> GateWorld:
    gates = list(world.gates)
    gates[number] = gates[number]._replace(**changes)  # type: ignore[arg-type]
    return world._replace(gates=tuple(gates))


def admits(setup: GateSetup, world: GateWorld, gate: int, number: int) -> bool:
    """Whether this gate has room for this task; an order key has room for its first task only."""
    for other, (task, kind) in enumerate(zip(world.tasks, setup.kinds, strict=True)):
        if gate in kind.gates and other != number:
            if task.place == "running":
                return False
            in_front = other < number and task.place != "done" and task.bar != "expired"
            if in_front and gate in setup.ordered:
                return False
    return True


def is_locked(setup: GateSetup, world: GateWorld, gates: tuple[int, ...]) -> bool:
    """Whether a deciding claim has locked one of these gates."""
    return any(
        task.place == "deciding" and set(kind.gates) & set(gates)
        for task, kind in zip(world.tasks, setup.kinds, strict=True)
    )
