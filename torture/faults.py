"""The faults, drawn with a seed. Each is over when its function returns; the world then heals."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tasks_app.embedded.valkey import Valkey
from torture.processes import Service


@dataclass
class World:
    """What can be hurt."""

    workers: list[Service]
    beats: list[Service]
    broker: Valkey
    lease_s: float
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)

    def hurt(self) -> str:
        """Draw a fault and carry it out; return its name."""
        fault = self.rng.choices(list(FAULTS), weights=[weight for weight, _ in FAULTS.values()])[0]
        FAULTS[fault][1](self)
        self.counts[fault] += 1
        return fault


def kill_child(world: World) -> None:
    """One child of a worker."""
    world.rng.choice(world.workers).kill_child(world.rng.randrange(100))


def kill_worker(world: World) -> None:
    """A whole worker, parent and children; another takes its place."""
    worker = world.rng.choice(world.workers)
    worker.kill()
    time.sleep(world.rng.uniform(0, 1))
    worker.start()


def kill_parent(world: World) -> None:
    """A worker's parent: its children are orphans."""
    worker = world.rng.choice(world.workers)
    worker.kill_parent()
    worker.start()


def kill_beat(world: World) -> None:
    """A beat."""
    beat = world.rng.choice(world.beats)
    beat.kill()
    beat.start()


def kill_broker(world: World) -> None:
    """The broker, and everything that it held."""
    world.broker.kill()
    world.broker.wipe()
    time.sleep(world.rng.uniform(0, 1))
    world.broker.start()


def freeze_worker(world: World) -> None:
    """A worker stands still for longer than its lease, then goes on as if nothing had been."""
    worker = world.rng.choice(world.workers)
    worker.stop()
    time.sleep(world.lease_s * 1.5)
    worker.resume()


FAULTS: dict[str, tuple[int, Callable[[World], None]]] = {
    "kill -9 of a child": (5, kill_child),
    "kill -9 of a whole worker": (2, kill_worker),
    "kill -9 of a worker's parent": (1, kill_parent),
    "kill -9 of a beat": (2, kill_beat),
    "kill -9 of the broker with its data": (2, kill_broker),
    "SIGSTOP of a worker beyond its lease": (2, freeze_worker),
}
