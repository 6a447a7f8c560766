"""Faults of processes. Each fault is over when its function returns; then the world heals."""

from __future__ import annotations

import time

from dev.torture.world import Hurt, World


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
    """The broker, and everything that it held (F16)."""
    broker = world.servers.broker
    broker.kill()
    broker.wipe()
    time.sleep(world.rng.uniform(0, 1))
    broker.start()


def freeze_worker(world: World) -> None:
    """A worker stands still for longer than its lease, then goes on as if nothing had been."""
    worker = world.rng.choice(world.workers)
    worker.stop()
    time.sleep(world.lease_s * 1.5)
    worker.resume()


def freeze_child(world: World) -> None:
    """One child stands still for longer than its lease (F09)."""
    children = world.rng.choice(world.workers).children()
    for child in children[:1]:
        child.suspend()
        time.sleep(world.lease_s * 1.3)
        child.resume()


def freeze_beat(world: World) -> None:
    """The leader pauses, another leads, the first comes back (F38)."""
    beat = world.rng.choice(world.beats)
    beat.stop()
    time.sleep(world.lease_s)
    beat.resume()


def drain_worker(world: World) -> None:
    """SIGTERM, as at every deployment (F08)."""
    worker = world.rng.choice(world.workers)
    worker.end()
    worker.start()


def quit_worker(world: World) -> None:
    """SIGTERM, and SIGKILL before it had the time."""
    worker = world.rng.choice(world.workers)
    worker.terminate()
    time.sleep(world.rng.uniform(0, 0.3))
    worker.kill()
    worker.start()


FAULTS: dict[str, tuple[int, Hurt]] = {
    "kill -9 of a child": (5, kill_child),
    "kill -9 of a whole worker": (2, kill_worker),
    "kill -9 of a worker's parent": (1, kill_parent),
    "kill -9 of a beat": (2, kill_beat),
    "kill -9 of the broker with its data": (2, kill_broker),
    "SIGSTOP of a worker beyond its lease": (2, freeze_worker),
}
