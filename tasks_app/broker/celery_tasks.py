"""One run of a Celery task from the pool: Celery's own tracer runs it, and we read how it ended.

The same tracer runs a task in a plain worker: request, callbacks and signals are the same. Only
sending and storing differ: a retry becomes an outcome, and the result goes to the row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from celery import Task
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject
from celery.exceptions import Retry as CeleryRetry
from celery.utils.nodenames import gethostname

from tasks_app.broker.celery_tasks.pool_run import PoolRun
from tasks_app.broker.celery_tasks.values import from_json, moment, to_json
from tasks_app.broker.internals import current_app, make_current
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.outcomes import Retry, Skip, Snooze
from tasks_app.domain.tasks.call_payload import Call
from tasks_app.domain.tasks.payload import decode, encode
from tasks_app.domain.tasks.retry_policy import MOST_ATTEMPTS
from tasks_app.runtime.handlers.context import TaskContext

REQUEUED_WAIT_S = 1.0
"""The wait after ``Reject(requeue=True)``; a broker would send the task again at once."""
ANY_SIZE = 2**63
"""No limit here: the size is checked later."""


class CeleryRun:
    """The handler's function of one Celery task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.__module__ = type(task).__module__
        self.__qualname__ = getattr(task, "__qualname__", type(task).__qualname__)

    def __call__(self, context: TaskContext, call: Call) -> Any:
        """Run the task; return its result, or raise how it ended."""
        from celery.app.trace import build_tracer  # noqa: PLC0415  producers need none of it

        run = PoolRun(context)
        request = self._request(run)
        with _current(self._task.app):
            trace = build_tracer(
                self._task.name, self._task, hostname=request["hostname"], app=self._task.app
            )
            ended = trace(request["id"], from_json(call.args), from_json(call.kwargs), request)
        error = None if ended.info is None else ended.info.retval
        if run.retries:  # self.retry counts, whatever the task did afterwards
            raise self._retried(run, call, error)
        if error is None:
            return self._result(ended.retval)
        raise self._outcome(error)

    def _request(self, run: PoolRun) -> dict[str, Any]:
        """Return what a message would have in its headers."""
        context, task = run.context, self._task
        task_id = str(context.task_id)
        return {
            "id": task_id,
            "root_id": task_id,
            "correlation_id": task_id,
            "task": task.name,
            "lang": "py",
            "retries": context.failures,
            "eta": context.due_at.isoformat() if context.due_at > context.created_at else None,
            "timelimit": [task.time_limit, task.soft_time_limit],
            "hostname": os.environ.get("TASKS_APP_NODE") or gethostname(),
            "headers": context.headers,
            "delivery_info": {
                "exchange": "",
                "routing_key": context.queue,
                "priority": None,
                "redelivered": False,
            },
            "ignore_result": True,  # in a backend; the row has it
            "is_eager": False,
            "utc": True,
            "pool_run": run,
        }

    def _result(self, value: Any) -> Any:
        """Return the result; one that JSON cannot hold is dropped where Celery would keep none."""
        if not (self._task.ignore_result or isinstance(self._task.backend, DisabledBackend)):
            return value
        return value if _as_json(value, "result") is not None else None

    def _retried(self, run: PoolRun, call: Call, error: BaseException | None) -> Retry:
        signature = run.retries[-1]
        given = {"args": list(signature.args), "kwargs": dict(signature.kwargs)}
        unchanged = _as_json(given, "payload") == _as_json(call.model_dump(), "payload")
        when = signature.options.get("eta") or signature.options.get("countdown")
        return Retry(
            str(error) if isinstance(error, CeleryRetry) else "",
            after=self._wait(when),
            # Celery has counted already. A limit of the row's own applies nevertheless.
            max_attempts=MOST_ATTEMPTS
            if run.context.max_attempts == attempts_of(self._task)
            else None,
            payload=None if unchanged else given,
        )

    def _wait(self, when: Any) -> timedelta:
        if isinstance(when, datetime | str):
            wait: timedelta = moment(self._task.app, when) - self._task.app.now()
        else:
            wait = timedelta(seconds=self._task.default_retry_delay if when is None else when)
        return max(timedelta(0), wait)

    def _outcome(self, error: BaseException) -> BaseException:
        match error:
            case Reject(requeue=True):
                return Snooze(REQUEUED_WAIT_S, f"rejected: {error.reason}")
            case Ignore():
                return Skip(str(error))
            case CeleryRetry():  # raised without self.retry: Celery would never run it again
                return Retry(str(error), after=self._wait(error.when))
            case _:
                return error


def attempts_of(task: Task) -> int:
    """Return how often a task may run; ``max_retries=None``: as often as a row can count."""
    if task.max_retries is None:
        return MOST_ATTEMPTS
    return min(max(0, int(task.max_retries)) + 1, MOST_ATTEMPTS)


def _as_json(value: Any, path: str) -> Any:
    """Return the value after a round trip through JSON; None: JSON cannot hold it."""
    try:
        return decode(encode(value, path, ANY_SIZE, to_json), path)
    except InvalidTaskError:
        return None


@contextmanager
def _current(app: Any) -> Iterator[None]:
    """Make the task's app current, for shared tasks that it calls."""
    before = current_app()
    make_current(app)
    try:
        yield
    finally:
        make_current(before)
