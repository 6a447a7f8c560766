"""What our workers run."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from dev.benchmarks.marks import gather, mark, now
from dev.benchmarks.peers.verbs import EFFECT, EFFECTS
from tasks_app import AsyncTaskContext, Item, TaskContext, handler

_EFFECT, _EFFECTS = text(EFFECT.format(":i")), text(EFFECTS.format(":i"))

Payload = dict[str, Any]


BURN_NS = int(os.environ.get("BENCH_BURN_NS", "0"))
"""Of CPU per task: how the gate is shown to notice that something became slower."""


@handler("noop")
def noop(_ctx: TaskContext, payload: Payload) -> None:
    """Nothing."""
    mark(payload["i"], now())
    if BURN_NS:
        until = time.thread_time_ns() + BURN_NS
        while time.thread_time_ns() < until:
            pass


def _insert(ctx: TaskContext, payload: Payload) -> None:
    started = now()
    ctx.connection.execute(_EFFECT, payload)
    mark(payload["i"], started)


handler("insert")(_insert)


@handler("insert_write")
def insert_write(ctx: TaskContext, payload: Payload) -> None:
    """Send the row along with the outcome."""
    started = now()
    ctx.write(EFFECT.format("%s"), (payload["i"],))
    mark(payload["i"], started)


@handler("insert_write_async")
async def insert_write_async(ctx: TaskContext[AsyncSession], payload: Payload) -> None:
    """The same in the event loop."""
    started = now()
    ctx.write(EFFECT.format("%s"), (payload["i"],))
    mark(payload["i"], started)


@handler("insert_bulk", at_once=100)
def insert_bulk(ctx: TaskContext, items: Sequence[Item[Payload]]) -> None:
    """Write the rows of a call's tasks by one statement."""
    started, numbers = now(), [item.payload["i"] for item in items]
    ctx.connection.execute(_EFFECTS, {"i": numbers})
    for i in numbers:
        mark(i, started)


@handler("insert_driver")
def insert_driver(ctx: TaskContext, payload: Payload) -> None:
    """Write through psycopg's own connection, in the same transaction."""
    started = now()
    driver: Any = ctx.connection.connection.driver_connection
    driver.execute(EFFECT.format("%s"), [payload["i"]])
    mark(payload["i"], started)


@handler("insert_async")
async def insert_async(ctx: TaskContext[AsyncSession], payload: Payload) -> None:
    """Write the row in the event loop."""
    started = now()
    connection = await ctx.session.connection()
    await connection.execute(_EFFECT, payload)
    mark(payload["i"], started)


def _sleep(name: str, seconds: float) -> None:
    """Make a handler that blocks, as a request to somebody else would."""

    @handler(name)
    def sleep(_ctx: TaskContext, payload: Payload) -> None:
        started = now()
        time.sleep(seconds)
        mark(payload["i"], started)


_sleep("sleep", 0.1)
_sleep("sleep_20", 0.02)
_sleep("sleep_200", 0.2)


@handler("sleep_async")
async def sleep_async(_ctx: AsyncTaskContext, payload: Payload) -> None:
    """Wait for a second and let others run."""
    started = now()
    await asyncio.sleep(1)
    mark(payload["i"], started)


if "--alone" in sys.argv:  # a `tasks-app work` and not its parent
    gather("ours")
