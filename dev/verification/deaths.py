"""Processes die: a child, a parent, a whole worker; and the parent's timer kills.

A dead child is not a dead backend: what it had sent may still be carried out. Its replacement
starts the moment its exit is collected, and its slot stays as a grave until the reaper frees it.
"""

from __future__ import annotations

from collections.abc import Iterator

from dev.verification.explorer import Step, fault, progress
from dev.verification.rows import Fence
from dev.verification.world import (
    Child,
    Grave,
    LateSettle,
    RunSetup,
    World,
    owners_in_use,
    spend,
    unused_name,
    with_child,
)


def slot_of(setup: RunSetup, child: Child) -> tuple[Fence, ...]:
    """Which ids the child's slot names as running (step 6)."""
    if not setup.rules.running_id_comes_before_decoding:
        return ()
    if setup.rules.running_id_is_cleared_when_collected:
        return child.running
    return (*(collected.fence for collected in child.outbox), *child.running)


def sent_and_unanswered(setup: RunSetup, world: World, child: Child) -> World:
    """The statements of a dead child that may still be carried out."""
    if setup.dead_leave_no_statements:
        return world
    late = set(world.late)
    if child.phase == "settling":
        late.add(LateSettle(child.running[0], "ok"))
    late.update(LateSettle(fence, outcome) for fence, outcome in child.outbox)
    return world._replace(late=frozenset(late))


def newborn(world: World, number: int) -> Child:
    """A fresh incarnation with a name of its own and an empty slot."""
    name = unused_name(owners_in_use(world), number, len(world.children))
    return Child(owner=name)


def child_dies(setup: RunSetup, world: World, number: int) -> World:
    """SIGKILL, OOM, a crash in C: one child vanishes, the parent starts another."""
    child = world.children[number]
    world = sent_and_unanswered(setup, world, child)
    if child.is_orphan:
        return with_child(world, number, Child(owner=child.owner, phase="gone"))
    grave = Grave(setup.workers[number], child.owner, slot_of(setup, child))
    world = world._replace(graves=tuple(sorted((*world.graves, grave))))
    return with_child(world, number, newborn(world, number))


def worker_dies(setup: RunSetup, world: World, worker: int) -> World:
    """Parent, children and slots are gone at once; what remains is the lease."""
    for number in setup.children_of(worker):
        world = sent_and_unanswered(setup, world, world.children[number])
        world = with_child(world, number, newborn(world, number))
    graves = tuple(grave for grave in world.graves if grave.worker != worker)
    return world._replace(graves=graves)


def has_nothing_to_lose(child: Child) -> bool:
    """Whether its death could be noticed at all."""
    return child == Child(owner=child.owner, is_orphan=child.is_orphan)


def death_steps(setup: RunSetup, world: World) -> Iterator[Step[World]]:
    """Everything that ends a process, except the tasks that kill."""
    for number, child in enumerate(world.children):
        if child.phase == "gone":
            continue
        if child.is_orphan:
            yield progress(f"orphan c{number} dies", child_dies(setup, world, number))
            continue
        yield from killed_by_the_parent(setup, world, number)
        poorer = spend(setup, world, "child crash")
        if poorer is not None and not has_nothing_to_lose(child):
            yield fault(f"c{number} is killed", child_dies(setup, poorer, number))
    for worker, parent_lives in enumerate(world.parent_lives):
        yield from worker_steps(setup, world, worker, parent_lives=parent_lives)


def killed_by_the_parent(setup: RunSetup, world: World, number: int) -> Iterator[Step[World]]:
    """The parent's timer reads the slot and kills a child past its hard limit."""
    child = world.children[number]
    if not setup.rules.parent_kills_past_the_hard_limit:
        return
    if child.phase == "running" and any(setup.kinds[f.id].hangs for f in child.running):
        what = f"c{number} is past its hard limit: the parent kills it"
        yield progress(what, child_dies(setup, world, number))


def worker_steps(
    setup: RunSetup, world: World, worker: int, *, parent_lives: bool
) -> Iterator[Step[World]]:
    """A whole worker vanishes, or only its parent, and is started again."""
    if not parent_lives:
        mine = list(setup.children_of(worker))
        if all(world.children[number].phase == "gone" for number in mine):
            for number in mine:
                world = with_child(world, number, newborn(world, number))
            alive = (*world.parent_lives[:worker], True, *world.parent_lives[worker + 1 :])
            yield progress(f"w{worker} is started again", world._replace(parent_lives=alive))
        return
    poorer = spend(setup, world, "worker crash")
    if poorer is not None:
        yield fault(f"w{worker} vanishes whole", worker_dies(setup, poorer, worker))
    poorer = spend(setup, world, "parent death")
    if poorer is not None:
        for number in setup.children_of(worker):
            orphan = world.children[number]._replace(is_orphan=True)
            poorer = with_child(poorer, number, orphan)
        dead = (*world.parent_lives[:worker], False, *world.parent_lives[worker + 1 :])
        graves = tuple(grave for grave in world.graves if grave.worker != worker)
        yield fault(
            f"w{worker}'s parent dies, its children are orphans",
            poorer._replace(parent_lives=dead, graves=graves),
        )
