"""The spans, with OpenTelemetry's API: create, dispatch, claim, run, settle."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tasks_app.domain.errors import TaskCancelledError
from tasks_app.domain.handlers.outcomes import Cancel, Skip, Snooze
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.hooks import Notice, NoticeKind

_TRACER = trace.get_tracer("tasks_app")
_W3C = TraceContextTextMapPropagator()
_KINDS = {
    "create": ("create", SpanKind.PRODUCER),
    "dispatch": ("send", SpanKind.PRODUCER),
    "claim": ("receive", SpanKind.CONSUMER),
    "run": ("process", SpanKind.CONSUMER),
    "settle": ("settle", SpanKind.CLIENT),
}
_NO_ERRORS = (Snooze, Skip, Cancel, TaskCancelledError)
_FAILED = (NoticeKind.FAILED, NoticeKind.RETRIED)


class OtelTracer:
    """One process's; all its threads use it."""

    def __init__(self) -> None:
        self._open = OpenRuns()
        self._on = False

    def is_on(self) -> bool:
        """Whether the program has set a provider: some set it only after a fork."""
        if not self._on:
            provider = trace.get_tracer_provider()
            idle = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
            self._on = not isinstance(provider, idle)
        return self._on

    def created(self, rows: Sequence[TaskRow]) -> Sequence[TaskRow]:
        """Make one span for the rows of one call, and put it in their headers.

        Only inside a span of the caller's. Headers that name a trace stay as they are. The span has
        no ids: the database makes them later.
        """
        if not rows or not trace.get_current_span().get_span_context().is_valid:
            return rows
        number = len(rows)
        same = {row.terms.queue for row in rows}
        span = _start("create", same.pop() if len(same) == 1 else None)
        span.set_attributes(
            {"tasks_app.task.name": rows[0].name}
            if number == 1
            else {"messaging.batch.message_count": number}
        )
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span))
        span.end()
        alike: dict[int, Any] = {}
        for row in rows:
            terms = row.terms
            if id(terms) not in alike:
                headers = {} if terms.headers is None else json.loads(terms.headers)
                named = "traceparent" in headers
                text = json.dumps({**headers, **carrier}, ensure_ascii=False)
                alike[id(terms)] = terms if named else terms._replace(headers=text)
        return [row._replace(terms=alike[id(row.terms)]) for row in rows]

    def run(self, context: TaskContext, call: Callable[[], Any]) -> Any:
        if not self.is_on():
            return call()
        task_id, attempt = context.task_id, context.attempt
        token = span = None
        with suppress(Exception):
            kept = self._open.get(task_id, attempt)
            parent = kept.parent if kept is not None else _parent(context.headers)
            span = _start("run", context.queue, parent)
            span.set_attributes(_of_task(task_id, context.name, attempt))
            self._open.keep(task_id, attempt, parent or trace.set_span_in_context(span))
            token = contexts.attach(trace.set_span_in_context(span))
        try:
            return call()
        except BaseException as error:
            if span is not None and not isinstance(error, _NO_ERRORS):
                _mark(span, f"{type(error).__module__}.{type(error).__qualname__}")
            raise
        finally:
            with suppress(Exception):
                if (kept := self._open.get(task_id, attempt)) is not None:
                    kept.ended_ns = time.time_ns()
                if token is not None:
                    contexts.detach(token)
                if span is not None:
                    span.end()

    def note(self, notice: Notice) -> None:
        """Make the span of a claim, or the one from the handler's end to the settle."""
        task_id, attempt = notice.task_id, notice.attempt
        if notice.kind is NoticeKind.STARTED:
            return
        if notice.kind is NoticeKind.RECEIVED:
            parent = _parent(json.loads(notice.headers) if notice.headers else {})
            span = _start("claim", notice.queue, parent)
            self._open.keep(task_id, attempt, parent or trace.set_span_in_context(span))
        else:
            kept = self._open.pop(task_id, attempt)
            if kept is None:
                return  # its run was not ours: it was rescued, for example
            span = _start("settle", notice.queue, kept.parent, kept.ended_ns)
            span.set_attribute("tasks_app.outcome", notice.kind.value)
            if notice.cause is not None and notice.kind in _FAILED:
                _mark(span, notice.cause.kind)
        span.set_attributes(_of_task(task_id, notice.name, attempt))
        span.end()

    def dispatched(self, queue: str, number: int, began_ns: int, error: str | None) -> None:
        """Make the span of one message of ids. Their traces are unknown: a scan reads no rows."""
        span = _start("dispatch", queue, Context(), began_ns)
        span.set_attribute("messaging.batch.message_count", number)
        if error is not None:
            _mark(span, error)
        span.end()

    def flush(self) -> None:
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush()


def _start(
    operation: str, queue: str | None, parent: Context | None = None, at_ns: int | None = None
) -> Span:
    kind_of_operation, kind = _KINDS[operation]
    attributes = {
        "messaging.system": "tasks_app",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind_of_operation,
    }
    if queue is not None:
        attributes["messaging.destination.name"] = queue
    name = operation if queue is None else f"{operation} {queue}"
    return _TRACER.start_span(name, parent, kind, attributes, start_time=at_ns)


def _of_task(task_id: int, name: str, attempt: int) -> dict[str, str | int]:
    return {
        "messaging.message.id": str(task_id),
        "tasks_app.task.name": name,
        "tasks_app.task.attempt": attempt,
    }


def _parent(headers: dict[str, Any]) -> Context | None:
    """Return the context that the headers name; None: they name none."""
    given = {k: v for k, v in headers.items() if isinstance(v, str)}
    found = _W3C.extract(given, Context())
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def _mark(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))


@dataclass(slots=True)
class OpenRun:
    parent: Context
    ended_ns: int | None = None


class OpenRuns:
    """One process's; its threads add to it."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._runs: dict[tuple[int, int], OpenRun] = {}

    def keep(self, task_id: int, attempt: int, parent: Context) -> None:
        with self._lock:
            self._runs[task_id, attempt] = OpenRun(parent)
            if len(self._runs) > self._most:
                del self._runs[next(iter(self._runs))]

    def get(self, task_id: int, attempt: int) -> OpenRun | None:
        return self._runs.get((task_id, attempt))

    def pop(self, task_id: int, attempt: int) -> OpenRun | None:
        return self._runs.pop((task_id, attempt), None)


OTEL = OtelTracer()
