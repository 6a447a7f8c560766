"""Handlers of the worker processes in these tests; their folder is put on PYTHONPATH."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

import tasks_app
from tasks_app import AsyncTaskContext, TaskContext, create_task, handler

EFFECT = text("INSERT INTO effect (task_id, note) VALUES (:id, :note)")


def effect(ctx: TaskContext) -> None:
    ctx.session.execute(EFFECT, {"id": ctx.task_id, "note": f"attempt {ctx.attempt}"})


@handler("ok")
def ok(ctx: TaskContext) -> None:
    effect(ctx)


if "sql_handler" in tasks_app.__all__:  # workers of the last release import this, too
    tasks_app.sql_handler("ok.sql", "INSERT INTO effect (task_id, note) VALUES (:n, :note)")
    tasks_app.sql_handler(
        "slow.sql", "INSERT INTO effect (task_id) SELECT :n::bigint FROM pg_sleep(0.005)"
    )


@handler("plain")
def plain(ctx: TaskContext) -> int:
    return ctx.attempt


@handler("when")
def when(ctx: TaskContext) -> float:
    return time.time()


@handler("brief")
def brief(ctx: TaskContext) -> None:
    time.sleep(0.2)


@handler("who")
def who(ctx: TaskContext) -> dict[str, Any]:
    time.sleep(0.1)
    backend = ctx.connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "backend": backend,
        "frozen": gc.get_freeze_count(),
    }


@handler("only.writes")
def only_writes(ctx: TaskContext) -> None:
    ctx.write("SELECT 1")


@handler("poison", retry="0.1s,0.1s")
def poison(ctx: TaskContext) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@handler("dies.once", retry="0s,0s")
def dies_once(ctx: TaskContext, payload: dict[str, str]) -> float:
    """Write down when, and kill the process; the next time tell when it began."""
    if ctx.attempt == 1:
        Path(payload["path"]).write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    return time.time()


@handler("marks")
def marks(ctx: TaskContext, payload: dict[str, str]) -> None:
    """Leave a line in a file; wait until a second one is there, once somebody asked for it."""
    with Path(payload["path"]).open("a") as file:
        file.write(f"{ctx.task_id}\n")
    go_on = Path(payload.get("go_on", payload["path"]))
    while not go_on.exists():
        time.sleep(0.01)


@handler("quit", retry="0s,0s")
def quit_(ctx: TaskContext, payload: dict[str, int]) -> None:
    os._exit(payload["status"])


@handler("memory", max_attempts=1)
def memory(ctx: TaskContext) -> None:
    """Raise what Celery would take as the end of the worker."""
    raise MemoryError


@handler("leave", max_attempts=1)
def leave(ctx: TaskContext) -> None:
    raise SystemExit(1)


@handler("hang", hard_timeout=1, max_attempts=1)
def hang(ctx: TaskContext) -> None:
    """Catch whatever is raised, and go on for ever."""
    while True:
        try:
            time.sleep(60)
        except BaseException:
            ctx.log.warning("not me")


@handler("parent")
def parent(ctx: TaskContext, payload: dict[str, int]) -> None:
    for _ in range(payload["children"]):
        create_task(ctx.session, "plain")


@handler("slow")
def slow(ctx: TaskContext, payload: dict[str, Any]) -> None:
    effect(ctx)
    ctx.session.flush()
    ends = time.monotonic() + payload["seconds"]
    while time.monotonic() < ends:
        time.sleep(0.01)


@handler("flaky", retry="0.1s,0.1s")
def flaky(ctx: TaskContext) -> None:
    effect(ctx)
    if ctx.failures == 0:
        raise LookupError("not yet")


@handler("bad", max_attempts=1)
def bad(ctx: TaskContext) -> None:
    effect(ctx)
    raise LookupError("never")


@handler("late", timeout="300ms", max_attempts=1)
def late(ctx: TaskContext) -> None:
    effect(ctx)
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        pass


@handler("late.async", timeout="300ms", max_attempts=1)
async def late_async(ctx: AsyncTaskContext) -> None:
    await ctx.session.execute(EFFECT, {"id": ctx.task_id, "note": "late"})
    await asyncio.sleep(20)


@handler("stuck.async", hard_timeout=1, max_attempts=1)
async def stuck_async(ctx: AsyncTaskContext) -> None:
    while True:
        time.sleep(60)
