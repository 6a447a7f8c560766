"""Step 5 of the walk: the child's main thread runs what it claimed, one unit at a time."""

from __future__ import annotations

from collections.abc import Iterator

from dev.verification.deaths import child_dies, worker_dies
from dev.verification.explorer import Step, fault, progress
from dev.verification.rows import MANY, Fence, Outcome, started
from dev.verification.world import (
    Child,
    Collected,
    Phase,
    RunSetup,
    World,
    holds,
    spend,
    with_child,
    with_row,
)
from dev.verification.writes import settle


def child_steps(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """Yield what the main thread of one child can do next."""
    match world.children[number].phase:
        case "claimed":
            yield from handler_starts(setup, world, number)
        case "running":
            yield from handler_goes_on(setup, world, number)
        case "settling":
            yield from commit_is_answered(setup, world, number)
        case "outcome unknown":
            fence = world.children[number].running[0]
            written = settle(setup, world, fence, "unknown")
            yield progress(
                f"c{number} writes T{fence.id} down as outcome unknown",
                with_child(written, number, next_task(world.children[number])),
            )
        case _:
            pass


def next_task(child: Child) -> Child:
    """The slot's running id is cleared; the next claimed task is due, if there is one."""
    if child.todo and not child.asked_to_stop:
        return child._replace(phase="claimed", running=())
    phase: Phase = "leaving" if child.asked_to_stop else "idle"
    return child._replace(phase=phase, token=0, running=())


def start(setup: RunSetup, world: World, number: int) -> World:
    """Write the running id into the slot, decode the payload, enter the handler."""
    child = world.children[number]
    fence, rest = child.todo[0], child.todo[1:]
    kind = setup.kinds[fence.id]
    if setup.leases_never_lapse and not holds(setup, world, fence):
        message = f"P6: T{fence.id} starts without its claim, though no lease lapsed"
        world = world._replace(wrong=message)
    world = with_row(world, fence.id, started(kind, world.rows[fence.id]))
    after = child._replace(phase="running", running=(*child.running, fence), todo=rest)
    return with_child(world, number, after)


def handler_starts(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """The next claimed task; some tasks kill before their id is in the slot (H5)."""
    child = world.children[number]
    killers = [f for f in child.todo if setup.kinds[f.id].kills == "child at fetch"]
    if killers:
        guilty = killers[0].id
        row = started(setup.kinds[guilty], world.rows[guilty])
        dead = child_dies(setup, with_row(world, guilty, row), number)
        yield progress(f"reading T{guilty} kills c{number} before any running id", dead)
        return
    first = child.todo[0]
    yield progress(f"c{number} starts T{first.id}", start(setup, world, number))


def handler_goes_on(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """A handler returns, raises, kills or hangs; async ones overlap."""
    child = world.children[number]
    if child.todo and setup.kinds[child.todo[0].id].concurrent:
        also = child.todo[0].id
        yield progress(f"c{number} starts T{also}, too", start(setup, world, number))
    for fence in child.running:
        kind = setup.kinds[fence.id]
        if kind.kills in {"child", "worker"}:
            yield handler_kills(setup, world, number, fence)
        elif kind.kills == "connection":
            suspected = setup.rules.lost_connection_counts_a_crash
            after = connection_is_lost(child, fence, suspected=suspected)
            what = f"T{fence.id} ends its own connection"
            yield progress(what, with_child(world, number, after))
        elif kind.hangs:
            continue
        elif kind.in_session or (kind.at_most_once and setup.rules.at_most_once_is_settled_at_once):
            yield commit_is_sent(setup, world, number, fence)
        else:
            yield outcome_is_collected(world, number, fence, "ok")
        if kind.may_fail:  # what it wrote is rolled back, so only the outcome is left
            step = outcome_is_collected(world, number, fence, "failed")
            if kind.in_session and not setup.rules.kept_connections_are_rolled_back:
                spoiled = step.after.children[number]._replace(left_open=(fence.id,))
                step = step._replace(after=with_child(step.after, number, spoiled))
            yield step


def connection_is_lost(child: Child, fence: Fence, *, suspected: bool) -> Child:
    """Its writes roll back; the housekeeper releases it, and counts a crash if it ran alone."""
    suspects = (*child.suspects, fence) if suspected else child.suspects
    return next_task(child._replace(returns=(*child.returns, fence), suspects=suspects))


def handler_kills(setup: RunSetup, world: World, number: int, fence: Fence) -> Step[World]:
    if setup.kinds[fence.id].kills == "worker":
        worker = setup.workers[number]
        return progress(
            f"T{fence.id} kills the whole worker w{worker}", worker_dies(setup, world, worker)
        )
    return progress(f"T{fence.id} kills c{number}", child_dies(setup, world, number))


def commit_is_sent(setup: RunSetup, world: World, number: int, fence: Fence) -> Step[World]:
    """Time-outs are disarmed, then COMMIT goes out (or the settle of an at_most_once task)."""
    child = world.children[number]
    sent = child._replace(phase="settling")
    if setup.kinds[fence.id].in_session and not setup.rules.effect_and_outcome_are_one_commit:
        row = world.rows[fence.id]
        world = with_row(world, fence.id, row._replace(effects=min(MANY, row.effects + 1)))
        what = f"c{number} commits the effects of T{fence.id}, and then sends its outcome"
        return progress(what, with_child(world, number, sent))
    return progress(f"c{number} sends COMMIT for T{fence.id}", with_child(world, number, sent))


def outcome_is_collected(world: World, number: int, fence: Fence, outcome: Outcome) -> Step[World]:
    """The handler is over; its outcome waits for the housekeeper's flush."""
    child = world.children[number]
    outbox = (*child.outbox, Collected(fence, outcome))
    running = tuple(other for other in child.running if other != fence)
    after = child._replace(outbox=outbox, running=running)
    if not running:
        after = next_task(after)
    what = f"T{fence.id} is over in c{number} ({outcome}); its outcome is collected"
    return progress(what, with_child(world, number, after))


def commit_is_answered(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """The one settle of this task is carried out; or it fails, or its reply is lost."""
    child = world.children[number]
    (fence,) = child.running
    committed = settle(setup, world, fence, "ok")
    for task in child.left_open:
        row = committed.rows[task]
        committed = with_row(committed, task, row._replace(effects=min(MANY, row.effects + 1)))
    answered = with_child(committed, number, next_task(child._replace(left_open=())))
    yield progress(f"T{fence.id} is committed", answered)
    poorer = spend(setup, world, "settle reply lost")
    if poorer is None:
        return
    what = f"c{number}'s COMMIT for T{fence.id} has no answer"
    left = after_failed_commit(setup, child, fence)
    applied = committed._replace(faults_left=poorer.faults_left)
    yield fault(f"{what} (it was applied)", with_child(applied, number, left))
    if not setup.rules.failed_commit_is_released:
        poorer = settle(setup, poorer, fence, "ok, effects lost")
        what = f"{what}, so c{number} settles T{fence.id} again"
    yield fault(f"{what} (it was not applied)", with_child(poorer, number, left))


def after_failed_commit(setup: RunSetup, child: Child, fence: Fence) -> Child:
    """What the child does if it does not know whether a settle was applied."""
    rules, kind = setup.rules, setup.kinds[fence.id]
    if kind.at_most_once and not kind.in_session:
        if rules.running_id_stays_until_answered:
            return child  # nothing can be lost by repeating it
        return next_task(child._replace(outbox=(*child.outbox, Collected(fence, "ok"))))
    if kind.at_most_once and rules.failed_commit_of_at_most_once_is_an_error:
        return child._replace(phase="outcome unknown")
    return next_task(child._replace(returns=(*child.returns, fence)))
