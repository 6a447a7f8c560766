"""The Celery app: our defaults, then ``celeryconfig.py``, then the handlers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from celery import Celery
from celery.app.amqp import Queues
from celery.signals import celeryd_init

from tasks_app.broker.task_loading import load_tasks
from tasks_app.broker.checks.startup import ends_the_process
from tasks_app.broker.config import configuration
from tasks_app.broker.defaults import CONTROL_QUEUE
from tasks_app.broker.control import connect_control
from tasks_app.broker.flower import guard_flower
from tasks_app.broker.internals import QUEUE_TYPE
from tasks_app.broker.tasks import register
from tasks_app.broker.worker.log_format import format_logs
from tasks_app.broker.processes import ProcessState
from tasks_app.broker.worker.quiet_log import quieten_messages
from tasks_app.broker.worker_pool import PoolWorker
from tasks_app.broker.worker import connect_worker
from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.encryption.encryption import Encryption
from tasks_app.runtime.handlers.middleware import load_middleware
from tasks_app.runtime.handlers.registry import HANDLERS


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
