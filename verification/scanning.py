"""Step 3 of the walk: scan, ledger row, COMMIT, publish; and again when it is overdue."""

from __future__ import annotations

from collections.abc import Iterator

from verification.dispatch_world import (
    DispatchSetup,
    DispatchWorld,
    LedgerRow,
    Message,
    Scanner,
    spend_one,
    with_scanner,
    with_task,
    without_ledger_row,
)
from verification.explorer import Step, fault, progress

Steps = Iterator[Step[DispatchWorld]]


def scanner_steps(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    scanner = world.scanners[number]
    if scanner.seen:
        yield writes_ledger_row(setup, world, number, scanner.seen)
    elif scanner.unpublished is not None:
        yield publishes(setup, world, number, scanner.unpublished)
        yield from publishes_in_doubt(setup, world, number, scanner.unpublished)
    elif world.leader is None and (can_reach(world, scanner) or not scanner.must_probe):
        yield progress(f"s{number} takes the lead", world._replace(leader=number))
    elif world.leader == number:
        yield from scans(setup, world, number)
        yield from publishes_again(setup, world, number)
    yield from scanner_faults(setup, world, number)


def can_reach(world: DispatchWorld, scanner: Scanner) -> bool:
    return world.broker_is_up and scanner.reaches_the_broker


def may_publish(setup: DispatchSetup, world: DispatchWorld) -> bool:
    """H12: nothing for a queue that no live worker serves."""
    return world.workers_live or not setup.rules.nothing_without_a_live_worker


def visible_ids(setup: DispatchSetup, world: DispatchWorld, watermark: int) -> list[int]:
    """The ids that a scan from the front of the index finds, without those in the ledger."""
    rules = setup.rules
    hidden = {task for row in world.ledger for task in row.hides}
    ids = []
    for number, task in enumerate(world.tasks):
        if task.state != "pending" or number in hidden:
            continue
        if task.parked or task.marked or task.waiting or task.left_to_hint:
            continue
        if setup.kinds[number] == "early" and rules.scan_at_is_never_before_due_at:
            continue
        if number > watermark or rules.every_pass_is_full:
            ids.append(number)
    return ids


def scans(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    """The first due ids; for them one ledger row; COMMIT; only then comes the message."""
    rules, scanner = setup.rules, world.scanners[number]
    full = len(world.ledger) >= setup.ledger_room and rules.ledger_is_bounded
    if full or not may_publish(setup, world):
        return
    visible = visible_ids(setup, world, scanner.watermark)
    ids = tuple(visible[: setup.ids_per_message])
    if ids and (not scanner.old or rules.whole_passes_come_again):
        watermark = -1 if rules.every_pass_is_full else max(ids)
        busy = scanner._replace(seen=ids, watermark=watermark, bookmark=place(setup, ids))
        busy = busy._replace(old=what_is_old(setup, world, scanner, left=ids != tuple(visible)))
        yield progress(f"s{number} finds {listed(ids)} due", with_scanner(world, number, busy))
    if setup.passes_near_the_end:
        yield near_the_end(setup, world, number, visible)
    ahead = tuple(task for task in visible if task > scanner.bookmark)[: setup.ids_per_message]
    if ahead and ahead != ids and setup.passes_in_between:
        busy = scanner._replace(seen=ahead, bookmark=place(setup, ahead))
        what = f"s{number} goes on at its bookmark and finds {listed(ahead)} due"
        yield progress(what, with_scanner(world, number, busy))


def near_the_end(
    setup: DispatchSetup, world: DispatchWorld, number: int, visible: list[int]
) -> Step[DispatchWorld]:
    """A pass while whole ones rest: it reads what became due since one left nothing."""
    scanner = world.scanners[number]
    new = tuple(task for task in visible if task not in scanner.old)
    ids = new[: setup.ids_per_message]
    busy = scanner._replace(seen=ids, old=what_is_old(setup, world, scanner, left=ids != new))
    what = f"s{number} reads near the end and finds {listed(ids)} due"
    return progress(what, with_scanner(world, number, busy))


def what_is_old(
    setup: DispatchSetup, world: DispatchWorld, scanner: Scanner, *, left: bool
) -> tuple[int, ...]:
    """After a pass that left nothing: all whose scan_at has come, also if they commit late."""
    if left or not setup.passes_near_the_end:
        return scanner.old
    ahead = [task.waiting or task.parked or task.left_to_hint for task in world.tasks]
    return tuple(task for task in range(len(ahead)) if not ahead[task])


def place(setup: DispatchSetup, ids: tuple[int, ...]) -> int:
    """Where the next pass in between goes on, in setups that have such."""
    return max(ids) if setup.passes_in_between else -1


def writes_ledger_row(
    setup: DispatchSetup, world: DispatchWorld, number: int, seen: tuple[int, ...]
) -> Step[DispatchWorld]:
    """The second statement of the scan's transaction, and its COMMIT.

    Its created_at is later than what the scan saw. A task that was rescheduled in between is
    hidden only if its scan_at has come already; then it is due, and this message can run it.
    """
    dispatch = max((row.dispatch for row in world.ledger), default=0) + 1
    hides = tuple(task for task in seen if not world.tasks[task].waiting)
    after = world._replace(ledger=(*world.ledger, LedgerRow(dispatch, seen, hides)))
    if not setup.rules.no_published_mark:
        for task in seen:
            after = with_task(after, task, after.tasks[task]._replace(marked=True))
    message = Message(dispatch, seen)
    busy = world.scanners[number]._replace(seen=(), unpublished=message)
    what = f"s{number} writes a ledger row for {listed(seen)}"
    return progress(what, with_scanner(after, number, busy))


def publishes(
    setup: DispatchSetup, world: DispatchWorld, number: int, message: Message
) -> Step[DispatchWorld]:
    """The message goes out; or it cannot, and its ledger row is removed (H13)."""
    scanner = world.scanners[number]
    if can_reach(world, scanner):
        sent = world._replace(broker=(*world.broker, message))
        at_ease = scanner._replace(unpublished=None, must_probe=False)
        return progress(
            f"s{number} publishes {listed(message.ids)}", with_scanner(sent, number, at_ease)
        )
    after = world
    if setup.rules.unpublished_rows_are_taken_back:
        after = without_ledger_row(after, message.dispatch)
    what = f"s{number} cannot publish {listed(message.ids)}"
    return progress(what, gives_up_the_lead(setup, after, number))


def gives_up_the_lead(setup: DispatchSetup, world: DispatchWorld, number: int) -> DispatchWorld:
    """H13: another may reach the broker; this one probes the broker before it leads again."""
    if setup.rules.leader_that_cannot_publish_resigns and world.leader == number:
        world = world._replace(leader=None)
    warned = world.scanners[number]._replace(unpublished=None, must_probe=True)
    return with_scanner(world, number, warned)


def publishes_in_doubt(
    setup: DispatchSetup, world: DispatchWorld, number: int, message: Message
) -> Steps:
    """No answer: the message may be in the broker or not; the ledger's clock decides."""
    poorer = spend_one(setup, world, "publish in doubt")
    if poorer is None or not can_reach(world, world.scanners[number]):
        return
    if not setup.rules.doubtful_messages_keep_their_rows:
        poorer = without_ledger_row(poorer, message.dispatch)
    after = gives_up_the_lead(setup, poorer, number)
    what = f"s{number} publishes {listed(message.ids)} and gets no answer"
    yield fault(f"{what} (it arrived)", after._replace(broker=(*world.broker, message)))
    yield fault(f"{what} (it did not)", after)


def publishes_again(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    """A ledger row that outlives its time is published again under its own id.

    That its time is over although somebody still has the message is a fault, rationed; in a
    weekend without workers it is certain.
    """
    if not setup.rules.overdue_messages_are_published_again:
        return
    scanner = world.scanners[number]
    if not setup.ledger_clock_runs or not may_publish(setup, world):
        return
    if not can_reach(world, scanner):
        return
    for row in world.ledger:
        copy = Message(row.dispatch, row.ids)
        again = world._replace(broker=(*world.broker, copy))
        what = f"s{number} publishes {listed(row.ids)} again, under the same id"
        if not somebody_has(world, row.dispatch) or not world.workers_live:
            yield progress(what, again)
            continue
        poorer = spend_one(setup, world, "impatience")
        if poorer is not None:
            yield fault(what, poorer._replace(broker=again.broker))


def somebody_has(world: DispatchWorld, dispatch: int) -> bool:
    """Whether a copy of the message still is in the broker, in a scanner or in a child."""
    in_hands = (*world.children, *world.graves)
    return (
        any(message.dispatch == dispatch for message in world.broker)
        or any(hands is not None and hands.dispatch == dispatch for hands in in_hands)
        or any(s.unpublished and s.unpublished.dispatch == dispatch for s in world.scanners)
    )


def scanner_faults(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    """A scanner dies between COMMIT and publish, loses its lead, or is cut off."""
    scanner = world.scanners[number]
    leader = None if world.leader == number else world.leader
    poorer = spend_one(setup, world, "scanner crash")
    if poorer is not None and scanner.unpublished is not None:
        fresh = Scanner(reaches_the_broker=scanner.reaches_the_broker)
        after = with_scanner(poorer._replace(leader=leader), number, fresh)
        yield fault(f"s{number} dies before it publishes", after)
    poorer = spend_one(setup, world, "leadership lapses")
    if poorer is not None and world.leader == number:
        yield fault(f"s{number} loses the lead unawares", poorer._replace(leader=None))
    poorer = spend_one(setup, world, "cut off")
    if poorer is not None and scanner.reaches_the_broker:
        lonely = scanner._replace(reaches_the_broker=False)
        yield fault(
            f"s{number} is cut off from the broker, for good",
            with_scanner(poorer, number, lonely),
        )


def listed(ids: tuple[int, ...]) -> str:
    return " ".join(f"T{task}" for task in ids) or "nothing"
