"""A child: one process (or one worker without a broker) with all that it needs to run tasks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.handlers.middleware import Middleware
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.scan.throttle import PACES, PollPaces
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard
from tasks_app.runtime.tracing.run_logs import ATTEMPTS
from tasks_app.runtime.tracing.tracing import flush_traces
from tasks_app.runtime.worker.wiring import ThreadCounts, child_parts, wire

log = quiet_logger(__name__)

STOP_PATIENCE_S = 5.0
LOCKED_PAUSE_S = 0.1


class Child:
    """One incarnation, from its slot to its last settle."""

    def __init__(  # noqa: PLR0913  what its worker knows of it, and all that it has
        self,
        settings: Settings,
        registry: Registry,
        slots: Scoreboard,
        *,
        queues: Sequence[str],
        node: str | None = None,
        middleware: Sequence[Middleware] = (),
        threads: int = 1,
        extra_threads: int = 0,
        paces: PollPaces = PACES,
    ) -> None:
        """``threads`` bring messages of their own; ``extra_threads`` only run what is claimed."""
        counts = ThreadCounts(threads, extra_threads)
        parts = child_parts(
            settings, registry, slots, queues=queues, node=node, threads=counts, paces=paces
        )
        wiring = wire(parts, slots, middleware, extra_threads)
        self.parts = parts
        self.identity = parts.identity
        self.database = parts.database
        self.inflight = parts.inflight
        self.slot = parts.slot
        self.run_times = wiring.run_times
        self.threads = wiring.threads
        self.executor = wiring.executor
        self.shutdown = wiring.shutdown
        self.renewer = wiring.renewer
        self.housekeeper = wiring.housekeeper
        self._guard = wiring.guard
        self.settler = wiring.settler
        self._reaper = wiring.reaper
        self._async_pool = wiring.executor.async_pool
        self._stopped = threading.Event()
        self.in_hand = False
        """Whether a message is carried out just now. Plain, so that signal handlers may read it."""

    def start(self) -> None:
        """Start the housekeeper. The first heartbeat makes this child known to the scan."""
        self.housekeeper.start()

    def execute(self, ids: Sequence[int], *, wake: bool = False, queue: str | None = None) -> None:
        """Carry out one message of a queue, unless the worker's parent is gone.

        A queue that this child does not serve is none: the message may be forged.
        """
        if self.identity.orphaned:
            return
        self.in_hand = True
        try:
            queues = self.identity.queues
            own = queue if queue in queues else None
            self.executor.execute(ids, queues, wake=wake, queue=own)
        finally:
            self.in_hand = False
        self.retire_if_unfit()
        if self.shutdown.asked_alone():
            self.stop()
            self.shutdown.end_process(0)

    def retire_if_unfit(self) -> None:
        """Make room for a new process if a handler left this one without descriptors.

        Otherwise it would fail one task after another, so quickly that it took most of them.
        """
        if self._guard.unfit:
            self.stop()
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def runs_aside(self) -> bool:
        """Whether a thread or the event loop is about to end something."""
        return self._async_pool.busy or self.threads.busy

    def await_runs(self) -> None:
        """Wait until threads and event loop have ended what they run."""
        self.threads.join()
        while self._async_pool.busy:
            self._async_pool.await_room(self.parts.settings.async_concurrency, LOCKED_PAUSE_S)

    def reap(self) -> int:
        """Reap dead siblings now, as the housekeeper would later; return how many could not be.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        return self._reaper.look()

    def stop(self) -> None:
        """Write what is finished, give back what has not started, leave the list."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self.inflight.stop()
        self.housekeeper.stop(STOP_PATIENCE_S)
        self.threads.join(STOP_PATIENCE_S)
        self._async_pool.close(STOP_PATIENCE_S)
        self.shutdown.drain()
        self.inflight.write_later(
            lambda connection: heartbeats.leave(connection, self.identity.owner)
        )
        try:
            self._write_the_rest()
            self.parts.admission.pass_on()
        except SQLAlchemyError as error:
            kind = type(error).__name__
            log.warning("stopped without the database; its tasks are rescued later: %s", kind)
        if self.inflight.empty:
            self.slot.free()
        ATTEMPTS.tell(last=True)
        flush_traces()
        self.database.dispose()
        self._guard.close()

    def _write_the_rest(self) -> None:
        """Wait a little for rows that somebody holds: what is left behind runs once more."""
        ends = time.monotonic() + STOP_PATIENCE_S
        while True:
            self.settler.flush()
            self.housekeeper.last_round()
            if self.inflight.empty or time.monotonic() >= ends:
                return
            time.sleep(LOCKED_PAUSE_S)
