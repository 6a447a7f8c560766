"""What producers and operators do meanwhile."""

from __future__ import annotations

import time

from sqlalchemy import text

from tasks_app import NewTask, create_tasks
from tasks_app.pool.cancel import cancel
from tasks_app.pool.pause import pause, resume
from tasks_app.pool.requeue import requeue
from torture.world import World

_ANY = text("SELECT id FROM task_pending ORDER BY random() LIMIT 20")
_CANCELLED = text(
    "SELECT id FROM task_completed WHERE state = 'CANCELLED' ORDER BY random() LIMIT 10"
)
COMMITTED = text("INSERT INTO committed SELECT unnest(CAST(:ids AS bigint[]))")


def hold_producers(world: World) -> None:
    """Producers' transactions stay open, and commit in another order than they began (F55)."""
    connections = [world.engine.connect() for _ in range(5)]
    try:
        for connection in connections:
            ids = create_tasks(connection, [NewTask("torture.quick")] * 5)
            connection.execute(COMMITTED, {"ids": [int(i) for i in ids]})
        world.rng.shuffle(connections)
        for number, connection in enumerate(connections):
            time.sleep(world.rng.uniform(0, 0.5))
            if number:
                connection.commit()
            else:
                connection.rollback()
    finally:
        for connection in connections:
            connection.close()


def cancel_some(world: World) -> None:
    """Tasks are cancelled, waiting and running ones (F57)."""
    with world.engine.begin() as connection:
        for task_id in connection.execute(_ANY).scalars().all():
            cancel(connection, task_id)


def pause_and_resume(world: World) -> None:
    """The queue is stopped for a moment (F57)."""
    with world.engine.begin() as connection:
        pause(connection, "default", "torture")
    time.sleep(world.rng.uniform(0, 1))
    with world.engine.begin() as connection:
        resume(connection, "default")


def cancel_and_requeue(world: World) -> None:
    """Tasks are cancelled, and some of them wanted back (F57)."""
    cancel_some(world)
    with world.engine.begin() as connection:
        for task_id in connection.execute(_CANCELLED).scalars().all():
            requeue(connection, task_id)
