"""What the tortured workers run. Effects have no unique constraint: a second one would be seen."""

from __future__ import annotations

import random
import time

from sqlalchemy import text

from tasks_app import AsyncTaskContext, Retry, TaskContext, handler

_EFFECT = text("INSERT INTO effect (task_id, attempt) VALUES (:task_id, :attempt)")
_LATE_EFFECT = "INSERT INTO effect (task_id, attempt) VALUES (%s, %s)"


def _write(ctx: TaskContext) -> None:
    """A third through the connection, whose transaction may have begun with a COMMIT before.

    Another third goes out with the outcome.
    """
    if ctx.task_id % 3 == 0:
        ctx.write(_LATE_EFFECT, (ctx.task_id, ctx.attempt))
        return
    through = ctx.connection if ctx.task_id % 3 == 1 else ctx.session
    through.execute(_EFFECT, {"task_id": ctx.task_id, "attempt": ctx.attempt})


@handler("torture.quick", retry="fixed 100ms", max_attempts=50)
def quick(ctx: TaskContext) -> None:
    """An effect, and done."""
    _write(ctx)


@handler("torture.steady", retry="fixed 100ms", max_attempts=50)
def steady(ctx: TaskContext) -> None:
    """An effect with time to be killed before and after it."""
    time.sleep(random.uniform(0, 0.02))
    _write(ctx)
    time.sleep(random.uniform(0, 0.02))


@handler("torture.flaky", retry="fixed 100ms", max_attempts=50)
def flaky(ctx: TaskContext) -> None:
    """An effect that is rolled back at the first two tries."""
    _write(ctx)
    if ctx.failures < 2:
        raise Retry("not yet")


@handler("torture.slow", retry="fixed 100ms", max_attempts=50)
def slow(ctx: TaskContext) -> None:
    """An effect that takes long enough for a renewal."""
    time.sleep(1.2)
    _write(ctx)


@handler("torture.awaited", retry="fixed 100ms", max_attempts=50)
async def awaited(ctx: AsyncTaskContext) -> None:
    """An effect of an async handler."""
    if ctx.task_id % 3 == 0:
        ctx.write(_LATE_EFFECT, (ctx.task_id, ctx.attempt))
        return
    await ctx.session.execute(_EFFECT, {"task_id": ctx.task_id, "attempt": ctx.attempt})
