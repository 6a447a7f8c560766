"""A Celery task run from the pool: its options, the run itself, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery, Task
from celery.backends.base import DisabledBackend
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject
from celery.exceptions import Retry as CeleryRetry
from celery.utils.nodenames import gethostname
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.json import JSONEncoder, object_hook

from tasks_app.broker.internals import current_app, make_current
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.outcomes import Fail, Reaction, Retry, Skip, Snooze
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.call_payload import CALL, CALL_ID, Call
from tasks_app.domain.tasks.options import check_name
from tasks_app.domain.tasks.payload import decode, encode
from tasks_app.domain.tasks.retry_policy import MOST_ATTEMPTS, Fixed
from tasks_app.pool.flows import NeededStep
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import HANDLERS


def spec_of(task: Task) -> HandlerSpec:
    """Return the task's declaration as a handler's.

    Its code decides what is retried, as in Celery: any other exception fails at once. The policy's
    wait applies after a process died.

    Raises:
        InvalidTaskError: its name does not fit into the pool.
    """
    known = HANDLERS.get(task.name)
    if known is not None and known.payload_type is CALL:
        return known
    soft, hard = task.soft_time_limit, task.time_limit
    return HandlerSpec(
        name=check_name(task.name),
        function=CeleryRun(task),
        queue=_queue_of(task),
        retry=Fixed(timedelta(seconds=task.default_retry_delay or 0)),
        max_attempts=attempts_of(task),
        timeout=timedelta(seconds=soft) if soft else None,
        hard_timeout=timedelta(seconds=hard) if hard else None,
        on_error={BaseException: Reaction.FAIL},
        payload_type=CALL,
        to_json=to_json,
        timeout_error=lambda _seconds: SoftTimeLimitExceeded(),
    )


def _queue_of(task: Task) -> str:
    """Return the queue to which Celery would route it, if our handlers have it."""
    if len(HANDLERS.queues) > 1:
        route = task.app.amqp.router.route({"queue": getattr(task, "queue", None)}, task.name)
        name = getattr(route.get("queue"), "name", None)
        if name in HANDLERS.queues:
            return str(name)
    return "default"


def attempts_of(task: Task) -> int:
    """Return how often a task may run; ``max_retries=None``: as often as a row can count."""
    if task.max_retries is None:
        return MOST_ATTEMPTS
    return min(max(0, int(task.max_retries)) + 1, MOST_ATTEMPTS)


class CeleryRun:
    """The handler's function of one Celery task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.__module__ = type(task).__module__
        self.__qualname__ = getattr(task, "__qualname__", type(task).__qualname__)

    def __call__(self, context: TaskContext, call: Call) -> Any:
        """Run the task; return its result, or raise its outcome."""
        from celery.app.trace import build_tracer  # noqa: PLC0415  producers need none of it

        run = PoolRun(context)
        if call.first is not None:
            first = _first(call.first, context.needs())
            call = Call(args=[first, *call.args], kwargs=call.kwargs)
        request = self._request(run)
        with _current(self._task.app):
            trace = build_tracer(
                self._task.name, self._task, hostname=request["hostname"], app=self._task.app
            )
            ended = trace(request["id"], from_json(call.args), from_json(call.kwargs), request)
        error = None if ended.info is None else ended.info.retval
        if run.retries:  # self.retry counts, even if the task swallowed its exception
            raise self._retry(run, call, error)
        match error:
            case None:
                return self._result(ended.retval)
            case Reject(requeue=True):  # a broker would send the task again at once
                raise Snooze(1.0, f"rejected: {error.reason}")
            case Ignore():
                raise Skip(str(error))
            case CeleryRetry():  # raised without self.retry: Celery would never run it again
                raise Retry(str(error), after=self._wait(error.when))
            case _:
                raise error

    def _request(self, run: PoolRun) -> dict[str, Any]:
        context, task = run.context, self._task
        headers = context.headers
        task_id = str(headers.pop(CALL_ID, context.task_id))
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
            "headers": headers,
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
        """Return the result; None where JSON cannot hold it and Celery would keep none."""
        if not (self._task.ignore_result or isinstance(self._task.backend, DisabledBackend)):
            return value
        return value if _as_json(value, "result") is not None else None

    def _retry(self, run: PoolRun, call: Call, error: BaseException | None) -> Retry:
        signature = run.retries[-1]
        given = {"args": list(signature.args), "kwargs": dict(signature.kwargs)}
        unchanged = _as_json(given, "payload") == _as_json(
            call.model_dump(exclude={"first"}), "payload"
        )
        when = signature.options.get("eta") or signature.options.get("countdown")
        return Retry(
            str(error) if isinstance(error, CeleryRetry) else "",
            after=self._wait(when),
            # Celery has counted already, but the row's own limit still applies.
            max_attempts=MOST_ATTEMPTS
            if run.context.max_attempts == attempts_of(self._task)
            else None,
            payload=None if unchanged else given,
        )

    def _wait(self, when: Any) -> timedelta:
        if isinstance(when, datetime | str):
            wait: timedelta = instant(self._task.app, when) - self._task.app.now()
        else:
            wait = timedelta(seconds=self._task.default_retry_delay if when is None else when)
        return max(timedelta(0), wait)


def _first(first: Any, needed: Mapping[str, NeededStep]) -> Any:
    """Return what a canvas puts before the arguments."""
    match first:
        case str() if first in needed:
            return needed[first].result
        case list():
            return [_first(each, needed) for each in first]
        case {"task_id": step} if step in needed:
            return str(needed[step].task_id)
    raise Fail(
        f"It needs no {first!r:.100}. A flow that was over for long is forgotten, with its results."
    )


def _as_json(value: Any, path: str) -> Any:
    """Return the value after a round trip through JSON; None: JSON cannot hold it."""
    try:
        return decode(encode(value, path, 2**63, to_json), path)  # the size is checked later
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


@dataclass(slots=True)
class PoolRun:
    """``self.request.pool_run``, while a task runs from the pool."""

    context: TaskContext
    retries: list[Signature] = field(default_factory=list)
    """What ``self.retry`` would have sent."""
    _warned: bool = False

    def report(self, state: str, meta: Any) -> None:
        """Show a state and its meta to who polls, and how much is done, if the meta says it."""
        done = _fraction(meta)
        if done is not None:
            self.context.progress(done, state)
        try:
            shown = decode(encode(meta, "meta", LONGEST_META, to_json), "meta")
        except InvalidTaskError:  # its text may quote the meta
            shown = None
            if not self._warned:
                self._warned = True
                self.context.log.warning(
                    "update_state: the meta is not shown. Give JSON of at most %s bytes.",
                    LONGEST_META,
                )
        self.context.report(str(state)[:100], shown)


LONGEST_META = 4096
"""Bytes of what update_state shows: it goes into each heartbeat of the child."""


def _fraction(meta: Any) -> float | None:
    match meta:
        case {"current": int() | float() as done, "total": int() | float() as total} if total > 0:
            return done / total
        case {"percent": int() | float() as percent}:
            return percent / 100
    return None


def keep_in_pool(task: Task) -> None:
    """Let this task's runs from the pool send no messages; other runs stay unchanged."""
    if getattr(task, "_kept_in_pool", False):
        return
    signature_from_request, replace = task.signature_from_request, task.replace
    update_state = task.update_state

    def kept_signature(
        request: Any = None, args: Any = None, kwargs: Any = None, queue: Any = None, **more: Any
    ) -> Signature:
        """Make the signature that ``self.retry`` sends; a run from the pool only records it."""
        signature = signature_from_request(request, args, kwargs, queue, **more)
        run = pool_run_of(task)
        if run is not None:
            unknown = [name for name in more if name not in ("countdown", "eta", "retries")]
            if queue or unknown:
                raise Fail(
                    f"The pool cannot carry out self.retry({(unknown or ['queue'])[0]}=…). "
                    "It knows countdown, eta, max_retries, args and kwargs."
                )
            signature.apply_async = lambda *_, **__: run.retries.append(signature)
        return signature

    def kept_replace(signature: Signature) -> Any:
        """Refuse in the pool: the new task would have this one's id, and leave the pool."""
        if pool_run_of(task) is None:
            return replace(signature)
        raise Fail("self.replace does not exist in the pool. Create the other task, and return.")

    def shown_state(
        task_id: str | None = None, state: str | None = None, meta: Any = None, **more: Any
    ) -> None:
        """Show it in the pool, too."""
        run = pool_run_of(task)
        if run is not None and state is not None and task_id in (None, task.request.id):
            run.report(state, meta)
        update_state(task_id, state, meta, **more)

    task.signature_from_request, task.replace = kept_signature, kept_replace
    task.update_state = shown_state
    task._kept_in_pool = True  # noqa: SLF001  our own mark


def pool_run_of(task: Task) -> PoolRun | None:
    return getattr(task.request, "pool_run", None)


_ENCODER = JSONEncoder()


def to_json(value: Any) -> Any:
    """Return what kombu writes for a date, a decimal, a UUID, bytes or a registered type.

    Raises:
        TypeError: kombu does not know its type.
    """
    return _ENCODER.default(value)  # type: ignore[no-untyped-call]


def from_json(value: Any) -> Any:
    """Restore what :func:`to_json` wrote, inner values first.

    Raises:
        ValueError: it names a type that is not registered with kombu here.
    """
    match value:
        case dict():
            return object_hook({key: from_json(item) for key, item in value.items()})
        case list():
            return [from_json(item) for item in value]
        case _:
            return value


def instant(app: Celery, value: datetime | str) -> datetime:
    """Return an eta or an expiry as Celery reads it; naive ones are UTC."""
    found: datetime = maybe_make_aware(maybe_iso8601(value), app.timezone)
    return found
