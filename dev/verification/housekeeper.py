"""Step 7 of the walk: each child's housekeeper renews, flushes, and gives back."""

from __future__ import annotations

from collections.abc import Iterator

from dev.verification.explorer import Step, fault, progress
from dev.verification.rows import UNKNOWN_ATTEMPT
from dev.verification.world import Child, RunSetup, World, fences_of, spend, with_child
from dev.verification.writes import count_a_crash, release, settle


def housekeeper_steps(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    child = world.children[number]
    if housekeeper_is_blocked(setup, world, child):
        return
    if child.todo and child.phase == "running":
        yield unstarted_claims_are_taken_back(setup, world, number)
    if child.outbox:
        yield from outcome_is_flushed(setup, world, number)
    if child.returns:
        yield from claim_is_released(setup, world, number)


def is_renewed(setup: RunSetup, world: World, task: int) -> bool:
    """Whether some housekeeper keeps this task's lease good."""
    row = world.rows[task]
    return any(
        renews(setup, child, task, row.token, row.owner)
        and not housekeeper_is_blocked(setup, world, child)
        for child in world.children
    )


def housekeeper_is_blocked(setup: RunSetup, world: World, child: Child) -> bool:
    """Only a mutant's housekeeper waits for a row lock; ours asks again later."""
    if setup.rules.reaper_never_blocks_the_housekeeper or world.held_row is None:
        return False
    return child.reaping is not None and child.reaping.waits_for(world.held_row)


def renews(setup: RunSetup, child: Child, task: int, token: int, owner: int) -> bool:
    """H1, H2: it renews ids and token of claims whose reply has arrived, and nothing else."""
    rules = setup.rules
    if child.phase == "gone":
        return False
    if not rules.housekeeper_renews_by_token:
        return child.owner == owner
    if not rules.housekeeper_renews_only_held_claims and child.token == token:
        return True
    for fence in fences_of(child):
        if fence.id == task and fence.token == token and fence.attempt != UNKNOWN_ATTEMPT:
            return rules.housekeeper_renews_every_held_claim or child.token == token
    return False


def unstarted_claims_are_taken_back(setup: RunSetup, world: World, number: int) -> Step[World]:
    """One task has run for a second: unstarted tasks of its claim go back to the pool."""
    child = world.children[number]
    kept = () if setup.rules.give_back_under_the_mutex else child.todo
    after = child._replace(todo=kept, returns=(*child.returns, *child.todo))
    what = " ".join(f"T{fence.id}" for fence in child.todo)
    return progress(f"c{number}'s housekeeper takes back {what}", with_child(world, number, after))


def outcome_is_flushed(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """A collected outcome is settled; repeated until answered, for the fence judges."""
    child = world.children[number]
    fence, outcome = child.outbox[0]
    flushed = settle(setup, world, fence, outcome)
    answered = child._replace(outbox=child.outbox[1:])
    what = f"c{number}'s housekeeper flushes T{fence.id} ({outcome})"
    yield progress(what, with_child(flushed, number, answered))
    poorer = spend(setup, world, "settle reply lost")
    if poorer is not None:
        after = child if setup.rules.collected_settles_are_retried else answered
        applied = flushed._replace(faults_left=poorer.faults_left)
        yield fault(f"{what}, reply lost", with_child(applied, number, after))
        yield fault(f"{what}, never arrives", with_child(poorer, number, after))


def claim_is_released(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """A claim is given back under the fence; repeated until answered."""
    child = world.children[number]
    fence = child.returns[0]
    suspect = fence in child.suspects
    released = (count_a_crash if suspect else release)(setup, world, fence)
    suspects = tuple(other for other in child.suspects if other != fence)
    answered = child._replace(returns=child.returns[1:], suspects=suspects)
    what = f"c{number}'s housekeeper {'counts a crash on' if suspect else 'releases'} T{fence.id}"
    if fence.id == world.held_row:
        if not setup.rules.skipped_releases_are_retried:
            forgotten = with_child(world, number, answered)
            yield progress(f"{what}, which is locked and skipped", forgotten)
        return
    yield progress(what, with_child(released, number, answered))
    poorer = spend(setup, world, "settle reply lost")
    if poorer is not None:
        after = child if setup.rules.releases_are_retried else answered
        applied = released._replace(faults_left=poorer.faults_left)
        yield fault(f"{what}, reply lost", with_child(applied, number, after))
        yield fault(f"{what}, never arrives", with_child(poorer, number, after))
