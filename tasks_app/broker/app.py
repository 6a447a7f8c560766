"""The Celery app: our defaults, then ``celeryconfig.py``, then the handlers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

from celery import Celery
from celery.signals import celeryd_init

from tasks_app.broker.celery_tasks.adoption import load_tasks
from tasks_app.broker.checks.startup import ends_the_process
from tasks_app.broker.config.configuration import configuration
from tasks_app.broker.config.defaults import CONTROL_QUEUE
from tasks_app.broker.control import connect_control
from tasks_app.broker.flower import guard_flower
from tasks_app.broker.tasks import register
from tasks_app.broker.worker.quiet_log import quieten_messages
from tasks_app.broker.worker.shutdown import PoolWorker
from tasks_app.broker.worker.worker import connect_worker
from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.handlers.middleware import load_middleware
from tasks_app.runtime.handlers.registry import HANDLERS


class PoolCelery(Celery):
    """Celery's own way to a spawned child makes a new app: without our tasks, deaf to signals."""

    serves_pool = True
    """Its queues take no message but the pool's."""

    def __reduce__(self) -> tuple[Callable[[], Celery], tuple[()]]:
        """Let a spawned child import the app as everybody does."""
        return _imported, ()

    @cached_property
    def Worker(self) -> Any:  # noqa: N802  Celery's name
        """The worker that ``celery worker`` starts."""
        return self.subclass_with_self(PoolWorker, reverse="Worker")


def _imported() -> Celery:
    app: Celery = importlib.import_module("tasks_app.celery").app
    return app


def make_celery(settings: Settings) -> Celery:
    """Return the app that ``celery -A tasks_app …`` finds."""
    app = PoolCelery("tasks_app", set_as_current=True)
    app.conf.update(configuration(settings))
    register(app)
    connect_worker(app, settings)
    connect_control()
    quieten_messages()
    guard_flower(app)

    @celeryd_init.connect(weak=False)
    @ends_the_process
    def prepare(conf: Any, **_: Any) -> None:
        """Load the handlers before the worker chooses its queues, and what goes around them."""
        load_tasks(settings, (*conf.imports, *conf.include))
        load_middleware(settings.layers)
        if not conf.task_queues:
            make = app.amqp.Queues({}).new_missing  # as Celery makes those of -Q
            conf.task_queues = [make(name) for name in (*HANDLERS.queues, CONTROL_QUEUE)]

    return app
