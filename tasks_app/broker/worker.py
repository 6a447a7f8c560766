"""Our part in a Celery worker: slots for its children, their watch, and a consumer that hangs."""

from __future__ import annotations

import gc
import os
import signal
import time
from functools import partial
from types import FrameType
from typing import Any

from celery import Celery, bootsteps, signals
from celery.concurrency.prefork import TaskPool as PreforkPool

from tasks_app.broker.checks import check_environment, check_limits, check_pool, exit_on_error
from tasks_app.broker.config import move_limits_to_tasks
from tasks_app.broker.consumer import drop_invalid_messages, guard_queues, own_queues, serves_only
from tasks_app.broker.defaults import CONTROL_QUEUE
from tasks_app.broker.events import Reporter
from tasks_app.broker.internals import check_guard, notices_at_start
from tasks_app.broker.processes import NODE_VARIABLE, QUEUES_VARIABLE, ProcessState
from tasks_app.broker.task_loading import load_tasks
from tasks_app.broker.worker_pool import PromptPoolStep, slot_path
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


def connect_worker(app: Celery, settings: Settings, process: ProcessState) -> None:
    app.steps["worker"].update({PromptPoolStep, ChildWatch, Reporter, ConsumerWatch})
    _connect_parent(app, settings, process)
    _connect_children(app, settings, process)


def _connect_parent(app: Celery, settings: Settings, process: ProcessState) -> None:

    @signals.celeryd_after_setup.connect(weak=False)
    def set_environment(sender: str, instance: Any, **_: Any) -> None:
        """Name node, queues and slots for the children; the environment reaches spawned ones."""
        queues = [name for name in instance.app.amqp.queues.consume_from if name != CONTROL_QUEUE]
        os.environ[NODE_VARIABLE] = str(sender)
        os.environ[QUEUES_VARIABLE] = ",".join(queues)
        os.environ[SLOTS_VARIABLE] = str(new_slot_path())
        guard_queues(instance.app, own_queues())

    @signals.worker_init.connect(weak=False)
    @exit_on_error
    def check(sender: Any, **_: Any) -> None:
        """Refuse to start without a broker, or with a database or a pool that we cannot use."""
        process.main_pid = os.getpid()
        check_guard()
        temporary_folder()
        for sentence in notices_at_start(in_worker=True):
            log.warning(sentence)
        drop_invalid_messages()
        check_pool(sender.pool_cls)
        limits = move_limits_to_tasks(sender, settings)
        check_hard_limit(HANDLERS, limits.soft, limits.hard or settings.hard_timeout)
        check_limits(sender.pool_cls, HANDLERS, sender.app.amqp.queues.consume_from, limits)
        check_environment(app, settings)
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
    def start_prefork_child(**_: Any) -> None:
        if os.getpid() == process.main_pid:  # the solo pool sends it before the queues are known
            return
        load_tasks(settings, (*app.conf.imports, *app.conf.include))  # spawned: not loaded yet
        process.child()
        process.start_standby()

    @signals.worker_process_shutdown.connect(weak=False)
    def stop_prefork_child(**_: Any) -> None:
        process.stop()

    @signals.worker_ready.connect(weak=False)
    def start_in_parent(sender: Any, **_: Any) -> None:
        """Make this process the child of a threads or solo pool."""
        if not isinstance(sender.pool, PreforkPool):
            process.child(sender.pool.num_processes)
            process.start_standby()

    @signals.worker_shutdown.connect(weak=False)
    def stop_parent(sender: Any, **_: Any) -> None:
        process.stop()
        remove_slots(slot_path())
        sender.liveness.end()


class ChildWatch(bootsteps.StartStopStep):
    """A timer of the worker's own loop that reads the slots and kills overdue children.

    It tells probes that the loop runs, and what is wrong nevertheless. The timer goes on while the
    pool drains, and ends with the process.
    """

    requires = ("celery.worker.components:Timer",)
    clock = staticmethod(time.monotonic)
    HUNGRY_S = 120.0  # by then the worker has restarted its consumer several times

    def start(self, worker: Any) -> None:
        self._worker = worker
        self._slots = Scoreboard(slot_path())
        self._fed_at = self.clock()
        good_for_s = load_settings().healthy_for.total_seconds()
        worker.liveness = self._liveness = Liveness(
            WORKER, str(worker.hostname), good_for_s=good_for_s
        )
        remove_abandoned()
        self._heed_stacks_signal()
        worker.check_children = self.check_children
        worker.timer.call_repeatedly(LOOK_EVERY_S, self.check_children)

    def _heed_stacks_signal(self) -> None:
        """Let SIGUSR1, by which Celery logs the stacks of this process, ask the children, too."""
        theirs = signal.getsignal(signal.SIGUSR1)

        def ask(number: int, frame: FrameType | None) -> None:
            self._slots.ask_stacks()
            if callable(theirs):
                theirs(number, frame)

        signal.signal(signal.SIGUSR1, ask)

    def check_children(self) -> None:
        consumer = self._worker.consumer
        now = self.clock()
        if not (consumer and consumer.connection and starving(self._slots)):
            self._fed_at = now  # while the broker is away hunger is no complaint
        hungry_s = now - self._fed_at
        trouble = f"messages wait, no child got one for {hungry_s:.0f} s"
        outage = getattr(consumer, "outage", None)  # a user's consumer has none
        show = partial(self._liveness.beat, note=outage.note if outage else "")
        watch_children(self._slots, show, trouble if hungry_s > self.HUNGRY_S else "")

    def close(self, _worker: Any) -> None:
        """Drain at every kind of stop, before the consumer forgets what it reserved."""
        Scoreboard(slot_path()).drain()


class SilentConsumerError(ConnectionResetError):
    """An OSError, which Celery treats as a lost connection with every transport."""


class ConsumerWatch(bootsteps.StartStopStep):
    """A timer of the worker's own loop: what it raises restarts the consumer, not the worker."""

    requires = ("celery.worker.components:Timer",)
    clock = staticmethod(time.monotonic)

    def start(self, worker: Any) -> None:
        if not worker.hub:  # a worker without a loop of its own has no remedy
            return
        self._slots = Scoreboard(slot_path())
        self._pause_s = 2 * STALE_S
        self._again_at = 0.0
        worker.timer.call_repeatedly(2.0, self.check_consumer, (worker,))

    def check_consumer(self, worker: Any) -> None:
        """Restart the consumer if all children starve; each useless restart doubles the pause."""
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
        # Not always a fault: a user may have told this worker to leave a queue.
        self._again_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, 600.0)
        log.error("all children are idle while messages wait: restarting the consumer")
        raise SilentConsumerError("the consumer receives nothing")
