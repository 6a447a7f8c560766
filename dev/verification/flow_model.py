"""The model of flows: a step starts when its needs are met, and the release is never lost."""

from __future__ import annotations

from typing import Literal

from dev.verification.explorer import Step, fault, progress
from dev.verification.flow_steps import FlowSteps
from dev.verification.flow_world import FlowStep, FlowWorld, Sender, Steps, with_step


class FlowModel(FlowSteps):
    """One flow, who creates it, who sends the event that it waits for, and what is promised."""

    def initial(self) -> FlowWorld:
        sender: Sender = "to send"
        faults, senders = tuple(self._setup.faults.values()), (sender,) * self._setup.senders
        nothing = FlowWorld((), (), faults, senders=senders)
        return self._created(nothing, saw_event=False) if self._setup.is_there else nothing

    def steps(self, world: FlowWorld) -> Steps:
        if not world.steps:
            yield from self._create(world)
        for number in range(len(world.steps)):
            if world.change is None or number not in dict(world.change.rows):
                yield from self._run(world, number)
                yield from self._end(world, number)
                yield from self._operate(world, number)
        yield from self._send(world)
        if world.change is not None:
            what, rows, _ = world.change
            after = world._replace(change=None)
            for number, row in rows:
                after = with_step(after, number, **row._asdict())
            yield progress(f"{what}: it commits", after)
            if left := self._spent(world, "rollback"):
                after = world._replace(change=None, faults_left=left)
                yield fault(f"{what}: it is rolled back", after)
        for number in world.unreleased:
            left = tuple(each for each in world.unreleased if each != number)
            after = self._release(world._replace(unreleased=left), number)
            yield progress(f"what waits for S{number} is released", after)
            if faults := self._spent(world, "crash"):
                lost = world._replace(unreleased=left, faults_left=faults)
                yield fault(f"the worker dies before it releases what waits for S{number}", lost)

    # The row of the event is locked before the flow, and the flow before its steps.
    def _create(self, world: FlowWorld) -> Steps:
        if not world.creator_saw:
            if "has K" not in world.senders or not self._creator_locks(world):
                saw: Literal["sent", "unsent"] = "sent" if world.sent else "unsent"
                after = world._replace(creator_saw=saw)
                yield progress(f"who creates the flow sees that K is {saw}", after)
            return
        after = world._replace(creator_saw="")
        created = self._created(after, saw_event=world.creator_saw == "sent")
        yield progress("the flow is there", created)
        if left := self._spent(world, "rollback"):
            yield fault("the flow is rolled back", after._replace(faults_left=left))

    def _creator_locks(self, world: FlowWorld) -> bool:
        if self._setup.is_known or world.sent:
            return self._rules.who_waits_locks_the_event
        return self._rules.who_waits_enters_the_event

    def _created(self, world: FlowWorld, *, saw_event: bool) -> FlowWorld:
        nothing = world._replace(
            steps=tuple(FlowStep("due") for _ in self._setup.needs), sent=saw_event
        )
        steps = tuple(self._put_off(nothing, n).steps[n] for n in range(len(nothing.steps)))
        return world._replace(steps=steps)

    def _send(self, world: FlowWorld) -> Steps:
        for number, stage in enumerate(world.senders):
            others = (*world.senders[:number], *world.senders[number + 1 :])
            free = "has K" not in others and not (world.creator_saw and self._creator_locks(world))
            if stage == "to send" and free:
                told = world.sent and self._rules.the_first_event_counts
                what = "is told that K was sent" if told else "locks K"
                after = self._sender(world, number, "done" if told else "has K")
                yield progress(f"sender {number} {what}", after)
            if stage == "has K":
                after = self._sent(self._sender(world, number, "done"))
                if self._may_write(world, after, locks=self._rules.senders_lock_the_flow):
                    yield progress(f"sender {number} commits", after)
                if left := self._spent(world, "rollback"):
                    after = self._sender(world, number, "to send")._replace(faults_left=left)
                    yield fault(f"sender {number} is rolled back", after)

    def _sender(self, world: FlowWorld, number: int, stage: Sender) -> FlowWorld:
        senders = list(world.senders)
        senders[number] = stage
        return world._replace(senders=tuple(senders))

    def _sent(self, world: FlowWorld) -> FlowWorld:
        world = world._replace(sent=True)
        for number, wait in self._setup.events.items():
            place = world.steps[number].place if world.steps else "over"
            if wait == "counted" and place == "waits":
                world = self._counted(world, number, world.steps[number].waits_for - 1)
            if place == "dated" and self._rules.events_bring_dates_forward:
                world = with_step(world, number, place="due")
        return world

    def broken_promise(self, before: FlowWorld, step: Step[FlowWorld]) -> str | None:
        """Return which of F1 to F5 this step breaks."""
        after = step.after
        if not before.steps:
            before = before._replace(steps=tuple(FlowStep("over") for _ in after.steps))
        for number, (old, new) in enumerate(zip(before.steps, after.steps, strict=True)):
            if new.place in ("runs", "over"):
                continue
            is_open = self._open(after, number)
            if new.place == "due":
                # Whose run is lost starts again, though ends were taken back during that run.
                starts_again = new.ghost or (old.place == "due" and "lease" in self._names)
                if is_open and not starts_again:
                    return f"F1: S{number} is due before its needs are met"
                continue
            waits_for_nothing = not is_open and not after.unreleased
            if number in self._setup.events and after.sent and waits_for_nothing:
                return f"F5: K was sent, and S{number} waits"
            if new.place == "waits" and waits_for_nothing:
                return f"F2: the needs of S{number} are met, and it waits"
            if new.waits_for < old.waits_for and not before.unreleased:
                met = self._open(before, number) - is_open
                if old.waits_for - new.waits_for > met:
                    return f"F3: S{number} counts more than was met"
        return self._seen_before_a_rerun(before, after)

    def _seen_before_a_rerun(self, before: FlowWorld, after: FlowWorld) -> str | None:
        """Return who keeps what it has seen of an end that a rerun, not a requeue, takes back."""
        if before.change is None or "rerun" not in before.change.what:
            return None
        pairs = enumerate(zip(before.steps, after.steps, strict=True))
        again = {n for n, (old, new) in pairs if old.place == "over" != new.place}
        for number, step in enumerate(after.steps):
            has_seen = step.place == "over" and step.end != "unneeded"
            if step.place == "runs":
                has_seen = step.own_needs != "entered"  # else it goes back
            if has_seen and (of := again & self._needs(after, number).keys()):
                return f"F4: S{number} has seen the result of S{min(of)}, which runs again"
        return None

    def finished(self, world: FlowWorld) -> bool:
        ended = [step.place == "over" and step.end != "failure" for step in world.steps]
        return bool(ended) and all(ended) and world.change is None

    def picture(self, world: FlowWorld) -> str:
        def words(step: FlowStep) -> str:
            place = f"waits for {step.waits_for}" if step.place == "waits" else step.place
            return step.end or (f"ends in {step.ends}" if step.ends else place)

        return "; ".join(f"S{n} {words(step)}" for n, step in enumerate(world.steps))
