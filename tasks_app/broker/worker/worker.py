"""Our part in a Celery worker: children get slots, the parent watches. It has no connection."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

from celery import Celery, bootsteps, signals
from celery.concurrency.prefork import TaskPool as PreforkPool

from tasks_app.broker.celery_tasks.adoption import load_tasks
from tasks_app.broker.checks.pools import check_limits, check_pool
from tasks_app.broker.checks.startup import check_surroundings, ends_the_process
from tasks_app.broker.config.defaults import CONTROL_QUEUE
from tasks_app.broker.config.time_limits import take_limits
from tasks_app.broker.events.reporter import Reporter
from tasks_app.broker.guard.redis_channel import drop_what_is_no_message
from tasks_app.broker.guard.refusal import guard_queues
from tasks_app.broker.internals import check_guard, said_at_start
from tasks_app.broker.worker.delay_pump import Pump
from tasks_app.broker.worker.processes import (
    NODE_VARIABLE,
    QUEUES_VARIABLE,
    appoint_standby,
    current_child,
    stop_child,
)
from tasks_app.broker.worker.prompt_pool import Prompt
from tasks_app.broker.worker.shutdown import begin_to_drain, slot_path
from tasks_app.broker.worker.silent_consumer import Listening
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.health_files import WORKER, Liveness
from tasks_app.runtime.scoreboard.location import SLOTS_VARIABLE, new_slot_path, remove_slots
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard
from tasks_app.runtime.scoreboard.watchdog import (
    LOOK_EVERY_S,
    kill_overdue,
    silent_housekeeper,
    starving,
)

log = quiet_logger(__name__)

HUNGRY_S = 120.0
"""Until then the worker has restarted its consumer several times."""


class Watch(bootsteps.StartStopStep):
    """A timer of the worker's own loop that reads the slots and kills what is overdue.

    For probes it shows that the loop runs, and what is wrong all the same.
    """

    requires = ("celery.worker.components:Timer",)

    def start(self, worker: Any) -> None:
        """Begin to look."""
        self._worker = worker
        self._slots = Scoreboard(slot_path())
        self._fed_at = time.monotonic()
        good_for_s = load_settings().healthy_for.total_seconds()
        worker.pulse = self._pulse = Liveness(WORKER, str(worker.hostname), good_for_s=good_for_s)
        worker.watch = self.look
        worker.timer.call_repeatedly(LOOK_EVERY_S, self.look)

    def look(self) -> None:
        """Look once."""
        kill_overdue(self._slots)
        self._pulse.beat(silent_housekeeper(self._slots) or self._hunger())

    def _hunger(self) -> str:
        """Say so when messages wait for long that no child gets; not while the broker is away."""
        now = time.monotonic()
        consumer = self._worker.consumer
        if not (consumer and consumer.connection and starving(self._slots)):
            self._fed_at = now
        hungry_s = now - self._fed_at
        return (
            f"messages wait, no child got one for {hungry_s:.0f} s" if hungry_s > HUNGRY_S else ""
        )

    def close(self, _worker: Any) -> None:
        """Drain, whatever the worker stops for, before its consumer forgets what it reserved."""
        begin_to_drain(Scoreboard(slot_path()))

    def stop(self, worker: Any) -> None:
        """Go on looking while the pool drains: the timer ends with the process."""


def connect_worker(app: Celery, settings: Settings) -> None:
    """Connect to the signals of a worker's life."""
    app.steps["worker"].add(Prompt)
    app.steps["worker"].add(Watch)
    app.steps["worker"].add(Reporter)
    app.steps["worker"].add(Listening)
    app.steps["worker"].add(Pump)
    main: list[int] = []
    _connect_parent(app, settings, main)
    _connect_children(app, settings, main)


def _connect_parent(app: Celery, settings: Settings, main: list[int]) -> None:
    """What the worker's main process does; it enters its pid in ``main``."""

    @signals.celeryd_after_setup.connect(weak=False)
    def introduce(sender: str, instance: Any, **_: Any) -> None:
        """Tell the children who they are; they inherit the environment, forked or spawned."""
        queues = [name for name in instance.app.amqp.queues.consume_from if name != CONTROL_QUEUE]
        os.environ[NODE_VARIABLE] = str(sender)
        os.environ[QUEUES_VARIABLE] = ",".join(queues)
        os.environ[SLOTS_VARIABLE] = str(new_slot_path())
        guard_queues(instance.app, frozenset({*HANDLERS.queues, CONTROL_QUEUE}))

    @signals.worker_init.connect(weak=False)
    @ends_the_process
    def check(sender: Any, **_: Any) -> None:
        """Refuse to start without a broker, on a database or in a pool that we cannot use."""
        main.append(os.getpid())
        check_guard()
        for sentence in said_at_start(in_worker=True):
            log.warning(sentence)
        drop_what_is_no_message()
        check_pool(sender.pool_cls)
        limits = take_limits(sender, settings)
        check_limits(sender.pool_cls, HANDLERS, sender.app.amqp.queues.consume_from, limits)
        check_surroundings(app, settings)
        # What is loaded by now stays: no collection in a child shall walk it for 60 ms, nor write
        # to every page that it shares with its siblings.
        gc.freeze()

    @signals.worker_shutting_down.connect(weak=False)
    def stop(how: str, **_: Any) -> None:
        """Tell the children at once; the worker's loop hears of it later."""
        slots = Scoreboard(slot_path())
        begin_to_drain(slots)
        if how == "Cold":
            slots.leave()


def _connect_children(app: Celery, settings: Settings, main: list[int]) -> None:
    """How children begin and end; in threads and solo pools ``main`` is the child."""

    @signals.worker_process_init.connect(weak=False)
    def begin(**_: Any) -> None:
        """A prefork child starts; spawned ones have not loaded the handlers yet."""
        if os.getpid() in main:  # the solo pool says so, too, before anybody knows the queues
            return
        load_tasks(settings, (*app.conf.imports, *app.conf.include))
        current_child()
        appoint_standby(app)

    @signals.worker_process_shutdown.connect(weak=False)
    def end(**_: Any) -> None:
        """A prefork child ends in an orderly way."""
        stop_child()

    @signals.worker_ready.connect(weak=False)
    def ready(sender: Any, **_: Any) -> None:
        """In threads and solo pools the process itself is the child."""
        if not isinstance(sender.pool, PreforkPool):
            current_child(sender.pool.num_processes)
            appoint_standby(app)

    @signals.worker_shutdown.connect(weak=False)
    def over(sender: Any, **_: Any) -> None:
        """The worker ends: in the same pools with its child, in all with its slots and pulse."""
        stop_child()
        remove_slots(slot_path())
        sender.pulse.end()
