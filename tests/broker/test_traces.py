"""One trace, from a request through a real worker to the handler's SQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import House

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

CARD = "4929-1234-5678"
SHOP = """
import os
from fastapi import FastAPI
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tasks_app import create_task

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileSpanExporter(os.environ["SPANS"])))
trace.set_tracer_provider(provider)
engine = create_engine(os.environ["TASKS_APP_DATABASE_URL"])
app = FastAPI()

@app.post("/orders")
def order(card: str) -> list[int]:
    with Session(engine) as session, session.begin():
        names = ("traced.sync", "traced.async")
        return [create_task(session, name, {"card": card}) for name in names]

FastAPIInstrumentor.instrument_app(app)
print(*TestClient(app).post("/orders?card=%s").json())
"""


def spans_in(path: Path) -> Iterator[dict[str, Any]]:
    """Read what was exported: OTLP as JSON, one request a line."""
    for line in path.read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                yield from scope["spans"]


def said(span: dict[str, Any]) -> dict[str, Any]:
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


def shop(house: House, spans: Path) -> list[int]:
    """Let an application of FastAPI take one order."""
    done = subprocess.run(
        [sys.executable, "-c", SHOP % CARD],
        # Without hints, so that a scan has to dispatch them.
        env={**os.environ, **house.environment(SPANS=str(spans), TASKS_APP_HINTS="off")},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(task_id) for task_id in done.stdout.split()]


def test_one_trace_leads_from_the_request_to_the_handlers_sql(house: House, tmp_path: Path) -> None:
    of_shop, of_worker = tmp_path / "shop.jsonl", tmp_path / "worker.jsonl"
    ids = shop(house, of_shop)
    worker = house.worker(TASKS_APP_IMPORTS="traced_handlers", SPANS=str(of_worker))
    assert house.over(ids) == {"SUCCEEDED": 2}
    assert worker.stop() == 0

    [request] = [s for s in spans_in(of_shop) if s["name"] == "POST /orders"]
    spans = [*spans_in(of_shop), *spans_in(of_worker)]
    trace = [s for s in spans if s["traceId"] == request["traceId"]]
    by_id = {s["spanId"]: s for s in trace}
    ways = []
    for span in trace:
        way, here = [], span
        while here:
            way.append(here["name"].partition(" ")[0])
            here = by_id.get(here.get("parentSpanId", ""))
        ways.append(way[::-1])
    for way in (["create"], ["create", "claim"], ["create", "run", "INSERT"], ["create", "settle"]):
        assert ways.count(["POST", *way]) == 2, way
    runs = [said(s) for s in trace if s["name"] == "run default"]
    assert sorted(int(each["messaging.message.id"]) for each in runs) == ids
    dispatches = [s for s in spans if s["name"] == "dispatch default"]
    assert sum(int(said(s)["messaging.batch.message_count"]) for s in dispatches) >= 2
    assert CARD not in of_worker.read_text()
