"""What happens at gates: claims hold or pass, runs end, the held are woken, the late are swept."""

from __future__ import annotations

from collections.abc import Iterator

from dev.verification.explorer import Step, fault, progress
from dev.verification.gate_world import (
    Bar,
    GateSetup,
    GateWorld,
    admits,
    is_locked,
    with_gate,
    with_task,
)

Steps = Iterator[Step[GateWorld]]
ALL = 99


def claim_steps(setup: GateSetup, world: GateWorld, number: int) -> Steps:
    """A claim locks the gates of its task, looks, and commits a moment later."""
    task, gates = world.tasks[number], setup.kinds[number].gates
    locks = setup.rules.claims_lock_their_gates
    shut = [gate for gate in gates if not admits(setup, world, gate, number)]
    looked_at = task.may_run or (task.bar == "nobody has a hand free" and shut)  # by the scan
    if task.place == "visible" and looked_at and not (locks and is_locked(setup, world, gates)):
        by = shut[0] if shut else -1
        yield progress(
            f"a claim looks for T{number} and {'holds it' if shut else 'takes it'}",
            with_task(world, number, place="deciding", by=by),
        )
    if task.place == "deciding" and task.by < 0:
        after = with_task(world, number, place="running", tried=True)
        for gate in gates:
            after = with_gate(after, gate, idle=0)
        yield progress(f"T{number} runs", after)
    elif task.place == "deciding":
        after = with_task(world, number, place="held")
        after = with_gate(after, task.by, look=after.gates[task.by].look or "late")
        if setup.rules.who_holds_looks_once_more:
            every = setup.rules.the_held_leave_their_other_places
            for gate in gates if every else (task.by,):
                after = with_gate(after, gate, looks=1)
        yield progress(f"T{number} is held by gate {task.by}", after)


def end_steps(setup: GateSetup, world: GateWorld, number: int) -> Steps:
    """A run ends: for good, or until its retry."""
    task, kind = world.tasks[number], setup.kinds[number]
    if task.place == "running":
        after = world
        if setup.rules.ends_wake_who_waits:
            for gate in kind.gates:
                after = with_gate(after, gate, words=min(2, world.gates[gate].words + 1))
        yield progress(f"T{number} is done", with_task(after, number, place="done", bar=""))
        if left := spent(setup, world, "raise"):
            yield fault(
                f"T{number} raises and waits for its retry",
                with_task(after, number, place="later")._replace(faults_left=left),
            )
    if task.place == "later":
        yield progress(f"T{number} is due again", with_task(world, number, place="visible"))


def waking_steps(setup: GateSetup, world: GateWorld, gate: int) -> Steps:
    """Wake those who wait: after the end of a run, and after a hold."""
    state = world.gates[gate]
    waits = any(task.place == "held" and task.by == gate for task in world.tasks)
    if state.words:
        after = with_gate(world, gate, words=state.words - 1)
        if not waits:
            yield progress(f"after the end of a run nobody waits at gate {gate}", after)
        elif not is_locked(setup, world, (gate,)):
            yield progress(f"the end of a run wakes at gate {gate}", wake(setup, after, gate, 1))
        if left := spent(setup, world, "child crash"):
            yield fault(
                "the child dies before it looks who waits",
                after._replace(words_lost=True, faults_left=left),
            )
    if state.looks:
        after = with_gate(world, gate, looks=0)
        if not waits:
            yield progress(f"a second look finds nobody at gate {gate}", after)
        elif not is_locked(setup, world, (gate,)):
            yield progress(f"a second look wakes at gate {gate}", wake(setup, after, gate, ALL))


def looking_steps(setup: GateSetup, world: GateWorld, gate: int) -> Steps:
    """A gate's next check is due: a second after it woke a task, or long after."""
    state = world.gates[gate]
    if state.look and not is_locked(setup, world, (gate,)):
        after = wake(setup, _idle(setup, world, gate), gate, ALL)
        if state.look == "soon":
            yield progress(f"a second later gate {gate} is looked at", after)
        elif setup.rules.gates_are_looked_at_at_last:
            kind = progress if world.words_lost else fault
            yield kind(f"gate {gate} is looked at at last", after)


def wake(setup: GateSetup, world: GateWorld, gate: int, most: int) -> GateWorld:
    """Wake the held tasks in order: as many as may run, and those in between."""
    woken = 0
    for number, task in enumerate(world.tasks):
        if task.place != "held" or task.by != gate or woken == min(most, 1):
            continue
        if not admits(setup, world, gate, number):
            continue  # it is full, or another one is its head
        others = [other for other in setup.kinds[number].gates if other != gate]
        fits = task.bar in ("", "nobody has a hand free") and all(
            admits(setup, world, other, number) for other in others
        )
        world = with_task(world, number, place="visible", by=-1)
        woken += fits or not setup.rules.wake_ups_go_to_who_may_run
    left = any(task.place == "held" and task.by == gate for task in world.tasks)
    repeats = woken and setup.rules.unused_wake_ups_are_repeated
    return with_gate(world, gate, look=("soon" if repeats else "late") if left else "")


def _idle(setup: GateSetup, world: GateWorld, gate: int) -> GateWorld:
    """Note that a check finds a place free for a waiting task, and no task on its way to it."""
    state = world.gates[gate]
    on_their_way = world.words_lost or any(
        other.words or other.looks or (other.look == "soon" and other is not state)
        for other in world.gates
    )
    wait = False
    for number, (task, kind) in enumerate(zip(world.tasks, setup.kinds, strict=True)):
        if gate in kind.gates and (task.may_run or task.bar == "expired"):
            leaves = task.bar == "expired" and task.place != "done"
            comes = task.place in ("visible", "deciding", "running")
            on_their_way = on_their_way or leaves or comes
            room = all(admits(setup, world, other, number) for other in kind.gates)
            wait = wait or (task.place == "held" and room)
    if on_their_way or not wait:
        return world
    return with_gate(world, gate, idle=2 if state.look == "late" else state.idle + 1)


def leaving_steps(setup: GateSetup, world: GateWorld, number: int) -> Steps:
    task, kind = world.tasks[number], setup.kinds[number]
    waits = task.place in ("visible", "held", "later")
    if waits and "stand still" in kind.may and task.bar in ("", "stands still"):
        if task.bar:
            yield fault(f"the queue of T{number} runs again", _barred(setup, world, number, ""))
        elif left := spent(setup, world, "pause"):
            after = _barred(setup, world, number, "stands still")._replace(faults_left=left)
            yield fault(f"the queue of T{number} is paused", after)
    if waits and "be cancelled" in kind.may:
        after = with_task(world, number, place="done", bar="", by=-1)
        if setup.rules.who_leaves_lets_others_go_on:
            for gate in setup.ordered.intersection(kind.gates):
                after = _next(after, gate)
        yield fault(f"T{number} is cancelled", after)


def sweeping_steps(setup: GateSetup, world: GateWorld, number: int) -> Steps:
    task, kind = world.tasks[number], setup.kinds[number]
    waits = task.place in ("visible", "held", "later")
    if waits and "expire" in kind.may and task.bar != "expired":
        yield fault(f"T{number} expires", _barred(setup, world, number, "expired"))
    everywhere = setup.rules.the_late_leave_wherever_they_stand
    if task.bar == "expired" and (task.place in ("visible", "later") or (waits and everywhere)):
        after = with_task(world, number, place="done", bar="", by=-1)
        if setup.rules.who_leaves_lets_others_go_on:
            for gate in kind.gates:
                after = with_gate(after, gate, looks=1)
        yield progress(f"T{number} is swept", after)


def _barred(setup: GateSetup, world: GateWorld, number: int, bar: Bar) -> GateWorld:
    """Discard what an earlier check found."""
    for gate in setup.kinds[number].gates:
        world = with_gate(world, gate, idle=0)
    return with_task(world, number, bar=bar)


def _next(world: GateWorld, gate: int) -> GateWorld:
    for number, task in enumerate(world.tasks):
        if task.place == "held" and task.by == gate:
            return with_task(world, number, place="visible", by=-1)
    return world


def spent(setup: GateSetup, world: GateWorld, name: str) -> tuple[int, ...]:
    """The faults that are left after one of this name; nothing if there is none."""
    if name not in setup.faults:
        return ()
    place = setup.fault_names.index(name)
    left = list(world.faults_left)
    left[place] -= 1
    return tuple(left) if left[place] >= 0 else ()
