"""What our workers run."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from typing import Any

from sqlalchemy import text

from benchmarks.marks import gather, mark, now
from tasks_app import TaskContext, handler
from tasks_app.domain.errors import HandlerError

_EFFECT = text("INSERT INTO effect (i) VALUES (:i)")

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


def _write(ctx: TaskContext, payload: Payload) -> None:
    started = now()
    ctx.write("INSERT INTO effect (i) VALUES (%s)", (payload["i"],))
    mark(payload["i"], started)


handler("insert")(_insert)
handler("insert_write")(_write)
with suppress(HandlerError):  # not built yet; the scenario asks ``can_batch``
    handler("insert_batch", commit="batch")(_insert)


@handler("sleep")
def sleep(_ctx: TaskContext, payload: Payload) -> None:
    """Block for a tenth of a second, as a request to somebody else would."""
    started = now()
    time.sleep(0.1)
    mark(payload["i"], started)


@handler("sleep_async")
async def sleep_async(_ctx: TaskContext, payload: Payload) -> None:
    """Wait for a second and let others run."""
    started = now()
    await asyncio.sleep(1)
    mark(payload["i"], started)


if "--alone" in sys.argv:  # a `tasks-app work` and not its parent
    gather("ours")
