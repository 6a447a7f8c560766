"""Step 4 of the walk: a message arrives and its ids are claimed by compare-and-set.

The broker is modelled at its worst: any set of ids may arrive at any idle child at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from dev.verification.deaths import child_dies
from dev.verification.explorer import Step, fault, progress
from dev.verification.rows import UNKNOWN_ATTEMPT, Fence, Kind, Row
from dev.verification.world import (
    Child,
    LateClaim,
    Phase,
    RunSetup,
    World,
    spend,
    tokens_in_use,
    unused_name,
    with_child,
    with_row,
)

UNANSWERED_WORK = 1
"""How many unanswered flushes and releases a child may have before it takes new ids."""


def claim_steps(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """Any ids may come at any time, at an orphan, too.

    The statement is atomic, so the moment of sending it matters only where the sender dies or
    gives up before it is carried out; then it goes on as a `LateClaim`.
    """
    child = world.children[number]
    if child.phase == "hung" and setup.rules.claims_have_a_time_limit:
        what = f"c{number} has waited long enough for its claim and gives up"
        yield progress(what, with_child(world, number, child._replace(phase="idle", token=0)))
    tops_up = child.phase == "running" and is_async(setup, child) and not child.todo
    if child.asked_to_stop or (child.phase != "idle" and not tops_up):
        return
    if len(child.outbox) + len(child.returns) > UNANSWERED_WORK:
        return
    claimable = [
        task
        for task, row in enumerate(world.rows)
        if is_claimable(setup, row, setup.kinds[task])
        and (not tops_up or may_top_up(setup, world, child, task))
    ]
    token = unused_name(tokens_in_use(world), number, len(world.children))
    for size in range(1, len(claimable) + 1):
        for ids in combinations(claimable, size):
            yield from claim(setup, world, number, LateClaim(child.owner, token, ids))


def is_async(setup: RunSetup, child: Child) -> bool:
    """Whether this child runs tasks concurrently now."""
    return all(setup.kinds[fence.id].concurrent for fence in child.running)


def may_top_up(setup: RunSetup, world: World, child: Child, task: int) -> bool:
    """H7: a task that must be alone is alone in the child, not only in its claim statement."""
    if not setup.kinds[task].concurrent:
        return False
    if not setup.rules.alone_means_alone_in_the_child:
        return True
    together = (task, *(fence.id for fence in child.running))
    return not any(must_be_alone(setup, world.rows[it], setup.kinds[it]) for it in together)


def is_claimable(setup: RunSetup, row: Row, kind: Kind) -> bool:
    """The claim's predicate (H14: it is complete)."""
    rules = setup.rules
    claimable = row.state == "PENDING" or (
        row.state == "RUNNING" and not rules.claim_rechecks_the_state
    )
    if rules.claim_asks_enabled_and_expiry:
        claimable = claimable and kind.enabled and not row.expired
    if rules.claim_asks_due_at:
        claimable = claimable and row.due
    return claimable


def must_be_alone(setup: RunSetup, row: Row, kind: Kind) -> bool:
    """H7 and P5: at_most_once tasks, and tasks that a crashed child held."""
    if kind.at_most_once and setup.rules.at_most_once_is_claimed_alone:
        return True
    return row.crashes >= (1 if setup.rules.once_crashed_is_claimed_alone else 2)


def carry_out_claim(
    setup: RunSetup, world: World, sent: LateClaim
) -> tuple[World, tuple[Fence, ...]]:
    rows, kinds = world.rows, setup.kinds
    there = [task for task in sent.ids if is_claimable(setup, rows[task], kinds[task])]
    in_company = [task for task in there if not must_be_alone(setup, rows[task], kinds[task])]
    won = []
    for task in in_company or there[:1]:
        row = world.rows[task]
        attempt = row.attempt + setup.counts_attempts
        claimed = row._replace(
            state="RUNNING",
            attempt=attempt,
            token=sent.token,
            owner=sent.owner,
            lease_is_good=True,
        )
        world = with_row(world, task, claimed)
        won.append(Fence(task, attempt, sent.token))
    return world, tuple(won)


def claim(setup: RunSetup, world: World, number: int, sent: LateClaim) -> Iterator[Step[World]]:
    """A message comes and its ids are claimed; usually the reply arrives."""
    child = world.children[number]
    claimed, won = carry_out_claim(setup, world, sent)
    phase: Phase = "claimed" if child.phase == "idle" else child.phase
    holder = child._replace(phase=phase, token=sent.token, todo=won)
    who = f"c{number}"
    what = f"{who} claims {names(sent.ids)} (token {sent.token}) and gets"
    what = f"{what} {names(fence.id for fence in won)}"
    yield progress(what, with_child(claimed, number, holder))

    yield from claim_goes_wrong(setup, world, number, sent)


def claim_goes_wrong(
    setup: RunSetup, world: World, number: int, sent: LateClaim
) -> Iterator[Step[World]]:
    """The claim without its reply; or a claim too late for its sender."""
    child, who, ids = world.children[number], f"c{number}", names(sent.ids)
    poorer = spend(setup, world, "claim reply lost")
    if poorer is not None:
        claimed, _ = carry_out_claim(setup, poorer, sent)
        after = with_child(claimed, number, given_up(setup, child, sent))
        yield fault(f"{who} claims {ids}, the reply is lost: {who} gives up", after)
    poorer = spend(setup, world, "claim reply never comes")
    if poorer is not None and child.phase == "idle":
        claimed, _ = carry_out_claim(setup, poorer, sent)
        after = with_child(claimed, number, child._replace(phase="hung", token=sent.token))
        yield fault(f"{who} claims {ids}, but waits for the reply for ever", after)
    poorer = spend(setup, world, "claim comes late")
    if poorer is not None:
        under_way = poorer._replace(late=poorer.late | {sent})
        after = with_child(under_way, number, given_up(setup, child, sent))
        yield fault(f"{who} stops waiting for its claim of {ids}, which is under way", after)
    poorer = spend(setup, world, "child crash")
    if poorer is not None and not setup.dead_leave_no_statements:
        under_way = poorer._replace(late=poorer.late | {sent})
        what = f"{who} is killed while its claim of {ids} is under way"
        yield fault(what, child_dies(setup, under_way, number))


def given_up(setup: RunSetup, child: Child, sent: LateClaim) -> Child:
    """An ambiguous claim: the token is not renewed, and what it took is released by it."""
    if not setup.rules.housekeeper_renews_only_held_claims:
        child = child._replace(token=sent.token)  # the mutant goes on renewing it
    if not setup.rules.ambiguous_claim_is_released:
        return child
    asked = tuple(Fence(task, UNKNOWN_ATTEMPT, sent.token) for task in sent.ids)
    return child._replace(returns=(*child.returns, *asked))


def names(ids: Iterator[int] | tuple[int, ...]) -> str:
    return " ".join(f"T{task}" for task in ids)
