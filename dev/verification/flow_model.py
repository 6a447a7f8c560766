"""The model of flows: a step starts when its needs are met, and the release is never lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dev.verification.explorer import Step, fault, progress
from dev.verification.rules import FlowRules

Place = Literal["waits", "due", "runs", "over"]
End = Literal["", "success", "failure", "unneeded"]
After = Literal["success", "failure", "end"]


class FlowStep(NamedTuple):
    """The row of a step's task, and what the flow knows of its end."""

    place: Place
    waits_for: int = 0
    """The counter in the row."""
    end: End = ""
    saw: frozenset[int] = frozenset()
    """Steps that had ended when the statement began that ends this one."""
    ends: End = ""
    """The end that a statement is about to write: it waits for the lock of the flow."""
    ghost: bool = False
    """A worker that lost its lease still runs it, and will write an end."""


class FlowWorld(NamedTuple):
    """The whole state of one flow."""

    steps: tuple[FlowStep, ...]
    unreleased: tuple[int, ...]
    """Ends that were written, and whose followers were not released yet."""
    faults_left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlowSetup:
    """One flow: what each step needs, by its number, and which faults happen."""

    needs: tuple[dict[int, After], ...]
    faults: dict[str, int] = field(default_factory=dict)
    rules: FlowRules = field(default_factory=FlowRules)


Steps = Iterator[Step[FlowWorld]]


def with_step(world: FlowWorld, number: int, **changes: object) -> FlowWorld:
    steps = list(world.steps)
    steps[number] = steps[number]._replace(**changes)  # type: ignore[arg-type]
    return world._replace(steps=tuple(steps))


def is_met(after: After, end: End) -> bool:
    return end != "" and after in ("end", end)


def is_open(after: After, end: End) -> bool:
    """A need that can never be met is not: who requeues such a step wants it to run."""
    return end == "" or (end == "failure" and after == "success")


class FlowModel:
    """One flow with one worker for each step, operators and crashes."""

    def __init__(self, setup: FlowSetup) -> None:
        self._needs, self._rules = setup.needs, setup.rules
        self._names = tuple(setup.faults)
        self._faults = tuple(setup.faults.values())

    def initial(self) -> FlowWorld:
        steps = (
            FlowStep("waits" if needs else "due", waits_for=len(needs)) for needs in self._needs
        )
        return FlowWorld(tuple(steps), (), self._faults)

    def steps(self, world: FlowWorld) -> Steps:
        for number in range(len(world.steps)):
            yield from self._run(world, number)
            yield from self._end(world, number)
            yield from self._operate(world, number)
        for number in world.unreleased:
            left = tuple(each for each in world.unreleased if each != number)
            after = self._release(world._replace(unreleased=left), number)
            yield progress(f"what waits for S{number} is released", after)
            if faults := self._spent(world, "crash"):
                lost = world._replace(unreleased=left, faults_left=faults)
                yield fault(f"the worker dies before it releases what waits for S{number}", lost)

    def _run(self, world: FlowWorld, number: int) -> Steps:
        step = world.steps[number]
        if step.place == "due":
            yield progress(f"S{number} starts", with_step(world, number, place="runs"))
        if step.place == "runs" and not step.ends:
            yield progress(f"S{number} is about to succeed", self._begun(world, number, "success"))
            if left := self._spent(world, "fail"):
                after = self._begun(world, number, "failure")._replace(faults_left=left)
                yield fault(f"S{number} is about to fail", after)
        if step.place == "runs" and (left := self._spent(world, "lease")):
            after = with_step(world, number, place="due", ends="", saw=frozenset(), ghost=True)
            yield fault(
                f"S{number} loses its lease and is due again", after._replace(faults_left=left)
            )

    def _begun(self, world: FlowWorld, number: int, end: End) -> FlowWorld:
        saw = frozenset(n for n, step in enumerate(world.steps) if step.end)
        return with_step(world, number, ends=end, saw=saw)

    def _end(self, world: FlowWorld, number: int) -> Steps:
        """Write an end: the statement has the lock of the flow, and its fence holds."""
        step = world.steps[number]
        if step.ends:
            yield progress(f"S{number} ends in {step.ends}", self._ended(world, number, step.ends))
        if step.ghost:
            after = with_step(world, number, ghost=False)
            yield progress(f"a late end of S{number} is refused", after)
            if not self._rules.late_ends_are_refused:
                late = self._released_by(after, number, "success", step.saw)
                yield fault(f"a late end of S{number} is taken", late)

    def _ended(self, world: FlowWorld, number: int, end: End) -> FlowWorld:
        saw = world.steps[number].saw
        after = with_step(world, number, place="over", end=end, ends="", saw=frozenset())
        if not self._rules.release_and_end_are_one_commit:
            return after._replace(unreleased=(*after.unreleased, number))
        return self._released_by(after, number, end, saw)

    def _release(self, world: FlowWorld, number: int) -> FlowWorld:
        return self._released_by(world, number, world.steps[number].end, frozenset())

    def _released_by(
        self, world: FlowWorld, ended: int, end: End, saw: frozenset[int]
    ) -> FlowWorld:
        """Count the needs down that this end meets, and skip what can never start."""
        for number, needs in enumerate(self._needs):
            step = world.steps[number]
            if ended not in needs or step.place != "waits":
                continue
            if is_met(needs[ended], end):
                left = step.waits_for - 1
                if not self._rules.counts_are_read_under_the_lock:
                    seen = {n: "success" if n in saw else "" for n in needs} | {ended: end}
                    left = sum(not is_met(after, seen[n]) for n, after in needs.items())  # type: ignore[arg-type]
                place = "waits" if left > 0 else "due"
                world = with_step(world, number, waits_for=max(0, left), place=place)
            elif self._rules.what_can_never_start_is_skipped and end in ("success", "unneeded"):
                world = with_step(world, number, place="over", end="unneeded", waits_for=0)
                world = self._released_by(world, number, "unneeded", saw)
        return world

    def _operate(self, world: FlowWorld, number: int) -> Steps:
        step = world.steps[number]
        if step.place in ("waits", "due") and (left := self._spent(world, "cancel")):
            after = with_step(world, number, waits_for=0)
            after = self._ended(after, number, "failure")._replace(faults_left=left)
            yield fault(f"S{number} is cancelled", after)
        if step.place == "over" and step.end != "unneeded" and number not in world.unreleased:
            # A person mends what failed: that a flow can always end well relies on it.
            kind = progress if step.end == "failure" else fault
            left = world.faults_left if step.end == "failure" else self._spent(world, "requeue")
            if left or step.end == "failure":
                after = self._requeued(world, number)._replace(faults_left=left)
                yield kind(f"S{number} is requeued", after)

    def _requeued(self, world: FlowWorld, number: int) -> FlowWorld:
        end = world.steps[number].end
        world = with_step(world, number, place="due", end="", waits_for=0)
        for other, needs in enumerate(self._needs):
            step = world.steps[other]
            if number in needs and step.place == "waits" and not is_open(needs[number], end):
                again = step.waits_for + self._rules.requeues_take_the_end_back
                world = with_step(world, other, waits_for=again)
        if self._rules.who_is_requeued_waits_for_its_needs and (n := self._open(world, number)):
            world = with_step(world, number, place="waits", waits_for=n)
        return world

    def _open(self, world: FlowWorld, number: int) -> int:
        needs = self._needs[number].items()
        return sum(is_open(after, world.steps[n].end) for n, after in needs)

    def broken_promise(self, before: FlowWorld, step: Step[FlowWorld]) -> str | None:
        """No step becomes due before its needs are met, and none waits once they are."""
        for number, (old, new) in enumerate(zip(before.steps, step.after.steps, strict=True)):
            if (
                new.place == "due"
                and old.place in ("waits", "over")
                and self._open(step.after, number)
            ):
                return f"F1: S{number} is due before its needs are met"
            if (
                new.place == "waits"
                and not self._open(step.after, number)
                and not step.after.unreleased
            ):
                return f"F2: the needs of S{number} are met, and it waits"
        return None

    def finished(self, world: FlowWorld) -> bool:
        return all(step.place == "over" and step.end != "failure" for step in world.steps)

    def picture(self, world: FlowWorld) -> str:
        def words(step: FlowStep) -> str:
            place = f"waits for {step.waits_for}" if step.place == "waits" else step.place
            return step.end or (f"ends in {step.ends}" if step.ends else place)

        return "; ".join(f"S{n} {words(step)}" for n, step in enumerate(world.steps))

    def _spent(self, world: FlowWorld, name: str) -> tuple[int, ...]:
        """Return the faults that are left after one of this name; nothing if there is none."""
        if name not in self._names:
            return ()
        place = self._names.index(name)
        left = list(world.faults_left)
        left[place] -= 1
        return tuple(left) if left[place] >= 0 else ()
