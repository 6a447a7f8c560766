"""The dispatch model: rows, scanners that forget, a lossy and repeating broker, children.

That hints, or another queue, do not starve a task is no dead end, and so no question for this
model: edge tests ask it.
"""

from __future__ import annotations

from dev.verification.dispatch_world import DispatchSetup, DispatchWorld, Scanner, Steps, Task, tidy
from dev.verification.explorer import Step
from dev.verification.receiving import broker_steps, receiving_steps, time_steps, worker_steps
from dev.verification.scanning import listed, scanner_steps

NEED_NOT_END = frozenset({"long", "unknown", "early"})
"""Kinds that nobody may have to wait for."""


class DispatchModel:
    """Steps 2 and 3 of the walk for one configuration."""

    def __init__(self, setup: DispatchSetup) -> None:
        self._setup = setup

    def initial(self) -> DispatchWorld:
        setup = self._setup
        return DispatchWorld(
            tasks=tuple(
                Task("uncommitted" if kind == "commits late" else "pending") for kind in setup.kinds
            ),
            scanners=(Scanner(),) * setup.scanners,
            children=(None,) * setup.children,
            faults_left=tuple(setup.faults.values()),
        )

    def steps(self, world: DispatchWorld) -> Steps:
        for step in self._all_steps(world):
            yield step._replace(after=tidy(self._setup, step.after))

    def _all_steps(self, world: DispatchWorld) -> Steps:
        setup = self._setup
        for number in range(setup.scanners):
            yield from scanner_steps(setup, world, number)
        for number in range(setup.children):
            yield from receiving_steps(setup, world, number)
        for steps in (broker_steps, worker_steps, time_steps):
            yield from steps(setup, world)

    def broken_promise(self, before: DispatchWorld, step: Step[DispatchWorld]) -> str | None:
        """P2, and that the broker never fills up."""
        after = step.after
        for number, (old, new) in enumerate(zip(before.tasks, after.tasks, strict=True)):
            if old.state == "done" and new.state != "done":
                return f"P2: T{number} was done and is {new.state}"
        running = [c.running for c in after.children if c and c.running is not None]
        if len(running) != len(set(running)):
            return "P2: two children run one task"
        if len(after.broker) > self._setup.most_messages:
            return f"H12: the broker holds {len(after.broker)} messages"
        if not before.workers_live and any(
            new.seen and not old.seen
            for old, new in zip(before.scanners, after.scanners, strict=True)
        ):
            return "H12: a message is made for nobody"
        return None

    def finished(self, world: DispatchWorld) -> bool:
        return all(
            task.state == "done" or kind in NEED_NOT_END
            for task, kind in zip(world.tasks, self._setup.kinds, strict=True)
        )

    def picture(self, world: DispatchWorld) -> str:
        rows = [
            f"T{n} {task.state}{task.put_off and f', {task.put_off}'}"
            for n, task in enumerate(world.tasks)
        ]
        broker = ", ".join(f"{'hint ' * m.is_hint}{m.ids}" for m in world.broker) or "empty"
        memories = [
            f"s{n} remembers {listed(scanner.remembered)}"
            for n, scanner in enumerate(world.scanners)
            if scanner.remembered
        ]
        return "; ".join((*rows, f"broker {broker}", *memories))
