"""Handlers that are cancelled: each is at something for eight seconds, that ends it or does not."""

from __future__ import annotations

import asyncio
import subprocess
import time
from contextlib import suppress

from house_handlers import effect
from sqlalchemy import text

from tasks_app import AsyncTaskContext, TaskCancelledError, TaskContext, handler, sql_handler

LONG_S = 8
SLEEP = f"SELECT pg_sleep({LONG_S})"


def busy(seconds: float = LONG_S) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass


@handler("cancel.sleep")
def sleep(ctx: TaskContext) -> None:
    time.sleep(LONG_S)


@handler("cancel.cpu")
def cpu(ctx: TaskContext) -> None:
    busy()


@handler("cancel.statement")
def statement(ctx: TaskContext) -> None:
    effect(ctx)
    ctx.session.execute(text(SLEEP))


sql_task = sql_handler("cancel.sql", SLEEP)


@handler("cancel.subprocess")
def process(ctx: TaskContext) -> None:
    subprocess.run(["sleep", str(LONG_S)], check=True)


@handler("cancel.await")
async def awaits(ctx: AsyncTaskContext) -> None:
    await asyncio.sleep(LONG_S)


@handler("cancel.awaited_statement")
async def awaited_statement(ctx: AsyncTaskContext) -> None:
    await ctx.session.execute(text(SLEEP))


@handler("cancel.blocks")
async def blocks(ctx: AsyncTaskContext) -> None:
    time.sleep(LONG_S)


@handler("cancel.told", cancellable=False)
def told(ctx: TaskContext) -> None:
    ends = time.monotonic() + LONG_S
    while not ctx.cancelled and time.monotonic() < ends:
        time.sleep(0.02)
    time.sleep(LONG_S / 2)


@handler("cancel.swallows")
def swallows(ctx: TaskContext) -> None:
    ends = time.monotonic() + LONG_S
    while time.monotonic() < ends:
        with suppress(TaskCancelledError):
            busy(0.1)


@handler("cancel.beside")
async def beside(ctx: AsyncTaskContext) -> None:
    """Run beside another task, in one child."""
    await asyncio.sleep(3600)
