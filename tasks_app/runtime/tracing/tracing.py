"""Where traces enter: a producer's rows, a worker's child, a dispatcher.

Without OpenTelemetry's API a process has no span: then nothing of it is imported here either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from sys import modules
from typing import TYPE_CHECKING

from tasks_app.runtime.hooks import HOOKS

if TYPE_CHECKING:
    from tasks_app.domain.errors import PublishError
    from tasks_app.domain.tasks.records import TaskRow
    from tasks_app.runtime.handlers.middleware import Middleware
    from tasks_app.runtime.hint_sender import Message, Publisher
    from tasks_app.runtime.tracing.otel import OtelTracer

API = "opentelemetry.trace"
LAST_CALL_S = 2.0  # how long a process that ends waits for the collector of its spans


def tracer() -> OtelTracer | None:
    """Return this process's tracer; None: the program has not imported OpenTelemetry."""
    if API not in modules:
        return None
    from tasks_app.runtime.tracing.otel import OTEL  # noqa: PLC0415  only beside its API

    return OTEL


def traced_rows(rows: Sequence[TaskRow]) -> Sequence[TaskRow]:
    found = tracer()
    return rows if found is None else found.created(rows)


def traced_layers(middleware: Sequence[Middleware]) -> Sequence[Middleware]:
    """Trace what this child runs; return its middleware, ours the outermost."""
    found = tracer()
    if found is None:
        return middleware
    HOOKS.subscribe(found.note, while_=found.is_on)
    return (found.run, *middleware)


def traced_publisher(publisher: Publisher) -> Publisher:
    found = tracer()
    return publisher if found is None else TracedPublisher(publisher, found)


class TracedPublisher:
    """A publisher whose messages are traced, each as one span."""

    def __init__(self, publisher: Publisher, tracer: OtelTracer) -> None:
        self._publisher = publisher
        self._tracer = tracer
        self.depths = publisher.depths
        self.probe = publisher.probe

    def publish(self, messages: Sequence[Message]) -> dict[int, PublishError]:
        began = time.time_ns()
        wrong = self._publisher.publish(messages)
        if self._tracer.is_on():
            with suppress(Exception):
                for place, message in enumerate(messages):
                    error = wrong.get(place)
                    kind = None if error is None else type(error).__name__
                    self._tracer.dispatched(message.queue, len(message.ids), began, kind)
        return wrong


def flush_traces() -> None:
    """Send what is collected: a child ends without Python's clean-up."""
    found = tracer()
    if found is not None and found.is_on():
        last_call = threading.Thread(target=found.flush, daemon=True)
        last_call.start()
        last_call.join(LAST_CALL_S)
