"""A prompt pool: messages go to idle children at once, the dead are replaced at once, and it ends.

Celery's pool writes in the next round of the worker's loop, after the next request to the broker.
And it looks for dead children when a pipe breaks, which the system closes a moment before the
process has ended: a look that comes too soon finds none, and the next is up to five seconds later.
When the worker stops, it forgets what no child has accepted yet, also what was just written to one:
nobody reads that child's result then, which it waits for 30 seconds before it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.worker import state

from tasks_app.broker.internals import PROMPT_POOL, is_closing, was_written

REAP_EVERY_S, REAP_TIMES = 0.01, 100
"""Bounded, because a handler can close the pipe of a process that lives on."""


class PromptPool(AsynPool):
    """Celery's pool; a message that finds no idle child waits for the loop, as in Celery."""

    _quick_put: Callable[[Any], None]

    def _create_write_handlers(self, hub: Any, **options: Any) -> None:
        """Override what is called with each new connection to the broker."""
        super()._create_write_handlers(hub, **options)
        put, write = self._quick_put, hub.consolidate_callback

        def put_and_write(job: Any) -> None:
            put(job)
            idle = self._all_inqueues - self._busy_workers - self._active_writes
            if idle and not _is_asked_to_stop():
                write(list(idle))

        self._quick_put = put_and_write

    def flush(self) -> None:
        """Override what forgets jobs: keep those that a child got, while the worker stops.

        Where only the connection is lost, the loop goes on and reads their results.
        """
        jobs = dict(self._cache)
        super().flush()
        if is_closing(self):
            self._cache |= {number: job for number, job in jobs.items() if was_written(job)}

    def _event_process_exit(self, hub: Any, proc: Any) -> None:
        """Override what is called when the pipe of a child has broken."""
        super()._event_process_exit(hub, proc)
        self._reap(hub, proc, REAP_TIMES)

    def _reap(self, hub: Any, proc: Any, times: int) -> None:
        """Look again until the process is known to have ended, not only its pipe."""
        if times and proc in self._pool:
            self.maintain_pool()
            hub.call_later(REAP_EVERY_S, self._reap, hub, proc, times - 1)


def _is_asked_to_stop() -> bool:
    """Say whether the loop ends before its next round: then other workers get the message."""
    ends = (state.should_stop, state.should_terminate)
    return any(end is not None and end is not False for end in ends)  # 0 is a status, too


class Prompt(bootsteps.Step):
    """Replaces Celery's pool before the children are forked."""

    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        """Set the pool's class, for prefork only: other pools have no such loop."""
        if isinstance(worker.pool, TaskPool) and PROMPT_POOL.works:
            worker.pool.Pool = PromptPool
