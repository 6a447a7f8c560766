"""The processes of a Celery worker: idle ones get messages, dead ones are replaced, all stop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from celery import bootsteps
from celery.apps.worker import Worker
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

from tasks_app.broker.internals import PROMPT_POOL, is_closing, was_written
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE, Scoreboard, Stage
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.supervisor import LOOK_EVERY_S, kill_holdouts

PATIENCE_S = 5.0
"""How long children may take to return their tasks. One that takes longer blocks its threads."""
POLL_S = 0.05


class PoolWorker(Worker):
    """Celery's worker: its cold shutdown charges no attempt, its banner lists our handlers."""

    check_children: Callable[[], None]
    """Set by the step ``ChildWatch``."""

    def tasklist(self, *args: Any, **options: Any) -> str:
        """Return the banner's list: handlers of the pool first, then Celery's tasks."""
        specs = sorted(HANDLERS, key=lambda spec: spec.name)
        ours = [f"  . {spec.name} (queue {spec.queue})" for spec in specs]
        return "\n".join([*ours, super().tasklist(*args, **options)])

    def wait_for_soft_shutdown(self) -> None:
        """Drain for the grace period, then let the children go; called in a signal handler."""
        slots = Scoreboard(slot_path())
        slots.drain()
        solo = isinstance(self.pool, SoloPool)  # its task stands still beneath this handler
        grace = 0.0 if solo else float(self.app.conf.worker_soft_shutdown_timeout)
        self._wait(grace, lambda: slots.stage is Stage.DRAINS and _is_busy(slots))
        slots.leave()
        self._wait(PATIENCE_S, lambda: _is_busy(slots))
        if kill_holdouts(slots):
            # A living child returns the tasks of the dead ones.
            dead_and_alive = {True, False}
            self._wait(PATIENCE_S, lambda: {v.dead for v in slots.occupied()} == dead_and_alive)

    def _wait(self, seconds: float, reason: Callable[[], bool]) -> None:
        """Wait while there is a reason. The worker's timers do not fire meanwhile."""
        now = time.monotonic()
        ends, check_at = now + seconds, now
        while now < ends and reason():
            if now >= check_at:
                check_at = now + LOOK_EVERY_S
                self.check_children()
            time.sleep(POLL_S)
            now = time.monotonic()


def _is_busy(slots: Scoreboard) -> bool:
    return any((view.running or view.messages) and not view.dead for view in slots.occupied())


def install_signal_handlers(child: Child) -> None:
    """Let SIGTERM and SIGQUIT end this prefork child without an exception in its handler.

    Celery sends them to a child to end its task, process managers to the whole group. An idle
    child ends as Celery has it end; a busy one leaves the decision to its housekeeper. Called with
    every message, because billiard sets its own handlers last in a new child.
    """

    def handle(theirs: Callable[..., Any], number: int, frame: FrameType | None) -> None:
        """Take no lock and write no log: this runs between any two steps of the main thread."""
        if child.in_hand:
            child.inflight.stop_requested_at = time.monotonic()
        else:
            theirs(number, frame)

    for number in (signal.SIGTERM, signal.SIGQUIT):
        found = signal.getsignal(number)
        if callable(found) and found.__module__ == "billiard.common":  # only in prefork children
            signal.signal(number, partial(handle, found))


def slot_path() -> Path:
    return Path(os.environ[SLOTS_VARIABLE])


REAP_EVERY_S, REAP_TIMES = 0.01, 100
"""Bounded, because a handler can close the pipe of a process that lives on."""


class PromptPool(AsynPool):
    """Celery's pool; a message that finds no idle child waits for the loop, as in Celery."""

    _quick_put: Callable[[Any], None]

    def _create_write_handlers(self, hub: Any, **options: Any) -> None:
        """Write a message at once if a child is idle; called with each new broker connection."""
        super()._create_write_handlers(hub, **options)
        put, write = self._quick_put, hub.consolidate_callback

        def put_and_write(job: Any) -> None:
            put(job)
            idle = self._all_inqueues - self._busy_workers - self._active_writes
            if idle and not _is_stopping():
                write(list(idle))

        self._quick_put = put_and_write

    def flush(self) -> None:
        """Keep the jobs that a child got while the worker stops; Celery would forget them.

        If only the connection is lost, the loop goes on and reads their results.
        """
        jobs = dict(self._cache)
        super().flush()
        if is_closing(self):
            self._cache |= {number: job for number, job in jobs.items() if was_written(job)}

    def _event_process_exit(self, hub: Any, proc: Any) -> None:
        super()._event_process_exit(hub, proc)
        self._reap(hub, proc, REAP_TIMES)

    def _reap(self, hub: Any, proc: Any, times: int) -> None:
        if times and proc in self._pool:
            self.maintain_pool()
            hub.call_later(REAP_EVERY_S, self._reap, hub, proc, times - 1)


def _is_stopping() -> bool:
    """Say whether the loop ends before its next round: then other workers get the message."""
    ends = (state.should_stop, state.should_terminate)
    return any(end is not None and end is not False for end in ends)  # 0 is a status, too


class PromptPoolStep(bootsteps.Step):
    """Replaces Celery's pool before the children are forked."""

    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        if isinstance(worker.pool, TaskPool) and PROMPT_POOL.works:
            worker.pool.Pool = PromptPool
