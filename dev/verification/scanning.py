"""Step 3 of the walk: read what is due, ask the broker for room, publish, remember."""

from __future__ import annotations

from dev.verification.dispatch_world import (
    DispatchSetup,
    DispatchWorld,
    Message,
    Scanner,
    Steps,
    rationed,
    with_message,
    with_scanner,
    with_task,
)
from dev.verification.explorer import progress


def scanner_steps(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    scanner = world.scanners[number]
    can_reach = world.broker_is_up and scanner.reaches_the_broker
    if scanner.seen:
        yield from publishes(setup, world, number, can_reach=can_reach)
    elif world.leader is None and (can_reach or not scanner.must_probe):
        yield progress(f"s{number} takes the lead", world._replace(leader=number))
    elif world.leader == number and may_publish(setup, world):
        yield from scans(setup, world, number)
    yield from forgets(setup, world, number)
    yield from scanner_faults(setup, world, number)


def may_publish(setup: DispatchSetup, world: DispatchWorld) -> bool:
    """H12: only for a queue that a live worker serves, and only where there is room."""
    rules = setup.rules
    has_room = len(world.broker) < setup.room or not rules.depth_is_asked
    return has_room and (world.workers_live or not rules.nothing_without_a_live_worker)


def scans(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    """A whole pass; or one in between, at the bookmark; or one near the end."""
    rules, scanner = setup.rules, world.scanners[number]
    due = tuple(task for task, row in enumerate(world.tasks) if row.is_due)
    ahead = tuple(task for task in due if task > scanner.bookmark)
    if not scanner.old or rules.whole_passes_come_again:
        rows = due if rules.whole_passes_begin_at_the_front else ahead
        yield from finds(setup, world, number, rows, "finds")
    if setup.passes_in_between and ahead != due:
        yield from finds(setup, world, number, ahead, "goes on at its bookmark and finds")
    if setup.passes_near_the_end and scanner.old:
        new = tuple(task for task in due if task not in scanner.old)
        yield from finds(setup, world, number, new, "reads near the end and finds")


def finds(
    setup: DispatchSetup, world: DispatchWorld, number: int, rows: tuple[int, ...], how: str
) -> Steps:
    """The first rows: those that nobody can run are parked, those that are out are left out.

    It remembers them here already, for it reads nothing before they are out, or refused.
    """
    scanner = world.scanners[number]
    read = rows[: setup.ids_per_message + len(scanner.remembered)]
    visible = [task for task in read if task not in scanner.remembered]
    unknown = [task for task in visible if setup.kinds[task] == "unknown"]
    if unknown and setup.rules.what_cannot_run_is_parked:
        after = with_task(world, unknown[0], put_off="parked")
        yield progress(f"s{number} parks T{unknown[0]}, which nobody knows", after)
        return
    ready = [task for task in visible if task not in unknown]
    ids = tuple(ready[: setup.ids_per_message])
    after = with_scanner(world, number, seen=ids, remembered=scanner.remembered + ids)
    if setup.passes_in_between and ids:
        after = with_scanner(after, number, bookmark=ids[-1])
    if setup.passes_near_the_end and len(ids) == len(ready) and read == rows:  # it left nothing
        old = tuple(task for task, row in enumerate(world.tasks) if not row.put_off)
        after = with_scanner(after, number, old=old)  # also what commits late
    if after != world:
        yield progress(f"s{number} {how} {listed(ids)} due", after)


def publishes(setup: DispatchSetup, world: DispatchWorld, number: int, *, can_reach: bool) -> Steps:
    """The message goes out; or it cannot; or there is no answer, and it is in the broker or not."""
    scanner = world.scanners[number]
    message, refused = Message(scanner.seen), gives_up(setup, world, number)
    what = f"publishes {listed(scanner.seen)}"
    if not can_reach:
        yield progress(f"s{number} cannot publish {listed(scanner.seen)}", refused)
        return
    at_ease = with_scanner(world, number, seen=(), must_probe=False)
    yield progress(f"s{number} {what}", with_message(at_ease, message))
    what, doubt = f"s{number} {what} and gets no answer", "publish in doubt"
    yield from rationed(setup, doubt, f"{what} (it arrived)", with_message(refused, message))
    yield from rationed(setup, doubt, f"{what} (it did not)", refused)


def gives_up(setup: DispatchSetup, world: DispatchWorld, number: int) -> DispatchWorld:
    """It forgets everything, for nobody knows what the broker has; and another may lead (H13)."""
    after = with_scanner(world, number, seen=(), must_probe=True, bookmark=-1)
    if setup.rules.refused_is_forgotten:
        after = with_scanner(after, number, remembered=())
    if world.leader == number and setup.rules.leader_that_cannot_publish_resigns:
        after = after._replace(leader=None)
    return after


def forgets(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    """Time passes. This may be too early, and then a copy is published, which claims nothing."""
    scanner = world.scanners[number]
    if setup.memory_lasts or not setup.rules.memory_fades:
        return
    for task in scanner.remembered:
        if task not in scanner.seen:
            rest = tuple(other for other in scanner.remembered if other != task)
            fresh = with_scanner(world, number, remembered=rest)
            yield progress(f"s{number} forgets T{task}", fresh)


def scanner_faults(setup: DispatchSetup, world: DispatchWorld, number: int) -> Steps:
    """A scanner dies with all that it remembers, loses its lead, or is cut off."""
    scanner, leads = world.scanners[number], world.leader == number
    leaderless = world._replace(leader=None) if leads else world
    if leads or scanner.seen:
        fresh = Scanner(reaches_the_broker=scanner.reaches_the_broker)
        dead = with_scanner(leaderless, number, **fresh._asdict())
        yield from rationed(setup, "scanner crash", f"s{number} dies with its memory", dead)
    if leads:
        what = f"s{number} loses the lead unawares"
        yield from rationed(setup, "leadership lapses", what, leaderless)
    if scanner.reaches_the_broker:
        what = f"s{number} is cut off from the broker, for good"
        lonely = with_scanner(world, number, reaches_the_broker=False)
        yield from rationed(setup, "cut off", what, lonely)


def listed(ids: tuple[int, ...]) -> str:
    return " ".join(f"T{task}" for task in ids) or "nothing"
