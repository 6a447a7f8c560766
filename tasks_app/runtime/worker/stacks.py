"""Stacks: what every thread and coroutine of a child does, for whoever asks.

Files, lines and names of functions; no locals, arguments or payloads.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import CoroutineType, FrameType
from typing import Any

from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.execution.claims import ChildParts
from tasks_app.runtime.execution.pools import AsyncPool
from tasks_app.runtime.handlers.checkpoint import ActiveRun

log = quiet_logger(__name__)
LOOK_EVERY_S = 1.0
MOST_COROUTINES = 100
LONGEST = 100_000  # characters of one child


class StackReport:
    """A duty of the housekeeper: answers each child of this worker once when somebody asks.

    A signal to the worker's parent asks by the scoreboard, an operator elsewhere by the row of the
    heartbeat, which one child reads for all.
    """

    def __init__(self, parts: ChildParts, async_pool: AsyncPool) -> None:
        self._database = parts.database
        self._inflight = parts.inflight
        self._slot = parts.slot
        self._owner = parts.identity.owner
        self._async_pool = async_pool
        self._answered = self._slot.stacks_asked

    def report_stacks(self) -> None:
        """Log the stacks, and leave them where the dashboard and `tasks-app stacks` find them."""
        now = time.monotonic()
        if now >= self._slot.look_at:
            self._slot.look_at = now + LOOK_EVERY_S
            with self._database.begin() as connection:
                if heartbeats.take_stacks_asked(connection, self._slot.owners):
                    self._slot.ask_stacks()
        asked = self._slot.stacks_asked
        if asked == self._answered:
            return
        self._answered = asked
        said = stacks(self._inflight.running(), self._async_pool)[:LONGEST]
        log.warning("stacks, as somebody asked:\n%s", said)
        with self._database.begin() as connection:
            heartbeats.write_stacks(connection, self._owner, said)


def stacks(running: list[ActiveRun], async_pool: AsyncPool) -> str:
    """Return the stacks of all threads but this one, those that run tasks first, and coroutines."""
    by_thread = {run.thread.ident: run for run in running if run.in_loop is None}
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    found = sorted(sys._current_frames().items(), key=lambda at: at[0] not in by_thread)  # noqa: SLF001  documented
    parts = [
        _part(
            f"thread {names.get(ident, ident)}", by_thread.get(ident), traceback.walk_stack(frame)
        )
        for ident, frame in found
        if ident != own
    ]
    coroutines = async_pool.coroutines()
    for task, run in coroutines[:MOST_COROUTINES]:
        # not the task's name, which a handler may make of a payload
        name = "" if run else getattr(task.get_coro(), "__qualname__", "?")
        parts.append(_part(f"coroutine {name}".strip(), run, _awaited(task)))
    if len(coroutines) > MOST_COROUTINES:
        parts.append(f"and {len(coroutines) - MOST_COROUTINES} more coroutines\n")
    return "".join(parts)


def _part(what: str, run: ActiveRun | None, frames: Iterator[tuple[FrameType, int]]) -> str:
    runs = "" if run is None else f" runs task {run.task.task_id} ({run.task.name})"
    found = traceback.StackSummary.extract(frames)
    found.reverse()
    return f"{what}{runs}\n{''.join(found.format())}"


def _awaited(task: asyncio.Task[Any]) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a task and of what it waits for, the innermost first."""
    frames = []
    waits: Any = task
    while isinstance(waits, asyncio.Task):
        awaits: Any = waits.get_coro()
        while isinstance(awaits, CoroutineType):
            if awaits.cr_frame is not None:
                frames.append((awaits.cr_frame, awaits.cr_frame.f_lineno))
            awaits = awaits.cr_await
        waits = getattr(waits, "_fut_waiter", None)  # a handler's coroutine has a task of its own
    return reversed(frames)
