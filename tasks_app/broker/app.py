"""The Celery app: its settings, its three tasks, its signal handlers and its log."""

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

from tasks_app.broker.checks import exit_on_error
from tasks_app.broker.config import celery_configuration
from tasks_app.broker.control import connect_control, guard_flower
from tasks_app.broker.defaults import CONTROL_QUEUE, EXECUTE, MAINTAIN, OURS, SCAN
from tasks_app.broker.internals import QUEUE_TYPE
from tasks_app.broker.messages import are_ids
from tasks_app.broker.processes import ProcessState
from tasks_app.broker.task_loading import load_tasks
from tasks_app.broker.worker import connect_worker
from tasks_app.broker.worker_pool import PoolWorker, install_signal_handlers
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.runtime.encryption.encryption import Encryption
from tasks_app.runtime.handlers.middleware import load_middleware
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.tracing.run_logs import JsonLines

log = quiet_logger(__name__)


class QuorumQueues(Queues):
    """Celery 5.5 creates classic queues, except for the default one."""

    def new_missing(self, name: str) -> Any:
        queue = super().new_missing(name)
        queue.queue_arguments = {"x-queue-type": "quorum"}
        return queue


class PoolCelery(Celery):
    """An app whose queues accept only the pool's messages."""

    serves_pool = True
    restore: Callable[[], Celery] | None = None
    """How a spawned child gets the app. Celery would create one without our tasks and signals."""

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
        return self.subclass_with_self(PoolWorker, reverse="Worker")


def make_celery(settings: Settings, restore: Callable[[], Celery] | None = None) -> Celery:
    """Return a new app for ``celery -A …``; pickle must be able to name ``restore``."""
    app = PoolCelery("tasks_app", set_as_current=True)
    app.restore = restore
    app.conf.update(celery_configuration(settings))
    process = ProcessState(app)
    register(app, process)
    connect_worker(app, settings, process)
    connect_control()
    guard_flower(app)
    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).addFilter(_lower_level)
    logging.getLogger("celery.worker.request").addFilter(_drop_traceback)
    if settings.log_format == "json":  # a user's receiver of setup_logging replaces both signals
        for signal in (after_setup_logger, after_setup_task_logger):
            signal.connect(_write_json, dispatch_uid="tasks_app: JSON lines")

    @celeryd_init.connect(weak=False)
    @exit_on_error
    def prepare(conf: Any, **_: Any) -> None:
        """Load handlers and middleware before the worker chooses its queues."""
        load_tasks(settings, (*conf.imports, *conf.include))
        load_middleware(settings.layers)
        Encryption(settings).keyring  # noqa: B018  a wrong key stops the start
        if not conf.task_queues:
            make = app.amqp.Queues({}).new_missing  # as Celery makes those of -Q
            conf.task_queues = [make(name) for name in (*HANDLERS.queues, CONTROL_QUEUE)]

    return app


class MessageTask(Task):
    """A message that carries tasks: no setting for Celery's tasks applies to it.

    A time limit would hit up to 500 tasks, a rate limit delay them, a late acknowledgement repeat
    them. The result store may be away, so it gets nothing.
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
        """Ignore ``task_annotations``."""

    @cached_property
    def backend(self) -> DisabledBackend:
        return DisabledBackend(app=self.app)


def register(app: Celery, process: ProcessState | None = None) -> None:
    """Register our tasks; ``process`` is what the app's worker shares with them.

    Celery's own retries stay off, because the database decides. Celery sends no events of these
    tasks, not even when a child was killed.
    """
    process = process or ProcessState(app)
    quiet = {"base": MessageTask, "shared": False, "max_retries": 0, "send_events": False}

    @app.task(name=EXECUTE, bind=True, **quiet)
    def execute(self: Task, wake: Any = None, ids: Any = None, *rest: Any, **more: Any) -> None:
        """Execute one message. A forged one can at most start tasks that are due anyway."""
        if rest or more or not are_ids(wake, ids):
            log.error("dropped a message on our queue: its body is not valid")
            return
        try:
            child = process.child()
            install_signal_handlers(child)
            queue = (self.request.delivery_info or {}).get("routing_key")
            child.execute(ids, wake=wake is not None, queue=queue)
        except Exception as error:
            # Without a traceback, which may show payloads.
            text = "a message ended early; the scan finds its tasks again: %s"
            log.error(text, first_line(error))  # noqa: TRY400

    @app.task(name=SCAN, **quiet)
    def scan() -> None:
        """Scan and rescue, if no PoolScheduler does it inline and no other process leads."""
        leader = process.scheduled_leader()
        _log_failure(SCAN, lambda: leader.hold() and leader.scan())

    @app.task(name=MAINTAIN, **quiet)
    def maintain() -> None:
        """Maintain, unless another process just did."""
        _log_failure(MAINTAIN, lambda: process.scheduled_leader().maintain())


def _log_failure(name: str, duty: Any) -> None:
    try:
        duty()
    except Exception as error:
        log.warning("%s failed, the next tick tries again: %s", name, type(error).__name__)


class MessageRequest(Request):
    """Celery's request for one of our messages."""

    def on_failure(self, exc_info: Any, *args: Any, return_ok: bool = False, **kwargs: Any) -> Any:
        """Log no error if a signal or the worker asked the child to leave: it gave tasks back."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)  # billiard may wrap it
        planned = isinstance(error, WorkerLostError) and "exitcode 0 " in str(error)
        if planned:
            log.info("a child left as planned, and with it message %s", self.id)
        return super().on_failure(exc_info, *args, return_ok=return_ok or planned, **kwargs)


def _lower_level(record: logging.LogRecord) -> bool:
    """Log our messages at DEBUG; lines about other tasks stay as they are."""
    data = getattr(record, "data", None)
    if record.levelno == logging.INFO and isinstance(data, dict) and data.get("name") in OURS:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
    return True


def _drop_traceback(record: logging.LogRecord) -> bool:
    """Drop the traceback of a child's death: it shows where Celery noticed, not what ran."""
    args = record.args
    if isinstance(args, tuple) and args and isinstance(args[0], WorkerLostError):
        record.exc_info = record.exc_text = None
    return True


def _write_json(logger: logging.Logger | None = None, **_: Any) -> None:
    for handler in logger.handlers if logger else ():
        handler.setFormatter(JsonLines())
