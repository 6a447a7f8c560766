"""The dispatch model: rows, ledger, scanners, a lossy and repeating broker, children."""

from __future__ import annotations

from collections.abc import Iterator

from verification.dispatch_world import (
    DispatchSetup,
    DispatchWorld,
    Task,
    first_dispatch_world,
    tidy,
)
from verification.explorer import Step
from verification.receiving import (
    broker_steps,
    reaping_and_rescue_steps,
    receiving_steps,
    worker_and_time_steps,
)
from verification.scanning import scanner_steps

NEED_NOT_END = frozenset({"long", "unknown", "early"})
"""Kinds that nobody may have to wait for."""


class DispatchModel:
    """Steps 2 and 3 of the walk for one configuration."""

    def __init__(self, setup: DispatchSetup) -> None:
        self._setup = setup

    def initial(self) -> DispatchWorld:
        return first_dispatch_world(self._setup)

    def steps(self, world: DispatchWorld) -> Iterator[Step[DispatchWorld]]:
        for step in self._all_steps(world):
            yield step._replace(after=tidy(step.after))

    def _all_steps(self, world: DispatchWorld) -> Iterator[Step[DispatchWorld]]:
        setup = self._setup
        for number in range(setup.scanners):
            yield from scanner_steps(setup, world, number)
        for number in range(setup.children):
            yield from receiving_steps(setup, world, number)
        yield from reaping_and_rescue_steps(setup, world)
        yield from broker_steps(setup, world)
        yield from worker_and_time_steps(setup, world)

    def broken_promise(self, before: DispatchWorld, step: Step[DispatchWorld]) -> str | None:
        """P2, and that the broker never fills up."""
        after = step.after
        for number, (old, new) in enumerate(zip(before.tasks, after.tasks, strict=True)):
            if old.state == "done" and new.state != "done":
                return f"P2: T{number} was done and is {new.state}"
        if len(after.broker) > self._setup.most_messages:
            return f"H12: the broker holds {len(after.broker)} messages"
        return None

    def finished(self, world: DispatchWorld) -> bool:
        return all(
            task.state == "done" or kind in NEED_NOT_END
            for task, kind in zip(world.tasks, self._setup.kinds, strict=True)
        )

    def picture(self, world: DispatchWorld) -> str:
        rows = "; ".join(f"T{n} {words(task)}" for n, task in enumerate(world.tasks))
        ledger = ", ".join(f"#{row.dispatch} {row.ids}" for row in world.ledger) or "empty"
        broker = ", ".join(f"#{m.dispatch} {m.ids}" for m in world.broker) or "empty"
        return f"{rows}; ledger {ledger}; broker {broker}"


def words(task: Task) -> str:
    if task.waiting:
        return f"{task.state}, not due"
    return f"{task.state}, parked" if task.parked else task.state
