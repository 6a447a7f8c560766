"""Prompt hand-over: a message goes to an idle child at once.

Celery's pool writes in the next round of the worker's loop, behind the next question to the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.worker import state


class PromptPool(AsynPool):
    """Celery's pool otherwise; what finds no idle child waits for the loop, as ever."""

    _quick_put: Callable[[Any], None]

    def _create_write_handlers(self, hub: Any, **options: Any) -> None:
        """Called with each new connection to the broker."""
        super()._create_write_handlers(hub, **options)
        put, write = self._quick_put, hub.consolidate_callback

        def put_and_write(job: Any) -> None:
            put(job)
            idle = self._all_inqueues - self._busy_workers - self._active_writes
            if idle and not _is_asked_to_stop():
                write(list(idle))

        self._quick_put = put_and_write


def _is_asked_to_stop() -> bool:
    """Whether the loop ends before its next round: then a child that got a message would hang.

    Celery forgets what no child has accepted yet, and so never reads that it was carried out.
    """
    ends = (state.should_stop, state.should_terminate)
    return any(end is not None and end is not False for end in ends)  # 0 is a status, too


class Prompt(bootsteps.Step):
    """Puts it in the place of Celery's before the children are forked."""

    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        """Choose the pool's class; other kinds of pools have no such loop."""
        if isinstance(worker.pool, TaskPool):
            worker.pool.Pool = PromptPool
