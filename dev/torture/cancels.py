"""Tasks that last until somebody cancels them, who does so, and what must be true after that."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta

from sqlalchemy import Connection, text

from dev.torture.faults import kill_child
from dev.torture.operators import COMMITTED
from dev.torture.verdict import Check
from dev.torture.world import World
from tasks_app import (
    AsyncTaskContext,
    NewTask,
    TaskCancelledError,
    TaskContext,
    create_tasks,
    handler,
)
from tasks_app.pool.tasks.cancel import cancel

LASTS_S = 8.0
EFFECT = "INSERT INTO effect (task_id, attempt) VALUES (%s, %s)"
NAMES = ("lasting.sleeps", "lasting.works", "lasting.asks", "lasting.awaits", "lasting.stays")
LATE_S = 5.0
"""Two seconds for the interruption or the kill, two until a sibling reaps, and one for the load."""
GRACES = (None, 0.0, 0.5, 1.5)
"""Of ``kill_after``, in seconds; None: no kill."""
KEPT, MOST = 24, 12  # tasks that there are, and that are cancelled each time
_LASTING = text("SELECT count(*) FROM task_pending WHERE name LIKE 'lasting.%'")
_RUNNING = text("""
    SELECT id, attempt FROM task_pending WHERE state = 'RUNNING' AND name LIKE 'lasting.%'
    ORDER BY random() LIMIT :most""")
_ASKED = text("CREATE TABLE IF NOT EXISTS asked (task_id bigint, attempt integer, grace_s float8)")
_ASK = text("INSERT INTO asked VALUES (:task_id, :attempt, :grace_s)")
_LEFT = text("""
    SELECT
        (SELECT count(DISTINCT task_id) FROM asked) AS cancels,
        (SELECT count(*) FROM asked WHERE grace_s IS NOT NULL) AS kills,
        count(*) FILTER (WHERE c.state = 'CANCELLED') AS cancelled,
        count(*) FILTER (WHERE c.state = 'SUCCEEDED') AS succeeded,
        count(*) FILTER (WHERE c.attempt > a.attempt) AS again,
        count(*) FILTER (WHERE coalesce(c.state, '') NOT IN ('CANCELLED', 'SUCCEEDED')) AS others,
        (SELECT count(*) FROM task_attempt WHERE event = 'rescue' AND kind = 'process killed')
            AS charged,
        (SELECT count(*) FROM task_completed WHERE error LIKE 'process killed: Its process %')
            AS killed,
        max(extract(epoch FROM c.finished_at - c.cancel_requested_at) - a.grace) AS latest_s
    FROM (SELECT task_id, max(attempt) AS attempt, min(grace_s) AS grace FROM asked
          GROUP BY task_id) a LEFT JOIN task_completed c ON c.id = a.task_id""")


def _write(ctx: TaskContext) -> None:
    ctx.write(EFFECT, (ctx.task_id, ctx.attempt))


@handler("lasting.sleeps", retry="fixed 100ms", max_attempts=50)
def sleeps(ctx: TaskContext) -> None:
    time.sleep(LASTS_S)
    _write(ctx)


@handler("lasting.works", retry="fixed 100ms", max_attempts=50)
def works(ctx: TaskContext) -> None:
    ends = time.monotonic() + LASTS_S
    while time.monotonic() < ends:
        pass
    _write(ctx)


@handler("lasting.asks", retry="fixed 100ms", max_attempts=50)
def asks(ctx: TaskContext) -> None:
    ctx.session.execute(text("SELECT pg_sleep(:s)"), {"s": LASTS_S})
    _write(ctx)


@handler("lasting.awaits", retry="fixed 100ms", max_attempts=50)
async def awaits(ctx: AsyncTaskContext) -> None:
    await asyncio.sleep(LASTS_S)
    ctx.write(EFFECT, (ctx.task_id, ctx.attempt))


@handler("lasting.stays", retry="fixed 100ms", max_attempts=50)
def stays(ctx: TaskContext) -> None:
    """Swallow what is raised."""
    ends = time.monotonic() + LASTS_S
    while time.monotonic() < ends:
        with suppress(TaskCancelledError):
            time.sleep(0.05)
    _write(ctx)


def cancel_running(world: World) -> None:
    """Tasks are cancelled while they run, and killed after a moment (F57)."""
    with world.engine.begin() as connection:
        connection.execute(_ASKED)
        new = max(0, KEPT - connection.execute(_LASTING).scalar_one())
        tasks = [NewTask(world.rng.choice(NAMES)) for _ in range(new)]
        ids = [int(task_id) for task_id in create_tasks(connection, tasks)]
        connection.execute(COMMITTED, {"ids": ids})
    with world.engine.begin() as connection:
        found = connection.execute(_RUNNING, {"most": MOST}).all()
    for task_id, attempt in found:
        time.sleep(world.rng.uniform(0, 0.05))
        grace_s = world.rng.choice(GRACES)
        after = None if grace_s is None else timedelta(seconds=grace_s)
        with world.engine.begin() as connection:
            if cancel(connection, task_id, kill_after=after) == "requested":
                asked = {"task_id": task_id, "attempt": attempt, "grace_s": grace_s}
                connection.execute(_ASK, asked)


def draw(world: World) -> str:
    """Cancel some, and kill a child now and then."""
    world.hurt("running tasks cancelled", cancel_running)
    if world.rng.random() < 0.25:
        world.hurt("child killed", kill_child)
    return "cancels"


def judge_cancels(connection: Connection) -> list[Check]:
    f = connection.execute(_LEFT).one()
    return [
        Check(
            "runs were cancelled, of which this many by a kill",
            f.cancels > 0,
            (f.cancels, f.killed),
        ),
        Check(
            "each ended CANCELLED, or with its success", f.others == 0, (f.cancelled, f.succeeded)
        ),
        Check("none of them ran again", f.again == 0, f.again),
        Check("nobody is charged for a kill of another", f.charged == 0, f.charged),
        Check("the latest was written so soon after its grace", f.latest_s <= LATE_S, f.latest_s),
    ]
