"""The system as processes of the engine: beat, children with their lanes, the database."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dev.benchmarks.simulation.engine import Clock, Cores, Delay, Lock, Log, Process, Store
from dev.benchmarks.sizing.costs import Deployment, TaskCost
from dev.benchmarks.sizing.expectation import ExpectedRate

MESSAGE, ROOM = 500, 20_000
"""Ids in a message, and at most in all of them."""
STEPS = 8
"""A group's round trips are put together to so many, which changes no sum."""
SPREAD = 0.5
"""A burst takes its mean, more or less by up to this share."""
LANE_CYCLES, CYCLES = 20, 3_000
WARM = 0.25


@dataclass(slots=True)
class _World:
    clock: Clock
    workers: list[Cores]
    database: Cores
    beat: Cores
    log: Log
    pause: Delay
    messages: Store
    vary: Callable[[float], float]
    cycles: int = 0


def simulate(cost: TaskCost, where: Deployment, *, delay_s: float = 0.0) -> ExpectedRate:
    """Let a backlog that never ends be drained; ``delay_s`` is ``commit_delay``."""
    clock = Clock()
    world = _world(clock, where, delay_s)
    lanes = where.all_children * where.lanes
    for child in range(where.all_children):
        interpreter = Lock(clock) if where.lanes > 1 else None
        for _ in range(where.lanes):
            lane = _lane(world, cost, where, world.workers[child % where.hosts], interpreter)
            # They do not begin at once, nor stay in step.
            clock.after(world.vary(cost.child_s), partial(clock.resume, lane))
    clock.resume(_beat(world, cost))
    most = max(CYCLES, LANE_CYCLES * lanes)
    clock.run(lambda: world.cycles >= WARM * most)
    begun, before, done = clock.now, _busy(world), world.cycles
    clock.run(lambda: world.cycles >= most)
    span = clock.now - begun
    used = {name: busy - before[name] for name, busy in _busy(world).items()}
    rate = (world.cycles - done) * cost.group / span
    shares = {name: busy / span for name, busy in used.items()}
    return ExpectedRate(rate, shares)


def _world(clock: Clock, where: Deployment, delay_s: float) -> _World:
    chance = random.Random(1)  # noqa: S311  the same figures each time
    hosts = [Cores(clock, where.cores, where.slowdown) for _ in range(where.hosts)]
    shared = where.database_cores is None
    database = hosts[0] if shared else Cores(clock, where.database_cores or 1, where.slowdown)
    return _World(
        clock,
        hosts,
        database,
        hosts[0] if shared else Cores(clock, 1),
        Log(clock, where.flush_s, delay_s),
        Delay(clock),
        Store(clock, min(ROOM, MESSAGE * (2 * where.all_children + 4))),
        lambda mean: mean * chance.uniform(1 - SPREAD, 1 + SPREAD),
    )


def _busy(world: _World) -> dict[str, float]:
    database = world.database.busy_s / world.database.number
    if world.database is world.workers[0]:
        return {"host": database, "log": world.log.busy_s}
    cores = sum(host.number for host in world.workers)
    workers = sum(host.busy_s for host in world.workers) / cores
    beat = world.beat.busy_s
    return {"workers": workers, "database": database, "beat": beat, "log": world.log.busy_s}


def _beat(world: _World, cost: TaskCost) -> Process:
    while True:
        yield world.beat, world.vary(cost.beat_s * MESSAGE)
        yield world.messages, -MESSAGE


def _lane(
    world: _World, cost: TaskCost, where: Deployment, host: Cores, interpreter: Lock | None
) -> Process:
    """Do one group after the other."""
    trips, flushes = cost.trips * cost.group, cost.flushes * cost.group
    steps = max(1, min(round(trips), STEPS))
    worker_s = (cost.child_s + cost.parent_s) * cost.group / (steps + 1)
    database_s = cost.database_s * cost.group / steps
    log_s = cost.log_s / cost.flushes if cost.flushes else 0.0
    owed = 0.0
    while True:
        yield world.messages, cost.group
        for step in range(steps):
            yield from _run(world, host, interpreter, worker_s)
            if step == 0 and cost.wait_s:
                yield world.pause, cost.wait_s
            yield world.pause, trips / steps * where.trip_s
            yield world.database, world.vary(database_s)
            owed += flushes / steps
            while owed > 0.5:
                owed -= 1
                yield world.log, log_s
        yield from _run(world, host, interpreter, worker_s)
        world.cycles += 1


def _run(world: _World, host: Cores, interpreter: Lock | None, seconds: float) -> Process:
    if interpreter:
        yield interpreter, 1
    yield host, world.vary(seconds)
    if interpreter:
        yield interpreter, 0
