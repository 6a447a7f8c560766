"""The other side of the broker: children take messages, work on them, die; reapings, rescue."""

from __future__ import annotations

from collections.abc import Iterator

from verification.dispatch_world import (
    NO_LEDGER_ROW,
    DispatchSetup,
    DispatchWorld,
    Hands,
    Message,
    rescheduled,
    spend_one,
    with_hands,
    with_task,
    without_ledger_row,
)
from verification.explorer import Step, fault, progress

Steps = Iterator[Step[DispatchWorld]]


def receiving_steps(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    hands = world.children[number]
    if hands is None:
        if world.workers_live and not world.deaf:
            yield from takes_a_message(world, number)
        return
    if hands.running is not None:
        yield from goes_on(setup, world, number, hands, hands.running)
    elif hands.left:
        yield claims_next(setup, world, number, hands)
    else:
        after = with_hands(world, number, None)
        if setup.rules.finished_messages_leave_the_ledger:
            after = without_ledger_row(after, hands.dispatch)
        yield progress(f"c{number} has finished its message", after)
    poorer = spend_one(setup, world, "child crash")
    if poorer is not None:
        dead = with_hands(poorer, number, None)._replace(graves=(*poorer.graves, hands))
        yield fault(f"c{number} is killed", dead)


def takes_a_message(world: DispatchWorld, number: int) -> Steps:
    """The broker guarantees no order."""
    for place, message in enumerate(world.broker):
        rest = (*world.broker[:place], *world.broker[place + 1 :])
        hands = Hands(message.dispatch, message.ids)
        what = f"c{number} takes the message {message.ids}"
        yield progress(what, with_hands(world._replace(broker=rest), number, hands))


def claims_next(
    setup: DispatchSetup, world: DispatchWorld, number: int, hands: Hands
) -> Step[DispatchWorld]:
    """Compare-and-set; an id that cannot be claimed is dropped, one that cannot run is parked."""
    task, rest = hands.left[0], hands._replace(left=hands.left[1:])
    row, kind = world.tasks[task], setup.kinds[task]
    if kind == "unknown" and row.state == "pending":
        if setup.rules.what_cannot_run_is_parked:
            world = with_task(world, task, row._replace(parked=True))
        what = f"c{number} does not know T{task}"
    elif row.waiting or (kind == "early" and row.state == "pending"):
        what = f"c{number} drops T{task}, which is not due"
    elif row.state == "pending" or not setup.rules.claims_compare_and_set:
        world = with_task(world, task, row._replace(state="running", left_to_hint=False))
        rest = rest._replace(running=task)
        what = f"c{number} claims T{task}"
    else:
        what = f"c{number} drops T{task}, which is {row.state}"
    return progress(what, with_hands(world, number, rest))


def goes_on(
    setup: DispatchSetup, world: DispatchWorld, number: int, hands: Hands, task: int
) -> Steps:
    """The running task ends, or raises and is retried; meanwhile the rest is given back."""
    row, kind = world.tasks[task], setup.kinds[task]
    free = hands._replace(running=None)
    if row.state != "running":
        stale = f"c{number} finds that it has lost T{task}"
        yield progress(stale, with_hands(world, number, free))
    elif kind == "raises once" and not row.raised:
        raised = with_task(world, task, row._replace(raised=True, waiting=True))
        after = rescheduled(setup, with_hands(raised, number, free), task)
        yield progress(f"T{task} raises and is to be retried", after)
    else:
        done = with_task(world, task, row._replace(state="done"))
        end = with_hands(done, number, free)
        what = f"T{task} is done"
        yield fault(f"{what}, hours later", end) if kind == "long" else progress(what, end)
    if hands.left:
        after = with_hands(world, number, hands._replace(left=()))
        if setup.rules.giving_back_clears_the_ledger:
            after = without_ledger_row(after, hands.dispatch)
        yield progress(f"c{number} gives back {hands.left}", after)


def reaping_and_rescue_steps(setup: DispatchSetup, world: DispatchWorld) -> Steps:
    """Siblings reap the dead; what nobody holds and nobody reaps, the lease returns."""
    for place, grave in enumerate(world.graves):
        after = world._replace(graves=(*world.graves[:place], *world.graves[place + 1 :]))
        if setup.rules.reaper_clears_the_ledger:
            after = without_ledger_row(after, grave.dispatch)
        if grave.running is not None and world.tasks[grave.running].state == "running":
            after = rescheduled(setup, after, grave.running)
        yield progress("a sibling reaps the dead child", after)
    held = {hands.running for hands in (*world.children, *world.graves) if hands is not None}
    for number, task in enumerate(world.tasks):
        if task.state == "running" and number not in held:
            yield progress(f"T{number} is rescued", rescheduled(setup, world, number))


def broker_steps(setup: DispatchSetup, world: DispatchWorld) -> Steps:
    """The broker loses, repeats and invents messages; it goes away and comes back empty."""
    for place, message in enumerate(world.broker):
        rest = (*world.broker[:place], *world.broker[place + 1 :])
        if setup.ledger_clock_runs:
            yield fault(f"the broker loses {message.ids}", world._replace(broker=rest))
        poorer = spend_one(setup, world, "duplicate")
        if poorer is not None:
            twice = poorer._replace(broker=(*world.broker, message))
            yield fault(f"the broker repeats {message.ids}", twice)
    poorer = spend_one(setup, world, "hint")
    if poorer is not None:
        for number, task in enumerate(world.tasks):
            if task.state != "uncommitted":
                hint = Message(NO_LEDGER_ROW, (number,))
                hinted = poorer._replace(broker=(*world.broker, hint))
                yield fault(f"a hint for T{number} is published", hinted)
    poorer = spend_one(setup, world, "broker down")
    if poorer is not None and world.broker_is_up:
        down = poorer._replace(broker=(), broker_is_up=False)
        yield fault("the broker dies and forgets everything", down)
    if not world.broker_is_up:
        yield progress("the broker is up again", world._replace(broker_is_up=True))


def worker_and_time_steps(setup: DispatchSetup, world: DispatchWorld) -> Steps:
    """Workers leave and come back, producers commit, parked rows are scanned again."""
    poorer = spend_one(setup, world, "workers leave")
    if poorer is not None and world.workers_live:
        nobody = (None,) * len(world.children)
        gone = poorer._replace(children=nobody, graves=(), workers_live=False, deaf=False)
        yield fault("all workers vanish", gone)
    if not world.workers_live:
        yield progress("workers come back", world._replace(workers_live=True))
    yield from deafness_steps(setup, world)
    for number, task in enumerate(world.tasks):
        if task.state == "uncommitted":
            committed = with_task(world, number, task._replace(state="pending"))
            yield progress(f"the producer of T{number} commits", committed)
        if task.waiting:
            due = with_task(world, number, task._replace(waiting=False))
            yield progress(f"T{number} is due again", due)
        if (
            task.left_to_hint
            and task.state == "pending"
            and setup.rules.rows_wait_for_hints_a_moment
        ):
            seen = with_task(world, number, task._replace(left_to_hint=False))
            yield progress(f"T{number} has waited long enough for its hint", seen)
        if task.parked:
            again = with_task(world, number, task._replace(parked=False))
            yield progress(f"T{number} has been parked long enough", again)


def deafness_steps(setup: DispatchSetup, world: DispatchWorld) -> Steps:
    """Consumers get nothing; an idle child sees messages that nobody takes, and reports it."""
    poorer = spend_one(setup, world, "workers go deaf")
    if poorer is not None and world.workers_live and not world.deaf:
        yield fault("the workers hear nothing from the broker", poorer._replace(deaf=True))
    if world.deaf and world.ledger and setup.rules.deaf_consumers_are_restarted:
        yield progress("the workers restart their consumers", world._replace(deaf=False))
