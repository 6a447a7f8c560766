"""Handlers that declare no limit of their own: Celery's bound them."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from tasks_app import AsyncTaskContext, TaskContext, handler


@handler("short")
def short(ctx: TaskContext) -> None:
    time.sleep(0.05)


@handler("endless", max_attempts=1)
def endless(ctx: TaskContext) -> None:
    while True:
        time.sleep(0.01)


@handler("endless.async", max_attempts=1)
async def endless_async(ctx: AsyncTaskContext) -> None:
    await asyncio.sleep(60)


@handler("deaf", max_attempts=1)
def deaf(ctx: TaskContext) -> None:
    """Never end, whatever is raised."""
    while True:
        with suppress(BaseException):
            time.sleep(60)


@handler("patient", timeout="30s", hard_timeout="1m")
def patient(ctx: TaskContext) -> None:
    """Take longer than Celery's limits, and say so."""
    time.sleep(4)
