"""Step 9 of the walk: leases lapse by the database's clock, and the rescuer looks at them.

Also here: what the dead had sent arrives late, and what comes with time (expiry, due dates).
"""

from __future__ import annotations

from collections.abc import Iterator

from dev.verification.claim import carry_out_claim
from dev.verification.explorer import Step, fault, progress
from dev.verification.housekeeper import is_renewed
from dev.verification.rows import ended, lost_while_running
from dev.verification.world import (
    HalfDone,
    LateClaim,
    RunSetup,
    World,
    spend,
    with_row,
)
from dev.verification.writes import settle


def rescue_steps(setup: RunSetup, world: World) -> Iterator[Step[World]]:
    """Leases end one by one; or all at once, after the database was away."""
    yield from outage_steps(setup, world)
    for task, row in enumerate(world.rows):
        if row.state != "RUNNING":
            continue
        if row.lease_is_good:
            yield from lease_lapses(setup, world, task)
        else:
            if is_renewed(setup, world, task):
                good = with_row(world, task, row._replace(lease_is_good=True))
                yield progress(f"the lease of T{task} is renewed late", good)
            yield from rescuer_sees(setup, world, task)


def outage_steps(setup: RunSetup, world: World) -> Iterator[Step[World]]:
    """The database was away for longer than a lease; then everybody renews, then rescues."""
    poorer = spend(setup, world, "outage")
    if poorer is not None and any(row.state == "RUNNING" for row in world.rows):
        rows = tuple(
            row._replace(lease_is_good=False) if row.state == "RUNNING" else row
            for row in world.rows
        )
        what = "the database was away, every lease is over"
        yield fault(what, poorer._replace(rows=rows, after_outage=True))
    if world.after_outage and not any(
        row.state == "RUNNING" and not row.lease_is_good and is_renewed(setup, world, task)
        for task, row in enumerate(world.rows)
    ):
        what = "one renewal interval is over, rescuers look again"
        yield progress(what, world._replace(after_outage=False))


def lease_lapses(setup: RunSetup, world: World, task: int) -> Iterator[Step[World]]:
    """Nobody renews it: it lapses. Somebody renews it: it lapses only by a fault.

    The dead are reaped within moments, and a renewed lease has most of its time left: that it
    lapses while its holder waits for reaping is a fault, too.
    """
    lapsed = world.rows[task]._replace(lease_is_good=False)
    if not is_renewed(setup, world, task) and not will_be_reaped(setup, world, task):
        yield progress(f"the lease of T{task} lapses", with_row(world, task, lapsed))
        return
    poorer = spend(setup, world, "lease lapses")
    if poorer is not None:
        what = f"the lease of T{task} lapses (a long pause of its holder or reaper)"
        yield fault(what, with_row(poorer, task, lapsed))


def will_be_reaped(setup: RunSetup, world: World, task: int) -> bool:
    """Whether the holder's slot is a grave that siblings will clear in good time."""
    for grave in world.graves:
        if grave.owner == world.rows[task].owner:
            must_wait = any(fence.id == world.held_row for fence in grave.running)
            return not must_wait or setup.rules.reaper_releases_before_it_charges
    return False


def rescuer_sees(setup: RunSetup, world: World, task: int) -> Iterator[Step[World]]:
    """One statement that looks at state and lease again as it writes."""
    rules, row = setup.rules, world.rows[task]
    if not rules.expired_leases_are_rescued:
        return
    if world.after_outage and rules.rescuers_wait_after_an_outage:
        return
    if rules.rescue_rechecks_the_lease:
        rescued = lost_while_running(rules, setup.kinds[task], row)
        yield progress(f"T{task} is rescued", with_row(world, task, rescued))
    elif world.half_done is None:
        note = HalfDone("rescue", task, row.state)
        yield progress(f"the rescuer reads T{task}", world._replace(half_done=note))


def half_done_rescue(setup: RunSetup, world: World, note: HalfDone) -> Step[World]:
    """The second statement of a two-step rescue (a mutant) writes what the first one saw."""
    row = world.rows[note.id]
    done = world._replace(half_done=None)
    what = f"the rescuer writes T{note.id} by its id"
    if row.state not in {"PENDING", "RUNNING"}:
        return progress(what, done)
    if row.state == "PENDING" or row.lease_is_good:
        done = done._replace(wrong=f"P6: rescue of T{note.id}, whose lease is good")
    rescued = lost_while_running(setup.rules, setup.kinds[note.id], row)
    return progress(what, with_row(done, note.id, rescued))


def late_statement_steps(setup: RunSetup, world: World) -> Iterator[Step[World]]:
    """A statement whose sender died or gave up is carried out late, or never."""
    for sent in world.late:
        rest = world._replace(late=world.late - {sent})
        if isinstance(sent, LateClaim):
            after, won = carry_out_claim(setup, rest, sent)
            taken = " ".join(f"T{fence.id}" for fence in won) or "nothing"
            what = f"a late claim of owner {sent.owner}"
            yield progress(f"{what} takes {taken}", after)
        else:
            after = settle(setup, rest, sent.fence, sent.outcome)
            what = f"a late settle of T{sent.fence.id}"
            yield progress(f"{what} is carried out", after)
        yield fault(f"{what} never arrives", rest)


def time_steps(setup: RunSetup, world: World) -> Iterator[Step[World]]:
    """Due dates and expiry; the sweep moves what must not run any more."""
    for task, row in enumerate(world.rows):
        if row.state != "PENDING":
            continue
        kind = setup.kinds[task]
        if not row.due:
            due = with_row(world, task, row._replace(due=True))
            yield progress(f"T{task} is due", due)
        elif not kind.enabled:
            skipped = with_row(world, task, ended(row, "SKIPPED"))
            yield progress(f"the sweep skips T{task}, which is disabled", skipped)
        elif row.expired:
            gone = with_row(world, task, ended(row, "EXPIRED"))
            yield progress(f"the sweep moves T{task}, which has expired", gone)
        elif kind.expires:
            late = with_row(world, task, row._replace(expired=True))
            yield fault(f"T{task} expires", late)
