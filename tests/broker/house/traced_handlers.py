"""Handlers of a program that traces, as its documentation says: spans go to a file per process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from sqlalchemy import text

from tasks_app import TaskContext, handler

EFFECT = text("INSERT INTO effect (task_id, note) VALUES (:id, :note)")
_NEXT = EFFECT.bindparams(note="SQL of the handler")

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(FileSpanExporter(Path(os.environ["SPANS"]))))
trace.set_tracer_provider(provider)
SQLAlchemyInstrumentor().instrument(skip_dep_check=True)  # it knows 2.0 only, and works


@handler("traced.sync")
def sync(ctx: TaskContext, payload: dict[str, Any]) -> None:
    ctx.session.execute(_NEXT, {"id": ctx.task_id})


@handler("traced.async")
async def asynchronous(ctx: TaskContext[Any], payload: dict[str, Any]) -> None:
    await ctx.session.execute(_NEXT, {"id": ctx.task_id})
