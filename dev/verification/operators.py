"""Operators cancel and requeue; a failover loses the last commit."""

from __future__ import annotations

from collections.abc import Iterator

from dev.verification.explorer import Step, fault, progress
from dev.verification.rescue import half_done_rescue
from dev.verification.rows import TERMINAL, Row, ended
from dev.verification.world import HalfDone, RunSetup, World, spend, with_row


def operator_steps(setup: RunSetup, world: World) -> Iterator[Step[World]]:
    for task, row in enumerate(world.rows):
        if row.state in TERMINAL:
            yield from requeue(setup, world, task)
        elif not row.cancel_requested:
            yield from cancel(setup, world, task)
    if world.half_done is not None:
        note = world.half_done
        if note.verb == "rescue":
            yield half_done_rescue(setup, world, note)
        else:
            yield half_done_cancel(world, note)


def cancel(setup: RunSetup, world: World, task: int) -> Iterator[Step[World]]:
    """Lock the row, then read it: a pending task moves, a running one is told (H8)."""
    poorer = spend(setup, world, "cancel")
    if poorer is None:
        return
    row = world.rows[task]
    if not setup.rules.cancel_locks_then_looks:
        if world.half_done is None:
            note = HalfDone("cancel", task, row.state)
            what = f"cancel of T{task} takes its snapshot ({row.state})"
            yield fault(what, poorer._replace(half_done=note))
    elif row.state == "PENDING":
        yield fault(f"T{task} is cancelled", with_row(poorer, task, ended(row, "CANCELLED")))
    else:
        told = row._replace(cancel_requested=True)
        yield fault(f"running T{task} is told to cancel", with_row(poorer, task, told))


def half_done_cancel(world: World, note: HalfDone) -> Step[World]:
    """One clever statement (a mutant): each half acts only on what the snapshot saw."""
    row = world.rows[note.id]
    done = world._replace(half_done=None)
    what = f"cancel of T{note.id} acts on what it saw"
    if row.state in TERMINAL:
        return fault(what, done)
    if row.state != note.seen:
        lost = done._replace(wrong=f"P2: cancel of T{note.id}: nothing moved, nothing told")
        return fault(what, lost)
    if row.state == "PENDING":
        return fault(what, with_row(done, note.id, ended(row, "CANCELLED")))
    return fault(what, with_row(done, note.id, row._replace(cancel_requested=True)))


def requeue(setup: RunSetup, world: World, task: int) -> Iterator[Step[World]]:
    """A new life: same id, attempt goes on, counters start again."""
    poorer = spend(setup, world, "requeue")
    if poorer is not None:
        again = Row(attempt=world.rows[task].attempt)
        yield fault(f"T{task} is requeued", with_row(poorer, task, again))


def row_lock_steps(setup: RunSetup, world: World) -> Iterator[Step[World]]:
    """A person's open transaction locks a row for a long time."""
    if world.held_row is not None:
        what = f"the open transaction on T{world.held_row} ends"
        yield progress(what, world._replace(held_row=None))
        return
    poorer = spend(setup, world, "row held")
    if poorer is not None:
        for task, row in enumerate(world.rows):
            if row.state == "RUNNING":
                what = f"a person's open transaction locks T{task}"
                yield fault(what, poorer._replace(held_row=task))


def failover_steps(setup: RunSetup, world: World) -> Iterator[Step[World]]:
    """A replica takes over that lacks the last commit, or the last few."""
    poorer = spend(setup, world, "failover")
    if poorer is None:
        return
    for number, rows in enumerate(reversed(world.before_last_commits), start=1):
        if rows != world.rows:
            what = "a replica takes over; " + "and the one before it, " * (number - 1)
            what = f"{what}the last commit is forgotten"
            yield fault(what, poorer._replace(rows=rows))
