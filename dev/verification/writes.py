"""The fenced writes of a run: settle and release (steps 7 and 8)."""

from __future__ import annotations

from dev.verification.rows import Fence, Outcome, back_to_pending, crashed, settled
from dev.verification.world import RunSetup, World, holds, note_stale_write, with_row


def settle(setup: RunSetup, world: World, fence: Fence, outcome: Outcome) -> World:
    """Write an outcome under the fence; a stale one changes nothing (P6)."""
    if not holds(setup, world, fence):
        return world
    world = note_stale_write(world, fence, f"settle ({outcome})")
    row = world.rows[fence.id]
    return with_row(world, fence.id, settled(setup.rules, setup.kinds[fence.id], row, outcome))


def release(setup: RunSetup, world: World, fence: Fence) -> World:
    """RUNNING -> PENDING under the fence, uncharged."""
    if not holds(setup, world, fence):
        return world
    world = note_stale_write(world, fence, "release")
    return with_row(world, fence.id, back_to_pending(setup.rules, world.rows[fence.id]))


def count_a_crash(setup: RunSetup, world: World, fence: Fence) -> World:
    """RUNNING -> PENDING under the fence, with one crash more: its connection was lost alone."""
    if not holds(setup, world, fence):
        return world
    world = note_stale_write(world, fence, "crash")
    return with_row(world, fence.id, crashed(setup.rules, world.rows[fence.id]))
