"""What happens to the steps of a flow: runs, ends that release others, requeues and reruns."""

from __future__ import annotations

from typing import Any, Literal

from dev.verification.explorer import Step, fault, progress
from dev.verification.flow_world import (
    After,
    Change,
    End,
    FlowSetup,
    FlowWorld,
    Place,
    Steps,
    is_met,
    is_open,
    with_step,
)

IDLE: dict[str, Any] = {
    "place": "due",
    "waits_for": 0,
    "ends": "",
    "saw": frozenset[int](),
}
"""A row that neither runs nor waits."""


class FlowSteps:
    """One worker for each step, and operators."""

    def __init__(self, setup: FlowSetup) -> None:
        self._setup, self._rules = setup, setup.rules
        self._names = tuple(setup.faults)

    def _run(self, world: FlowWorld, number: int) -> Steps:
        step = world.steps[number]
        if step.place == "due":
            yield progress(f"S{number} starts", with_step(world, number, place="runs"))
        if step.place == "dated":
            after = with_step(world, number, place="due")
            yield progress(f"the time-out of S{number} comes", after)
        if step.place == "runs" and not step.ends:
            yield from self._begin_an_end(world, number)
        if step.place == "runs" and (left := self._spent(world, "lease")):
            after = with_step(world, number, **IDLE | {"ghost": True})
            yield fault(
                f"S{number} loses its lease and is due again", after._replace(faults_left=left)
            )

    def _begin_an_end(self, world: FlowWorld, number: int) -> Steps:
        own_needs = world.steps[number].own_needs
        if number in self._setup.go_back and not own_needs:
            after = with_step(world, number, own_needs="entered")
            yield progress(f"S{number} commits needs of its own", after)
        elif own_needs == "entered":
            yield progress(f"S{number} is about to go back", self._begun(world, number, "back"))
        else:
            yield progress(f"S{number} is about to succeed", self._begun(world, number, "success"))
        if left := self._spent(world, "fail"):
            after = self._begun(world, number, "failure")._replace(faults_left=left)
            yield fault(f"S{number} is about to fail", after)

    def _begun(self, world: FlowWorld, number: int, end: End | Literal["back"]) -> FlowWorld:
        saw = frozenset(n for n, step in enumerate(world.steps) if step.end)
        return with_step(world, number, ends=end, saw=saw)

    def _end(self, world: FlowWorld, number: int) -> Steps:
        """Write an end: the statement has the lock of the flow, and its fence holds."""
        step = world.steps[number]
        if step.ends == "back":
            if world.change is not None:
                return
            after = with_step(world, number, own_needs="counted", **IDLE)
            if self._rules.who_goes_back_counts_under_the_lock:
                after = self._put_off(after, number)
            elif left := len(self._needs(world, number).keys() - step.saw):
                after = with_step(after, number, place="waits", waits_for=left)
            locks = self._rules.who_goes_back_locks_the_flow
            yield self._changing(progress(f"S{number} goes back", after), world, locks=locks)
        elif step.ends:
            after = self._ended(world, number, step.ends)
            if self._may_write(world, after):
                yield progress(f"S{number} ends in {step.ends}", after)
        if step.ghost:
            after = with_step(world, number, ghost=False)
            yield progress(f"a late end of S{number} is refused", after)
            if not self._rules.late_ends_are_refused:
                late = self._released_by(after, number, "success", step.saw)
                yield fault(f"a late end of S{number} is taken", late)

    def _ended(self, world: FlowWorld, number: int, end: End) -> FlowWorld:
        saw = world.steps[number].saw
        after = with_step(world, number, **IDLE | {"place": "over", "end": end})
        if not self._rules.release_and_end_are_one_commit:
            return after._replace(unreleased=(*after.unreleased, number))
        return self._released_by(after, number, end, saw)

    def _release(self, world: FlowWorld, number: int) -> FlowWorld:
        return self._released_by(world, number, world.steps[number].end, frozenset())

    def _released_by(
        self, world: FlowWorld, ended: int, end: End, saw: frozenset[int]
    ) -> FlowWorld:
        """Count the needs down that this end meets, and skip what can never start."""
        for number in range(len(world.steps)):
            step, needs = world.steps[number], self._needs(world, number)
            if ended not in needs or step.place != "waits":
                continue
            if is_met(needs[ended], end):
                left = step.waits_for - 1
                if not self._rules.counts_are_read_under_the_lock:
                    seen = {n: "success" if n in saw else "" for n in needs} | {ended: end}
                    left = sum(not is_met(after, seen[n]) for n, after in needs.items())  # type: ignore[arg-type]
                world = self._counted(world, number, left)
            elif self._rules.what_can_never_start_is_skipped and end in ("success", "unneeded"):
                world = with_step(world, number, place="over", end="unneeded", waits_for=0)
                world = self._released_by(world, number, "unneeded", saw)
        return world

    def _counted(self, world: FlowWorld, number: int, left: int) -> FlowWorld:
        """Let a step count so many needs; with none it is due, or its time-out begins."""
        place = "waits" if left > 0 else self._free(world, number)
        return with_step(world, number, waits_for=max(0, left), place=place)

    def _free(self, world: FlowWorld, number: int) -> Place:
        is_dated = self._setup.events.get(number) == "dated" and not world.sent
        return "dated" if is_dated else "due"

    # --- operators
    def _operate(self, world: FlowWorld, number: int) -> Steps:
        step = world.steps[number]
        if step.place in ("waits", "dated", "due") and (left := self._spent(world, "cancel")):
            after = self._ended(world, number, "failure")._replace(faults_left=left)
            if self._may_write(world, after):
                yield fault(f"S{number} is cancelled", after)
        if step.place != "over" or number in world.unreleased or world.change is not None:
            return
        requeued = self._requeued(world, number)
        if step.end == "failure":  # a person mends it: that a flow can always end well relies on it
            yield self._changing(progress(f"S{number} is requeued", requeued), world)
        elif step.end == "success" and (left := self._spent(world, "requeue")):
            after = requeued._replace(faults_left=left)
            yield self._changing(fault(f"S{number} is requeued", after), world)
        again = self._rerun(world, number)
        if again != world and (left := self._spent(world, "rerun")):
            rerun = fault(f"a rerun from S{number}", again._replace(faults_left=left))
            yield self._changing(rerun, world, locks=self._rules.reruns_lock_the_flow)

    def _changing(
        self, step: Step[FlowWorld], world: FlowWorld, *, locks: bool = True
    ) -> Step[FlowWorld]:
        """Let others not see what this step writes until it is committed, nor lock its rows."""
        if "rollback" not in self._names:  # with the lock of the flow it is as good as one step
            return step
        rows = enumerate(zip(world.steps, step.after.steps, strict=True))
        change = Change(step.what, tuple((n, new) for n, (old, new) in rows if new != old), locks)
        return step._replace(after=step.after._replace(steps=world.steps, change=change))

    def _may_write(self, world: FlowWorld, after: FlowWorld, *, locks: bool = True) -> bool:
        """Whether no open transaction has the lock of the flow, nor of a row that is written."""
        if world.change is None:
            return True
        rows = dict(world.change.rows)
        return not (world.change.has_flow and locks) and all(
            world.steps[n] == after.steps[n] for n in rows
        )

    def _requeued(self, world: FlowWorld, number: int) -> FlowWorld:
        end = world.steps[number].end
        world = with_step(world, number, end="", **IDLE)
        for other, step in enumerate(world.steps):
            needs = self._needs(world, other)
            if number not in needs or is_open(needs[number], end):
                continue
            if step.place == "waits":
                again = step.waits_for + self._rules.requeues_take_the_end_back
                world = with_step(world, other, waits_for=again)
            world = self._put_off(world, other)
        if self._rules.who_is_requeued_waits_for_its_needs:
            world = self._put_off(world, number)
        return world

    def _rerun(self, world: FlowWorld, first: int) -> FlowWorld:
        """Put back a step and all that hang on it; refused, which changes nothing, if one runs."""
        found = self._reached(world, first)
        running = {n for n in found if world.steps[n].place == "runs"}
        if self._rules.reruns_are_refused_while_a_step_runs and running:
            return world
        found -= running
        for number in found:
            world = with_step(world, number, end="", **IDLE)
        for number in found:
            world = self._put_off(world, number)
        return world

    def _reached(self, world: FlowWorld, first: int) -> set[int]:
        found = {first}
        for number, step in enumerate(world.steps):
            needs = self._needs(world, number)
            ends = {n: world.steps[n].end for n in needs.keys() - found}
            hopeless = any(
                end != "" and not is_met(needs[n], end) and not is_open(needs[n], end)
                for n, end in ends.items()
            )
            if len(ends) < len(needs) and not (step.end == "unneeded" and hopeless):
                found.add(number)
        return found

    def _put_off(self, world: FlowWorld, number: int) -> FlowWorld:
        """Let a step that could start wait for its open needs, or for its time-out."""
        if world.steps[number].place not in ("dated", "due"):
            return world
        return self._counted(world, number, self._open(world, number))

    def _needs(self, world: FlowWorld, number: int) -> dict[int, After]:
        if number in self._setup.go_back and not world.steps[number].own_needs:
            return {}
        return self._setup.needs[number]

    def _open(self, world: FlowWorld, number: int) -> int:
        needs = self._needs(world, number).items()
        event = self._setup.events.get(number) == "counted" and not world.sent
        return event + sum(is_open(after, world.steps[n].end) for n, after in needs)

    def _spent(self, world: FlowWorld, name: str) -> tuple[int, ...]:
        """Return the faults that are left after one of this name; nothing if there is none."""
        if name not in self._names:
            return ()
        place = self._names.index(name)
        left = list(world.faults_left)
        left[place] -= 1
        return tuple(left) if left[place] >= 0 else ()
