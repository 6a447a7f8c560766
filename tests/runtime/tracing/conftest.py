"""Spans of this process, for one test: without it OpenTelemetry is not there, as for most users."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from tasks_app.runtime.hooks import HOOKS
from tests.clock import until


class Spans:
    """What was exported, oldest first."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter

    def all(self, operation: str = "") -> list[Any]:
        found = sorted(self._exporter.get_finished_spans(), key=lambda s: s.start_time)
        return [s for s in found if s.attributes.get("messaging.operation.name", "") == operation]

    def one(self, operation: str) -> Any:
        [span] = self.all(operation)
        return span

    def wait(self, operation: str, number: int) -> list[Any]:
        until(lambda: len(self.all(operation)) >= number, what=f"{number} spans of {operation}")
        return self.all(operation)


_exporter: Any = None
API = "opentelemetry.trace"
_kept: list[ModuleType] = []


def _one_exporter() -> Any:
    """A process sets its provider once."""
    global _exporter  # noqa: PLW0603
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    if _exporter is None:
        _exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_exporter))
        trace.set_tracer_provider(provider)
    return _exporter


@pytest.fixture
def spans() -> Iterator[Spans]:
    """Trace this process until the test ends."""
    if not _kept:
        _kept.append(import_module(API))
    # Imported anew, by whatever test came between, it would be another one, with no provider.
    sys.modules[API] = sys.modules["opentelemetry"].trace = _kept[0]  # type: ignore[attr-defined]
    exporter = _one_exporter()
    exporter.clear()
    yield Spans(exporter)
    from tasks_app.runtime.tracing.otel import OTEL

    HOOKS.unsubscribe(OTEL.note)
    del sys.modules[API]
