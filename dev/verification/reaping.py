"""Step 6 of the walk: housekeepers reap the dead children of their own worker.

A reaper reads the slot, releases what did not run there, charges what did, and frees the slot.
Two may do so at once, and one may die half-way: the fence decides, and the next one starts
again. The release comes first, because the charge may meet a row that a person has locked.
"""

from __future__ import annotations

from collections.abc import Iterator

from dev.verification.deaths import has_nothing_to_lose, slot_of
from dev.verification.explorer import Step, fault, progress
from dev.verification.rows import Fence, Row, back_to_pending, charged, crashed, ended
from dev.verification.world import (
    Grave,
    Reaping,
    RunSetup,
    World,
    holds,
    spend,
    with_child,
    with_row,
)


def reaping_steps(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    child = world.children[number]
    if child.is_orphan or child.phase == "gone":
        return
    if child.reaping is None:
        yield from a_grave_is_found(setup, world, number)
    elif child.reaping.half_way != setup.rules.reaper_releases_before_it_charges:
        yield the_rest_is_released(setup, world, number, child.reaping)
    else:
        yield from the_running_are_charged(setup, world, number, child.reaping)


def a_grave_is_found(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """The housekeeper looks at the slots of its worker; never reaps one whose process lives."""
    for grave in world.graves:
        if grave.worker == setup.workers[number]:
            yield start_reaping(world, number, grave)
    if setup.rules.only_the_dead_are_reaped:
        return
    poorer = spend(setup, world, "hasty reaping")
    for other, living in enumerate(world.children):
        if poorer is not None and other != number and not has_nothing_to_lose(living):
            grave = Grave(setup.workers[other], living.owner, slot_of(setup, living))
            hasty = start_reaping(poorer, number, grave)
            yield fault(f"c{other} lives, yet {hasty.what}", hasty.after)


def start_reaping(world: World, number: int, grave: Grave) -> Step[World]:
    ran = " ".join(f"T{fence.id}" for fence in grave.running) or "nothing"
    child = world.children[number]._replace(reaping=Reaping(grave))
    return progress(
        f"c{number}'s housekeeper reads the slot of the dead (owner {grave.owner}, ran {ran})",
        with_child(world, number, child),
    )


def charge(setup: RunSetup, world: World, grave: Grave) -> World:
    """Charge what ran there: one id a failure; several ids, or none, a crash each."""
    rules = setup.rules
    for fence in grave.running:
        if not may_charge(setup, world, grave, fence):
            continue
        row, kind = world.rows[fence.id], setup.kinds[fence.id]
        if kind.at_most_once:
            after = ended(row, "FAILED")  # outcome unknown (P5)
        elif len(grave.running) == 1 or not rules.running_id_is_cleared_when_collected:
            after = charged(rules, kind, row)
        else:
            after = crashed(rules, row)
        world = with_row(world, fence.id, after)
    if not grave.running and rules.no_running_id_counts_a_crash:
        for task in rows_of(world, grave):
            world = with_row(world, task, crashed(rules, world.rows[task]))
    return world


def may_charge(setup: RunSetup, world: World, grave: Grave, fence: Fence) -> bool:
    """The fence at which two reapers meet."""
    row = world.rows[fence.id]
    if not setup.rules.reaper_charges_under_the_fence:
        return row.state == "RUNNING"
    if not setup.rules.slot_knows_the_running_token:
        return row.state == "RUNNING" and row.owner == grave.owner
    return holds(setup, world, fence)


def rows_of(world: World, grave: Grave) -> list[int]:
    return [
        task
        for task, row in enumerate(world.rows)
        if row.state == "RUNNING" and row.owner == grave.owner
    ]


def one_step_on(world: World, number: int, reaping: Reaping) -> World:
    """Half of the reaping is committed; after the second half the slot is free."""
    child = world.children[number]
    if not reaping.half_way:
        return with_child(world, number, child._replace(reaping=reaping._replace(half_way=True)))
    graves = tuple(other for other in world.graves if other.owner != reaping.grave.owner)
    return with_child(world._replace(graves=graves), number, child._replace(reaping=None))


def the_running_are_charged(
    setup: RunSetup, world: World, number: int, reaping: Reaping
) -> Iterator[Step[World]]:
    """One commit of a reaping; it is asked for again until it is answered."""
    after = charge(setup, world, reaping.grave)
    what = f"c{number}'s housekeeper charges what owner {reaping.grave.owner} ran"
    yield progress(what, one_step_on(after, number, reaping))
    poorer = spend(setup, world, "reaping reply lost")
    if poorer is not None:
        unanswered = after._replace(faults_left=poorer.faults_left)
        yield fault(f"{what}, reply lost", unanswered)


def the_rest_is_released(
    setup: RunSetup, world: World, number: int, reaping: Reaping
) -> Step[World]:
    """The other commit: the rows of that owner that did not run."""
    after, grave = world, reaping.grave
    for task in rows_of(world, grave):
        to_be_charged = any(
            fence.id == task and holds(setup, world, fence) for fence in grave.running
        )
        if grave.running and not to_be_charged:
            after = with_row(after, task, released_by_reaper(setup, world, task))
        elif not grave.running and not setup.rules.no_running_id_counts_a_crash:
            after = with_row(after, task, back_to_pending(setup.rules, world.rows[task]))
    what = f"c{number}'s housekeeper releases the other rows of owner {grave.owner}"
    return progress(what, one_step_on(after, number, reaping))


def released_by_reaper(setup: RunSetup, world: World, task: int) -> Row:
    """P3: a neighbour of the one that ran is not charged."""
    row = world.rows[task]
    if not setup.rules.reaper_releases_the_others:
        return row
    if not setup.rules.reaper_charges_only_the_running:
        return charged(setup.rules, setup.kinds[task], row)
    return back_to_pending(setup.rules, row)
