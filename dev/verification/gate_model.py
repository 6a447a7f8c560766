"""The model of gates: if a gate has room and a task that may run waits at it, one runs soon."""

from __future__ import annotations

from collections.abc import Iterator

from dev.verification.explorer import Step
from dev.verification.gate_steps import (
    claim_steps,
    end_steps,
    leaving_steps,
    looking_steps,
    sweeping_steps,
    waking_steps,
)
from dev.verification.gate_world import GateSetup, GateState, GateWorld, Task, first_gate_world

WHIMS = ("stands still", "nobody has a hand free")
"""Bars that nobody but an operator takes away."""


class GateModel:
    """Order keys and limits for one configuration."""

    def __init__(self, setup: GateSetup) -> None:
        self._setup = setup

    def initial(self) -> GateWorld:
        return first_gate_world(self._setup)

    def steps(self, world: GateWorld) -> Iterator[Step[GateWorld]]:
        setup = self._setup
        for number in range(len(world.tasks)):
            yield from claim_steps(setup, world, number)
            yield from end_steps(setup, world, number)
            yield from leaving_steps(setup, world, number)
            yield from sweeping_steps(setup, world, number)
        for gate in range(len(world.gates)):
            yield from waking_steps(setup, world, gate)
            yield from looking_steps(setup, world, gate)

    def broken_promise(self, before: GateWorld, step: Step[GateWorld]) -> str | None:
        """No two run behind a gate, and no place stays free for two seconds."""
        del before
        for gate, state in enumerate(step.after.gates):
            runs = [
                number
                for number, task in enumerate(step.after.tasks)
                if task.place == "running" and gate in self._setup.kinds[number].gates
            ]
            if len(runs) > 1:
                return f"P7: {len(runs)} run at a time behind gate {gate}"
            if state.idle > 1:
                return f"P2: gate {gate} had room for two seconds, and one that may run waited"
        return None

    def finished(self, world: GateWorld) -> bool:
        return all(
            task.place == "done" or task.bar in WHIMS or self._is_behind_one(world, number)
            for number, task in enumerate(world.tasks)
        )

    def _is_behind_one(self, world: GateWorld, number: int) -> bool:
        """Whether an order key's first task stands still: the others wait for it, in order."""
        if world.tasks[number].bar == "expired":
            return False
        ordered = self._setup.ordered.intersection(self._setup.kinds[number].gates)
        return any(
            other < number and task.place != "done" and task.bar in WHIMS
            for other, task in enumerate(world.tasks)
            if ordered.intersection(self._setup.kinds[other].gates)
        )

    def picture(self, world: GateWorld) -> str:
        rows = "; ".join(f"T{n} {words(task)}" for n, task in enumerate(world.tasks))
        gates = "; ".join(f"gate {n}: {outlook(state)}" for n, state in enumerate(world.gates))
        return f"{rows}; {gates}"


def words(task: Task) -> str:
    place = f"held by gate {task.by}" if task.place == "held" else task.place
    return f"{place}, {task.bar}" if task.bar else place


def outlook(gate: GateState) -> str:
    waits = [f"a look {gate.look}"] if gate.look else []
    waits += [f"{gate.words} words"] if gate.words else []
    waits += ["a second look"] if gate.looks else []
    return ", ".join(waits) or "nobody is about to look"
