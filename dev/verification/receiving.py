"""The other side of the broker: children take messages, claim, run, die; workers leave."""

from __future__ import annotations

from dev.verification.dispatch_world import (
    DispatchSetup,
    DispatchWorld,
    Hands,
    Message,
    Steps,
    rationed,
    with_hands,
    with_message,
    with_task,
    without_message,
)
from dev.verification.explorer import Step, fault, progress

NOTHING = Hands(())
CANNOT_RUN = ("unknown", "early")


def receiving_steps(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    hands = world.children[number]
    if hands is None:
        if world.workers_live and not world.deaf:
            yield from takes_a_message(world, number)
        return
    if hands.running is not None:
        yield from goes_on(setup, world, number, hands, hands.running)
    elif hands.left:
        rest = hands._replace(left=hands.left[1:])
        yield claims(setup, world, number, hands.left[0], rest)
    else:
        yield from looks_by_itself(setup, world, number)
    dead = with_hands(world, number, NOTHING)
    yield from rationed(setup, "child crash", f"c{number} is killed", dead)


def takes_a_message(world: DispatchWorld, number: int) -> Steps:
    """The broker guarantees no order."""
    for message in sorted(set(world.broker)):
        hands = Hands(message.ids, looks=message.is_hint)
        after = with_hands(without_message(world, message), number, hands)
        yield progress(f"c{number} takes the message {message.ids}", after)


def claims(
    setup: DispatchSetup, world: DispatchWorld, number: int, task: int, rest: Hands
) -> Step[DispatchWorld]:
    """Compare-and-set; an id that cannot be claimed is dropped."""
    row, kind = world.tasks[task], setup.kinds[task]
    cannot = kind in CANNOT_RUN or row.put_off == "not due"
    if cannot or (row.state != "pending" and setup.rules.claims_compare_and_set):
        why = "cannot run" if cannot else f"is {row.state}"
        return progress(f"c{number} drops T{task}, which {why}", with_hands(world, number, rest))
    claimed = with_task(world, task, state="running", put_off="")
    after = with_hands(claimed, number, rest._replace(running=task))
    return progress(f"c{number} claims T{task}", after)


def looks_by_itself(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    """Only hints came lately: it may take what is first in the queue, or it looks no further."""
    yield progress(f"c{number} looks no further", with_hands(world, number, NOTHING))
    for task, row in enumerate(world.tasks):
        if row.is_due and setup.kinds[task] not in CANNOT_RUN:
            yield claims(setup, world, number, task, NOTHING)
            return


def goes_on(
    setup: DispatchSetup, world: DispatchWorld, number: int, hands: Hands, task: int
) -> Steps:
    """The running task ends, or raises and is retried; meanwhile the rest is given back."""
    row, kind = world.tasks[task], setup.kinds[task]
    free = with_hands(world, number, hands._replace(running=None))
    if kind == "raises once" and not row.raised:
        raised = with_task(free, task, state="pending", raised=True, put_off="not due")
        yield progress(f"T{task} raises and is to be retried", raised)
    else:
        end = with_task(free, task, state="done")
        what = f"T{task} is done"
        yield fault(f"{what}, hours later", end) if kind == "long" else progress(what, end)
    if hands.left and not setup.memory_lasts:
        after = with_hands(world, number, hands._replace(left=()))
        yield progress(f"c{number} gives back {hands.left}", after)


def broker_steps(setup: DispatchSetup, world: DispatchWorld) -> Steps:
    """The broker loses and repeats messages, and gets hints; it dies and comes back empty."""
    for message in sorted(set(world.broker)):
        if not setup.memory_lasts:
            yield fault(f"the broker loses {message.ids}", without_message(world, message))
        twice = with_message(world, message)
        yield from rationed(setup, "duplicate", f"the broker repeats {message.ids}", twice)
    for number, task in enumerate(world.tasks):
        if task.state != "uncommitted":
            hinted = with_message(world, Message((number,), is_hint=True))
            yield from rationed(setup, "hint", f"a hint for T{number} is published", hinted)
    if world.broker_is_up:
        what = "the broker dies and forgets everything"
        down = world._replace(broker=(), broker_is_up=False)
        yield from rationed(setup, "broker down", what, down)
    else:
        yield progress("the broker is up again", world._replace(broker_is_up=True))


def worker_steps(setup: DispatchSetup, world: DispatchWorld) -> Steps:
    """Workers leave and come back; deaf ones see messages that nobody takes, and reconnect."""
    if not world.workers_live:
        yield progress("workers come back", world._replace(workers_live=True))
        return
    nobody = (None,) * len(world.children)
    gone = world._replace(children=nobody, workers_live=False, deaf=False)
    yield from rationed(setup, "workers leave", "all workers vanish", gone)
    if not world.deaf:
        what = "the workers hear nothing from the broker"
        yield from rationed(setup, "workers go deaf", what, world._replace(deaf=True))
    elif world.broker and setup.rules.deaf_consumers_are_restarted:
        yield progress("the workers restart their consumers", world._replace(deaf=False))


def time_steps(_setup: DispatchSetup, world: DispatchWorld) -> Steps:
    """Producers commit, scan_at comes, and what a dead child ran is reaped, or its lease lapses."""
    held = {hands.running for hands in world.children if hands is not None}
    for number, task in enumerate(world.tasks):
        if task.state == "uncommitted":
            committed = with_task(world, number, state="pending")
            yield progress(f"the producer of T{number} commits", committed)
        if task.put_off:
            due = with_task(world, number, put_off="")
            yield progress(f"T{number} is due again", due)
        if task.state == "running" and number not in held:
            yield progress(f"T{number} is rescued", with_task(world, number, state="pending"))
