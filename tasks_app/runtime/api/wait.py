"""Wait until a task is over, for the few callers that need its result.

Nothing announces the end of a task: who waits looks at its row, at growing intervals, each time in
a short transaction. So no connection, snapshot or lock is held in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from tasks_app.domain.durations import Duration, format_duration, named_duration
from tasks_app.domain.errors import InvalidConnectionError, UnknownTaskError, WaitTimeoutError
from tasks_app.domain.tasks.names import check_id
from tasks_app.domain.tasks.records import Task
from tasks_app.domain.tasks.states import TERMINAL
from tasks_app.runtime.api.tasks import aget_task, get_task
from tasks_app.runtime.db.connections import (
    Async,
    AsyncRaw,
    Raw,
    Sync,
    is_async_engine,
    is_async_raw,
    is_async_session,
    is_raw,
    shown,
    unwrapped,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

FIRST_PAUSE_S, GROWTH, LONGEST_PAUSE_S = 0.05, 1.5, 1.0
"""A task of milliseconds is seen soon; a look a second at one of hours costs nobody anything."""


def wait_task(engine_or_session: Engine | Sync | Raw, task_id: int, timeout: Duration) -> Task:
    """Wait until the task is over, and return it: succeeded, failed, or however it ended.

    A task that waits for a retry is not over. A session or connection must be in no transaction.

    >>> task = wait_task(engine, failed_id, timeout="10s")
    >>> print(task.state, task.error)
    FAILED ConnectionRefusedError: no bank

    Raises:
        WaitTimeoutError: it is not over yet. It goes on, and you may wait again.
        UnknownTaskError: no task has this id: its transaction has not committed, it was pruned, or
            it succeeded and its ``history`` keeps no row.
    """
    caller: Any = unwrapped(engine_or_session)
    if not (isinstance(caller, Engine | Session | Connection) or is_raw(caller)):
        raise InvalidConnectionError(
            f"{shown(caller)} is no Engine, Session or Connection. "
            "Pass the Engine of your sessions; async ones go to await_task."
        )
    _check_idle(caller)
    span = named_duration("timeout", timeout)
    task_id = check_id(task_id)
    waits = pauses(span.total_seconds())
    while (task := _known(_look(caller, task_id), task_id)).state not in TERMINAL:
        time.sleep(_next(waits, task, span))
    return task


async def await_task(
    engine_or_session: AsyncEngine | Async | AsyncRaw, task_id: int, timeout: Duration
) -> Task:
    """Wait in an event loop, which is free meanwhile; else as ``wait_task``."""
    caller: Any = unwrapped(engine_or_session)
    if not (is_async_engine(caller) or is_async_session(caller) or is_async_raw(caller)):
        raise InvalidConnectionError(
            f"{shown(caller)} is no AsyncEngine, AsyncSession or AsyncConnection. "
            "Pass the AsyncEngine of your sessions; others go to wait_task."
        )
    _check_idle(caller)
    span = named_duration("timeout", timeout)
    task_id = check_id(task_id)
    waits = pauses(span.total_seconds())
    while (task := _known(await _alook(caller, task_id), task_id)).state not in TERMINAL:
        await asyncio.sleep(_next(waits, task, span))
    return task


def pauses(span_s: float, clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
    """Yield the pause after each look but the last one, which is at the end of the span."""
    ends, pause = clock() + span_s, FIRST_PAUSE_S
    while (left := ends - clock()) > 0:
        yield min(pause, left)
        pause = min(pause * GROWTH, LONGEST_PAUSE_S)


def _next(waits: Iterator[float], task: Task, span: timedelta) -> float:
    for pause in waits:
        return pause
    raise WaitTimeoutError(task.id, task.name, task.state, format_duration(span))


def _check_idle(caller: Any) -> None:
    """Refuse an open transaction: waiting would keep it open, and what it created cannot start."""
    if is_async_engine(caller) or isinstance(caller, Engine):
        return
    if is_raw(caller) or is_async_raw(caller):
        within = caller.info.transaction_status.name in {"INTRANS", "INERROR"}
    else:
        within = caller.in_transaction()
    if within:
        raise InvalidConnectionError(
            f"{shown(caller)} is in a transaction: a task that it created starts only after the "
            "commit, so this would wait for ever. Commit first, or pass an engine."
        )


def _look(caller: Any, task_id: int) -> Task | None:
    if isinstance(caller, Engine):
        with caller.begin() as connection:
            return get_task(connection, task_id)
    if is_raw(caller):
        with nullcontext() if caller.autocommit else caller.transaction():
            return get_task(caller, task_id)
    with caller.begin():
        return get_task(caller, task_id)


async def _alook(caller: Any, task_id: int) -> Task | None:
    if is_async_engine(caller):
        async with caller.begin() as connection:
            return await aget_task(connection, task_id)
    if is_async_raw(caller):
        async with nullcontext() if caller.autocommit else caller.transaction():
            return await aget_task(caller, task_id)
    async with caller.begin():
        return await aget_task(caller, task_id)


def _known(task: Task | None, task_id: int) -> Task:
    if task is None:
        raise UnknownTaskError(task_id)
    return task
