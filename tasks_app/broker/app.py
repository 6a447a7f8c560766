"""The Celery app: our defaults, then ``celeryconfig.py``, then the handlers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any

from celery import Celery
from celery.signals import celeryd_init

from tasks_app.broker.defaults import CONTROL_QUEUE, celery_defaults
from tasks_app.broker.stopping import PoolWorker
from tasks_app.broker.tasks import register
from tasks_app.broker.worker import connect_worker, ends_the_process
from tasks_app.domain.settings import Settings
from tasks_app.runtime.middleware import load_middleware
from tasks_app.runtime.registry import HANDLERS, load_handlers


class PoolCelery(Celery):
    """Celery's own way to a spawned child makes a new app: without our tasks, deaf to signals."""

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
    theirs = _celeryconfig()
    broker = settings.broker_url.get_secret_value() if settings.broker_url else None
    broker = theirs.get("broker_url", theirs.get("broker_write_url", broker))
    app.conf.update(
        _merged(celery_defaults(broker, settings.scan_interval.total_seconds()), theirs)
    )
    register(app)
    connect_worker(app, settings)

    @celeryd_init.connect(weak=False)
    @ends_the_process
    def prepare(conf: Any, **_: Any) -> None:
        """Load the handlers before the worker chooses its queues, and what goes around them."""
        load_handlers((*settings.modules, *conf.imports, *conf.include))
        load_middleware(settings.layers)
        if not conf.task_queues:
            make = app.amqp.Queues({}).new_missing  # as Celery makes those of -Q
            conf.task_queues = [make(name) for name in (*HANDLERS.queues, CONTROL_QUEUE)]

    return app


def _celeryconfig() -> dict[str, Any]:
    """Return the settings of the module that Celery users know; it need not exist."""
    name = os.environ.get("CELERY_CONFIG_MODULE", "celeryconfig")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return {}
    return {
        key: value
        for key, value in vars(module).items()
        if key[0].islower() and not isinstance(value, type(annotations) | ModuleType)
    }


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Let their settings win; tables are merged, or a schedule of theirs would end our scan."""
    merged = ours | theirs
    for key, value in ours.items():
        if isinstance(value, dict) and isinstance(theirs.get(key), dict):
            merged[key] = value | theirs[key]
    return merged
