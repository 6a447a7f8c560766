"""The Celery app: its settings, its three tasks, its handlers and its log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

from celery import Celery, Task
from celery.app.amqp import Queues
from celery.backends.base import DisabledBackend
from celery.exceptions import WorkerLostError
from celery.signals import after_setup_logger, after_setup_task_logger, celeryd_init
from celery.worker.request import Request

from tasks_app.broker.checks import ends_the_process
from tasks_app.broker.config import configuration
from tasks_app.broker.control import connect_control, guard_flower
from tasks_app.broker.defaults import CONTROL_QUEUE, EXECUTE, MAINTAIN, OURS, SCAN
from tasks_app.broker.internals import QUEUE_TYPE
from tasks_app.broker.messages import are_ids
from tasks_app.broker.processes import ProcessState
from tasks_app.broker.task_loading import load_tasks
from tasks_app.broker.worker import connect_worker
from tasks_app.broker.worker_pool import PoolWorker, heed_signals
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.error_text import brief, quiet_logger
from tasks_app.runtime.encryption.encryption import Encryption
from tasks_app.runtime.handlers.middleware import load_middleware
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.tracing.run_logs import JsonLines


class QuorumQueues(Queues):
    """Celery 5.5 makes classic queues of all but the default one."""

    def new_missing(self, name: str) -> Any:
        queue = super().new_missing(name)
        queue.queue_arguments = {"x-queue-type": "quorum"}
        return queue


class PoolCelery(Celery):
    """An app whose queues take no message but the pool's."""

    serves_pool = True
    restore: Callable[[], Celery] | None = None
    """How a spawned child finds the app. Celery would make it a new one there: without our tasks,
    and connected to no signal."""

    def __reduce__(self) -> Any:
        return (self.restore, ()) if self.restore else super().__reduce__()

    @cached_property
    def amqp(self) -> Any:
        amqp = super().amqp
        if not QUEUE_TYPE.works and self.conf.get("task_create_missing_queue_type") == "quorum":
            amqp.queues_cls = QuorumQueues
        return amqp

    @cached_property
    def Worker(self) -> Any:  # noqa: N802  Celery's name
        """The worker that ``celery worker`` starts."""
        return self.subclass_with_self(PoolWorker, reverse="Worker")


def make_celery(settings: Settings, restore: Callable[[], Celery] | None = None) -> Celery:
    """Return a new app for ``celery -A …``; ``restore`` is a function that pickle can name."""
    app = PoolCelery("tasks_app", set_as_current=True)
    app.restore = restore
    app.conf.update(configuration(settings))
    process = ProcessState(app)
    register(app, process)
    connect_worker(app, settings, process)
    connect_control()
    quieten_messages()
    format_logs(settings)
    guard_flower(app)

    @celeryd_init.connect(weak=False)
    @ends_the_process
    def prepare(conf: Any, **_: Any) -> None:
        """Load handlers and middleware before the worker chooses its queues."""
        load_tasks(settings, (*conf.imports, *conf.include))
        load_middleware(settings.layers)
        Encryption(settings).keyring  # noqa: B018  what is wrong with the keys ends the start
        if not conf.task_queues:
            make = app.amqp.Queues({}).new_missing  # as Celery makes those of -Q
            conf.task_queues = [make(name) for name in (*HANDLERS.queues, CONTROL_QUEUE)]

    return app


log = quiet_logger(__name__)


class Carrier(Task):
    """A message that carries tasks: no setting for Celery's tasks is meant for it.

    A time limit would hit up to 500 tasks, a rate limit hold them back, a late acknowledgement
    repeat them.
    """

    abstract = True
    Request = "tasks_app.broker.app:MessageRequest"
    from_config = ()
    serializer = "json"
    acks_late = acks_on_failure = acks_on_timeout = acks_on_failure_or_timeout = False
    reject_on_worker_lost = retry_on_worker_lost = track_started = False
    ignore_result = True
    store_eager_result = store_errors_even_if_ignored = False

    @classmethod
    def annotate(cls) -> None:
        """Take nothing from ``task_annotations``."""

    @cached_property
    def backend(self) -> DisabledBackend:
        """No result store, whatever ``result_backend`` says: it may be away."""
        return DisabledBackend(app=self.app)


def register(app: Celery, process: ProcessState | None = None) -> None:
    """Register our tasks; ``process``: what the app's worker shares with them.

    Celery's own retries stay off: the database is the authority. Celery sends no events of them,
    not even when a child was killed.
    """
    process = process or ProcessState(app)
    quiet = {"base": Carrier, "shared": False, "max_retries": 0, "send_events": False}

    @app.task(name=EXECUTE, bind=True, **quiet)
    def execute(self: Task, wake: Any = None, ids: Any = None, *rest: Any, **more: Any) -> None:
        """Execute one message. A forged one can at most start tasks that are due anyway."""
        if rest or more or not are_ids(wake, ids):
            log.error("a message on our queue has no valid body and is dropped")
            return
        try:
            child = process.child()
            heed_signals(child)
            queue = (self.request.delivery_info or {}).get("routing_key")
            child.execute(ids, wake=wake is not None, queue=queue)
        except Exception as error:
            log.error("a message ended early; the scan comes back: %s", brief(error))  # noqa: TRY400  no traceback: it may show payloads

    @app.task(name=SCAN, **quiet)
    def scan() -> None:
        """Scan and rescue, where no PoolScheduler does it inline and nobody else leads."""
        leader = process.scheduled_leader()
        _quietly(SCAN, lambda: leader.hold() and leader.scan())

    @app.task(name=MAINTAIN, **quiet)
    def maintain() -> None:
        """Maintain, unless somebody just did."""
        _quietly(MAINTAIN, lambda: process.scheduled_leader().maintain())


def _quietly(name: str, duty: Any) -> None:
    try:
        duty()
    except Exception as error:
        log.warning("%s failed, the next tick tries again: %s", name, type(error).__name__)


PLANNED = "exitcode 0 "
"""How a child ends that gave its tasks back: a signal or its worker asked it to."""
_OF_MESSAGES = ("celery.worker.strategy", "celery.app.trace")
_OF_DEATHS = "celery.worker.request"


class MessageRequest(Request):
    """Celery's request for a message of ours."""

    def on_failure(self, exc_info: Any, *given: Any, return_ok: bool = False, **named: Any) -> Any:
        """Log no error where a child left as planned; it says itself what it let go of."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)  # billiard may wrap it
        planned = isinstance(error, WorkerLostError) and PLANNED in str(error)
        if planned:
            log.info("a child left as planned, and with it message %s", self.id)
        return super().on_failure(exc_info, *given, return_ok=return_ok or planned, **named)


def quieten_messages() -> None:
    """Lower the level of lines about our messages; lines about other tasks stay as they are."""
    for name in _OF_MESSAGES:
        logging.getLogger(name).addFilter(_lowered)
    logging.getLogger(_OF_DEATHS).addFilter(_without_traceback)


def _lowered(record: logging.LogRecord) -> bool:
    data = getattr(record, "data", None)
    if record.levelno == logging.INFO and isinstance(data, dict) and data.get("name") in OURS:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
    return True


def _without_traceback(record: logging.LogRecord) -> bool:
    """Drop the traceback of a child's death: it shows where Celery noticed, not what ran."""
    args = record.args
    if isinstance(args, tuple) and args and isinstance(args[0], WorkerLostError):
        record.exc_info = record.exc_text = None
    return True


def format_logs(settings: Settings) -> None:
    """Give what Celery sets up our form; whoever connects ``setup_logging`` decides alone."""
    if settings.log_format == "json":
        for signal in (after_setup_logger, after_setup_task_logger):
            signal.connect(_write_json, dispatch_uid="tasks_app: JSON lines")


def _write_json(logger: logging.Logger | None = None, **_: Any) -> None:
    for handler in logger.handlers if logger else ():
        handler.setFormatter(JsonLines())
