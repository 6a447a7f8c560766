"""The zoo and its neighbours as handlers of a worker."""

from __future__ import annotations

import threading
from typing import Any

import zoo
from sqlalchemy import text

from tasks_app import AsyncTaskContext, TaskContext, handler

EFFECT = text("INSERT INTO effect (task_id, note) VALUES (:id, :note)")
BACKEND = text("""
    SELECT current_setting('lock_timeout'), to_regclass('pg_temp.zoo_left')::text,
        (SELECT count(*) FROM pg_listening_channels()),
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
""")


def look(ctx: TaskContext) -> None:
    assert zoo.SEEN.get(None) is None
    assert tuple(ctx.connection.execute(BACKEND).one()) == ("0", None, 0, 0)


@handler("neighbour", max_attempts=1)
def neighbour(ctx: TaskContext) -> None:
    """Leave an effect; fail where somebody left something in this process."""
    look(ctx)
    ctx.session.execute(EFFECT, {"id": ctx.task_id, "note": "sync"})


@handler("neighbour.timed", max_attempts=1, timeout=60)
def timed(ctx: TaskContext) -> None:
    assert threading.current_thread() is threading.main_thread()


@handler("neighbour.async", max_attempts=1, timeout=60)
async def async_neighbour(ctx: AsyncTaskContext) -> None:
    await ctx.session.execute(EFFECT, {"id": ctx.task_id, "note": "async"})


def _enter(kind: Any) -> None:
    options = {"max_attempts": 1, "hard_timeout": 30, **kind.options}
    handler(kind.task_name, **options)(kind.function)


for _kind in zoo.KINDS.values():
    _enter(_kind)
