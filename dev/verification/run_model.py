"""The run model: rows, children with housekeepers and slots, reapings, leases, operators."""

from __future__ import annotations

from collections.abc import Iterator

from dev.verification.child import child_steps
from dev.verification.claim import claim_steps
from dev.verification.deaths import death_steps
from dev.verification.explorer import Step
from dev.verification.housekeeper import housekeeper_steps
from dev.verification.leaving import leaving_steps
from dev.verification.operators import failover_steps, operator_steps, row_lock_steps
from dev.verification.promises import broken_promise
from dev.verification.reaping import reaping_steps
from dev.verification.rescue import late_statement_steps, rescue_steps, time_steps
from dev.verification.rows import TERMINAL, Row
from dev.verification.world import LateClaim, LateSettle, RunSetup, World, first_world


class RunModel:
    """Steps 4 to 9 of the walk for one configuration."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup
        self._remembers_commits = setup.failover_forgets if "failover" in setup.faults else 0

    def initial(self) -> World:
        return first_world(self._setup)

    def steps(self, world: World) -> Iterator[Step[World]]:
        for step in self._all_steps(world):
            after = step.after
            if writes_a_locked_row(world, after):
                continue
            if after.late:
                after = without_hopeless_statements(after)
            if self._setup.rules.reaper_charges_under_the_fence:
                after = without_idle_graves(after)
            if self._remembers_commits and after.rows != world.rows:
                known = (*world.before_last_commits, world.rows)[-self._remembers_commits :]
                after = after._replace(before_last_commits=known)
            yield step if after is step.after else step._replace(after=after)

    def _all_steps(self, world: World) -> Iterator[Step[World]]:
        setup = self._setup
        for number in range(len(world.children)):
            yield from claim_steps(setup, world, number)
            yield from child_steps(setup, world, number)
            yield from housekeeper_steps(setup, world, number)
            yield from leaving_steps(setup, world, number)
            yield from reaping_steps(setup, world, number)
        yield from rescue_steps(setup, world)
        yield from late_statement_steps(setup, world)
        yield from time_steps(setup, world)
        yield from death_steps(setup, world)
        yield from operator_steps(setup, world)
        yield from row_lock_steps(setup, world)
        yield from failover_steps(setup, world)

    def broken_promise(self, before: World, step: Step[World]) -> str | None:
        """P2 to P6."""
        return broken_promise(self._setup, before, step.what, step.after)

    def finished(self, world: World) -> bool:
        return all(row.state in TERMINAL for row in world.rows)

    def picture(self, world: World) -> str:
        """The rows, and what differs from a new one."""
        return "; ".join(picture_of(task, row) for task, row in enumerate(world.rows))


def writes_a_locked_row(before: World, after: World) -> bool:
    """Any other writer of that row skips it or waits, so nothing happens yet."""
    held = before.held_row
    return held is not None and after.rows[held] != before.rows[held]


def without_hopeless_statements(world: World) -> World:
    """A late settle whose claim is over can change nothing under the fence: forget it."""
    rows = world.rows
    late = frozenset(
        sent
        for sent in world.late
        if not (isinstance(sent, LateSettle) and rows[sent.fence.id].token != sent.fence.token)
    )
    return world if late == world.late else world._replace(late=late)


def without_idle_graves(world: World) -> World:
    """A reaping that can find no row any more, now or later, is as good as over."""
    reapers = [child for child in world.children if child.reaping is not None]
    if not world.graves and not reapers:
        return world
    named = {row.owner for row in world.rows if row.state == "RUNNING"}
    named.update(sent.owner for sent in world.late if isinstance(sent, LateClaim))
    children = tuple(
        child
        if child.reaping is None or child.reaping.grave.owner in named
        else child._replace(reaping=None)
        for child in world.children
    )
    graves = tuple(grave for grave in world.graves if grave.owner in named)
    return world._replace(children=children, graves=graves)


def picture_of(task: int, row: Row) -> str:
    """T0 RUNNING token 1 failures 1."""
    words = [f"T{task} {row.state}"]
    for name in ("token", "failures", "crashes", "attempt", "effects", "runs"):
        number = getattr(row, name)
        if number:
            words.append(f"{name} {number}")
    if row.cancel_requested:
        words.append("cancel requested")
    if not row.lease_is_good:
        words.append("lease over")
    return " ".join(words)
