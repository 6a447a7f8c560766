"""Tasks that last until somebody cancels them, who does so, and what must be true after that."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

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
LATE_S = 3.0
"""Two seconds for the interruption or the kill, and one for the load."""
GRACES = (None, 0.0, 0.5, 1.5)
"""Of ``kill_after``, in seconds; None: no kill."""
KEPT, MOST = 24, 12  # tasks that there are, and that are cancelled each time
_LASTING = text("SELECT count(*) FROM task_pending WHERE name LIKE 'lasting.%'")
_RUNNING = text("""
    SELECT id, attempt FROM task_pending WHERE state = 'RUNNING' AND name LIKE 'lasting.%'
    ORDER BY random() LIMIT :most""")
_ASKED = text("""
    CREATE TABLE IF NOT EXISTS asked (task_id bigint, attempt integer, grace_s float8,
        at float8 DEFAULT extract(epoch FROM clock_timestamp()))""")
_ASK = text("INSERT INTO asked VALUES (:task_id, :attempt, :grace_s)")
_ENDS = text("""
    SELECT a.task_id, a.attempt, t.name, min(a.at) AS at, min(a.at + a.grace_s) AS kill_at
    FROM asked a JOIN task_all t ON t.id = a.task_id GROUP BY 1, 2, 3""")
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
            AS killed
    FROM (SELECT task_id, max(attempt) AS attempt FROM asked GROUP BY task_id) a
    LEFT JOIN task_completed c ON c.id = a.task_id""")


@contextmanager
def seen(ctx: TaskContext[Any]) -> Iterator[Path]:
    """Date a file when the handler begins, and another one when it is left; yield that."""
    name = f"{ctx.task_id}-{ctx.attempt}"
    began, last = (Path(os.environ["TORTURE_FOLDER"]) / f"{w}-{name}" for w in ("began", "last"))
    began.touch()
    try:
        yield last
    finally:
        last.touch()


def _write(ctx: TaskContext[Any]) -> None:
    ctx.write(EFFECT, (ctx.task_id, ctx.attempt))


@handler("lasting.sleeps", retry="fixed 100ms", max_attempts=50)
def sleeps(ctx: TaskContext) -> None:
    with seen(ctx):
        time.sleep(LASTS_S)
    _write(ctx)


@handler("lasting.works", retry="fixed 100ms", max_attempts=50)
def works(ctx: TaskContext) -> None:
    ends = time.monotonic() + LASTS_S
    with seen(ctx):
        while time.monotonic() < ends:
            pass
    _write(ctx)


@handler("lasting.asks", retry="fixed 100ms", max_attempts=50)
def asks(ctx: TaskContext) -> None:
    with seen(ctx):
        ctx.session.execute(text("SELECT pg_sleep(:s)"), {"s": LASTS_S})
    _write(ctx)


@handler("lasting.awaits", retry="fixed 100ms", max_attempts=50)
async def awaits(ctx: AsyncTaskContext) -> None:
    with seen(ctx):
        await asyncio.sleep(LASTS_S)
    _write(ctx)


@handler("lasting.stays", retry="fixed 100ms", max_attempts=50)
def stays(ctx: TaskContext) -> None:
    """Swallow what is raised."""
    ends = time.monotonic() + LASTS_S
    with seen(ctx) as last:
        while time.monotonic() < ends:
            with suppress(TaskCancelledError):
                time.sleep(0.05)
                last.touch()
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


def _latest_s(connection: Connection, folder: Path) -> float:
    """Return how many seconds after its interruption, or after its grace, a handler still ran."""
    latest_s = 0.0
    for run in connection.execute(_ENDS):
        began, last = (folder / f"{w}-{run.task_id}-{run.attempt}" for w in ("began", "last"))
        due = run.kill_at if run.name == NAMES[-1] else run.at
        if due is not None and last.exists():
            due = max(due, began.stat().st_mtime)
            latest_s = max(latest_s, last.stat().st_mtime - due)
    return round(latest_s, 1)


def judge_cancels(connection: Connection, folder: Path) -> list[Check]:
    f, latest_s = connection.execute(_LEFT).one(), _latest_s(connection, folder)
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
        Check("no handler ran on for longer than this", latest_s <= LATE_S, latest_s),
    ]
