"""A worker is asked to stop, and ends by itself; and a child loses all its connections."""

from __future__ import annotations

from collections.abc import Iterator

from dev.verification.child import connection_is_lost, next_task
from dev.verification.deaths import newborn
from dev.verification.explorer import Step, fault, progress
from dev.verification.world import Child, RunSetup, World, spend, with_child
from dev.verification.writes import settle


def leaving_steps(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """The effects of SIGTERM, and of an outage in the middle of a run."""
    child = world.children[number]
    if child.phase == "gone" or child.is_orphan:
        return
    if not child.asked_to_stop:
        yield from sigterm(setup, world, number)
    elif child.phase == "running":
        yield grace_is_over(setup, world, number)
    elif child.phase in {"idle", "leaving"} and has_nothing_left(setup, child):
        gone = with_child(world, number, newborn(world, number))
        yield progress(f"c{number} ends, and is started again", gone)
    yield from all_connections_are_lost(setup, world, number)


def sigterm(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """Nothing more starts; unstarted tasks go back, running ones may end."""
    poorer = spend(setup, world, "sigterm")
    child = world.children[number]
    if poorer is None or child.phase in {"hung", "outcome unknown", "leaving"}:
        return
    asked = child._replace(asked_to_stop=True, todo=(), returns=(*child.returns, *child.todo))
    if not setup.rules.leaving_gives_back_the_unstarted:
        asked = asked._replace(todo=child.todo, returns=child.returns)
    if child.phase in {"idle", "claimed"}:
        asked = next_task(asked)
    yield fault(f"c{number} is asked to stop", with_child(poorer, number, asked))


def grace_is_over(setup: RunSetup, world: World, number: int) -> Step[World]:
    """A run that is not over is released under the fence, uncharged; its effects are unknown."""
    child = world.children[number]
    fence = child.running[0]
    what = f"the grace of c{number} is over, T{fence.id} is let go"
    if setup.kinds[fence.id].at_most_once and setup.rules.leaving_ends_at_most_once_as_unknown:
        written = settle(setup, world, fence, "unknown")
        return progress(what, with_child(written, number, next_task(child)))
    left = child._replace(returns=(*child.returns, *child.running))
    return progress(what, with_child(world, number, next_task(left)))


def has_nothing_left(setup: RunSetup, child: Child) -> bool:
    """Whether all that it held is settled or released; a mutant leaves what did not start."""
    held = (*child.outbox, *child.returns)
    if setup.rules.leaving_gives_back_the_unstarted:
        held = (*held, *child.todo)
    return not held and child.reaping is None


def all_connections_are_lost(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """The housekeeper loses its connection, too: so no task is suspected of the loss."""
    child = world.children[number]
    if child.phase != "running" or not setup.kinds[child.running[0].id].in_session:
        return
    poorer = spend(setup, world, "connections lost")
    if poorer is not None:
        suspected = not setup.rules.outages_acquit
        after = connection_is_lost(child, child.running[0], suspected=suspected)
        yield fault(f"c{number} loses all its connections", with_child(poorer, number, after))
