"""Which Celery tasks this process runs from the pool: those of an app, or single ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from celery import Celery, Task, current_task
from celery.app.utils import find_app

from tasks_app.broker.celery_tasks import keep_in_pool, pool_run_of, spec_of
from tasks_app.broker.defaults import EXECUTE, MAINTAIN, SCAN
from tasks_app.broker.internals import current_app, make_current
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import ConfigurationError, InvalidTaskError
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.runtime.handlers.registry import HANDLERS, load_handlers

log = quiet_logger(__name__)


def load_tasks(settings: Settings, modules: Iterable[str] = ()) -> None:
    """Load what this process can run: the modules of handlers, then the user's Celery app.

    Raises:
        ConfigurationError: a module or the app cannot be found.
        HandlerError: a handler and a Celery task have one name.
    """
    load_handlers((*settings.modules, *modules))
    if settings.celery_app:
        current = current_app()  # a new app makes itself current
        try:
            run_from_pool(_import_app(settings.celery_app))
        finally:
            make_current(current)


def run_from_pool(*given: Celery | Task) -> None:
    """Let this process run these tasks, or all tasks of an app, from the pool.

    Call it once all tasks are declared: an app's modules are imported now.

    Raises:
        HandlerError: a handler and a Celery task have one name.
    """
    logging.getLogger("celery.app.trace").addFilter(_is_not_from_pool)
    for each in given:
        for task in _tasks_of(each) if isinstance(each, Celery) else (each,):
            try:
                spec = spec_of(task)
            except InvalidTaskError as error:
                log.warning("a Celery task cannot run from the pool: %s", error)
                continue
            if task.rate_limit:
                log.warning("%s runs without its rate_limit: the pool has none", task.name)
            keep_in_pool(task)
            HANDLERS.add(spec)


def _import_app(name: str) -> Celery:
    try:
        app = find_app(name)
    except (ImportError, AttributeError) as error:
        missing = getattr(error, "name", None)
        if isinstance(error, ImportError) and not (missing and name.startswith(missing)):
            raise  # an import inside the module failed
        raise ConfigurationError(
            f"TASKS_APP_CELERY_APP names {name}, which cannot be found. "
            "Write it as after celery -A, and check that its folder is on PYTHONPATH."
        ) from error
    if not isinstance(app, Celery):
        raise ConfigurationError(f"TASKS_APP_CELERY_APP names {name}, which isn't a Celery app.")
    return app


def _tasks_of(app: Celery) -> Iterator[Task]:
    """Yield the user's tasks from all modules that the app would load in a worker."""
    app.loader.import_default_modules()
    app.finalize()
    for name, task in sorted(app.tasks.items()):
        if not name.startswith("celery.") and name not in (EXECUTE, SCAN, MAINTAIN):
            yield task


def _is_not_from_pool(record: logging.LogRecord) -> bool:
    """Drop Celery's log lines on runs from the pool: they show results, which the row has."""
    return not current_task or pool_run_of(current_task) is None or not hasattr(record, "data")
