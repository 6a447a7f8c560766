"""Handlers for tests of workers that stop: what they do depends on the worker they are in."""

from __future__ import annotations

import asyncio
import os
import re
import time
from typing import Any

from house_handlers import EFFECT, effect

from tasks_app import AsyncTaskContext, TaskContext, handler


def here(payload: dict[str, Any]) -> bool:
    return os.environ["TASKS_APP_NODE"].startswith(f"{payload['on']}@")


def hold_on(ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Leave an effect; on that worker, go on for ever, whatever is raised."""
    effect(ctx)
    ctx.session.flush()
    while here(payload):
        try:
            time.sleep(60)
        except:  # noqa: E722  as people write it
            ctx.log.warning("not me")


@handler("stop.free")
def free(ctx: TaskContext, payload: dict[str, Any]) -> None:
    hold_on(ctx, payload)


@handler("stop.charged", on_interrupt="retry", retry="0s")
def charged(ctx: TaskContext, payload: dict[str, Any]) -> None:
    hold_on(ctx, payload)


@handler("stop.once", at_most_once=True)
def once(ctx: TaskContext, payload: dict[str, Any]) -> None:
    hold_on(ctx, payload)


@handler("stop.async")
async def never_awaits(ctx: AsyncTaskContext, payload: dict[str, Any]) -> None:
    while here(payload):
        time.sleep(60)


@handler("stop.selfish")
def selfish(ctx: TaskContext, payload: dict[str, Any]) -> None:
    if here(payload):
        re.match(r"(a+)+b", "a" * 40)


def note_start(ctx: TaskContext) -> None:
    """Write down, past every transaction, that this attempt began."""
    with open(os.environ["STOP_STARTS"], "a") as file:  # noqa: PTH123
        file.write(f"{ctx.task_id}\n")


@handler("load.sync")
def load_sync(ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Leave an effect, and take a while, whatever is raised."""
    note_start(ctx)
    effect(ctx)
    ctx.session.flush()
    ends = time.monotonic() + payload["seconds"]
    while time.monotonic() < ends:
        try:
            time.sleep(0.01)
        except:  # noqa: E722
            ctx.log.warning("not me")


@handler("load.async")
async def load_async(ctx: AsyncTaskContext, payload: dict[str, Any]) -> None:
    note_start(ctx)
    await ctx.session.execute(EFFECT, {"id": ctx.task_id, "note": f"attempt {ctx.attempt}"})
    await asyncio.sleep(payload["seconds"])


@handler("plain.slow")
def plain_slow(ctx: TaskContext, payload: dict[str, Any]) -> None:
    time.sleep(payload["seconds"])
