"""Our part in a Celery worker: slots for its children, their watch, and a consumer that hangs."""

from __future__ import annotations

import gc
import os
import time
from functools import partial
from typing import Any

from celery import Celery, bootsteps, signals
from celery.concurrency.prefork import TaskPool as PreforkPool

from tasks_app.broker.checks import check_limits, check_pool, check_surroundings, ends_the_process
from tasks_app.broker.config import take_limits
from tasks_app.broker.consumer import drop_what_is_no_message, guard_queues, own_queues, serves_only
from tasks_app.broker.defaults import CONTROL_QUEUE
from tasks_app.broker.events import Reporter
from tasks_app.broker.internals import check_guard, said_at_start
from tasks_app.broker.processes import NODE_VARIABLE, QUEUES_VARIABLE, ProcessState
from tasks_app.broker.task_loading import load_tasks
from tasks_app.broker.worker_pool import Prompt, slot_path
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.handlers.time_limits import check_hard_limit
from tasks_app.runtime.health_files import WORKER, Liveness
from tasks_app.runtime.scoreboard import (
    SLOTS_VARIABLE,
    Scoreboard,
    Stage,
    new_slot_path,
    remove_slots,
    temporary_folder,
)
from tasks_app.runtime.worker.supervisor import (
    LOOK_EVERY_S,
    STALE_S,
    remove_abandoned,
    starving,
    watch_children,
)

log = quiet_logger(__name__)
HUNGRY_S = 120.0
"""By then the worker has restarted its consumer several times."""


class Watch(bootsteps.StartStopStep):
    """A timer of the worker's own loop that reads the slots and kills overdue children.

    It tells probes that the loop runs, and what is wrong nevertheless. The timer goes on while the
    pool drains, and ends with the process.
    """

    requires = ("celery.worker.components:Timer",)
    clock = staticmethod(time.monotonic)

    def start(self, worker: Any) -> None:
        self._worker = worker
        self._slots = Scoreboard(slot_path())
        self._fed_at = self.clock()
        good_for_s = load_settings().healthy_for.total_seconds()
        worker.liveness = self._liveness = Liveness(
            WORKER, str(worker.hostname), good_for_s=good_for_s
        )
        remove_abandoned()
        worker.watch = self.look
        worker.timer.call_repeatedly(LOOK_EVERY_S, self.look)

    def look(self) -> None:
        outage = getattr(self._worker.consumer, "outage", None)  # not of a consumer of others
        show = partial(self._liveness.beat, note=outage.note if outage else "")
        watch_children(self._slots, show, self._hunger())

    def _hunger(self) -> str:
        """Return a complaint if messages wait for long; none while the broker is away."""
        now = self.clock()
        consumer = self._worker.consumer
        if not (consumer and consumer.connection and starving(self._slots)):
            self._fed_at = now
        hungry_s = now - self._fed_at
        return (
            f"messages wait, no child got one for {hungry_s:.0f} s" if hungry_s > HUNGRY_S else ""
        )

    def close(self, _worker: Any) -> None:
        """Drain at every kind of stop, before the consumer forgets what it reserved."""
        Scoreboard(slot_path()).drain()


def connect_worker(app: Celery, settings: Settings, process: ProcessState) -> None:
    """Add our steps to the app's worker, and connect to the signals of its life."""
    app.steps["worker"].update({Prompt, Watch, Reporter, Listening})
    _connect_parent(app, settings, process)
    _connect_children(app, settings, process)


def _connect_parent(app: Celery, settings: Settings, process: ProcessState) -> None:

    @signals.celeryd_after_setup.connect(weak=False)
    def introduce(sender: str, instance: Any, **_: Any) -> None:
        """Tell the children who they are, by the environment: they may be spawned."""
        queues = [name for name in instance.app.amqp.queues.consume_from if name != CONTROL_QUEUE]
        os.environ[NODE_VARIABLE] = str(sender)
        os.environ[QUEUES_VARIABLE] = ",".join(queues)
        os.environ[SLOTS_VARIABLE] = str(new_slot_path())
        guard_queues(instance.app, own_queues())

    @signals.worker_init.connect(weak=False)
    @ends_the_process
    def check(sender: Any, **_: Any) -> None:
        """Refuse to start without a broker, or with a database or a pool that we cannot use."""
        process.main_pid = os.getpid()
        check_guard()
        temporary_folder()
        for sentence in said_at_start(in_worker=True):
            log.warning(sentence)
        drop_what_is_no_message()
        check_pool(sender.pool_cls)
        limits = take_limits(sender, settings)
        check_hard_limit(HANDLERS, limits.soft, limits.hard or settings.hard_timeout)
        check_limits(sender.pool_cls, HANDLERS, sender.app.amqp.queues.consume_from, limits)
        check_surroundings(app, settings)
        if serves_only(sender.app, own_queues()):
            # Celery asks other workers for a whole second which of its own tasks were revoked.
            sender.options["without_mingle"] = True
        # What is loaded by now stays. A collection in a child would walk it for 60 ms and write
        # to every page that it shares with its siblings.
        gc.freeze()

    @signals.worker_shutting_down.connect(weak=False)
    def stop(how: str, **_: Any) -> None:
        """Tell the children at once; the worker's loop learns of it later."""
        slots = Scoreboard(slot_path())
        slots.drain()
        if how == "Cold":
            slots.leave()


def _connect_children(app: Celery, settings: Settings, process: ProcessState) -> None:

    @signals.worker_process_init.connect(weak=False)
    def begin(**_: Any) -> None:
        """Start a prefork child; a spawned one has not loaded the handlers yet."""
        if os.getpid() == process.main_pid:  # the solo pool sends it before the queues are known
            return
        load_tasks(settings, (*app.conf.imports, *app.conf.include))
        process.child()
        process.start_standby()

    @signals.worker_process_shutdown.connect(weak=False)
    def end(**_: Any) -> None:
        """End a prefork child in good order."""
        process.stop()

    @signals.worker_ready.connect(weak=False)
    def ready(sender: Any, **_: Any) -> None:
        """In threads and solo pools make this process the child."""
        if not isinstance(sender.pool, PreforkPool):
            process.child(sender.pool.num_processes)
            process.start_standby()

    @signals.worker_shutdown.connect(weak=False)
    def over(sender: Any, **_: Any) -> None:
        """End the child of a threads or solo pool, the slots and the health file."""
        process.stop()
        remove_slots(slot_path())
        sender.liveness.end()


CHECK_CONSUMER_EVERY_S = 2.0
LONGEST_PAUSE_S = 600.0


class SilentConsumerError(ConnectionResetError):
    """An OSError, which Celery treats as a lost connection with every transport."""


class Listening(bootsteps.StartStopStep):
    """A timer of the worker's own loop: what it raises restarts the consumer, not the worker."""

    requires = ("celery.worker.components:Timer",)
    clock = staticmethod(time.monotonic)

    def start(self, worker: Any) -> None:
        """Start the timer; a worker without such a loop cannot be helped."""
        if not worker.hub:
            return
        self._slots = Scoreboard(slot_path())
        self._pause_s = 2 * STALE_S
        self._again_at = 0.0
        worker.timer.call_repeatedly(CHECK_CONSUMER_EVERY_S, self._look, (worker,))

    def _look(self, worker: Any) -> None:
        """Restart the consumer if all children starve; each restart in vain doubles the pause.

        A restart in vain need not be a fault: somebody may have told this worker to leave a queue.
        """
        if (
            self._slots.stage is not Stage.RUNS
            or not worker.consumer
            or not worker.consumer.connection
        ):
            return
        now = self.clock()
        if not starving(self._slots):
            if now >= self._again_at:
                self._pause_s = 2 * STALE_S
            return
        if now < self._again_at:
            return
        self._again_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        log.error("all children are idle while messages wait: restarting the consumer")
        raise SilentConsumerError("the consumer hears nothing")
