"""Traces within one process: whose trace goes where, and what its spans say."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app import (
    Fail,
    NewTask,
    Retry,
    Skip,
    TaskBuffer,
    acreate_task,
    acreate_tasks,
    create_group,
    create_schedule,
    create_task,
    create_tasks,
)
from tasks_app.runtime.tracing.otel import OpenRuns
from tests.runtime.bench import Bench, effect
from tests.runtime.tracing.conftest import Spans

SECRET = "4929-1234-5678"
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = 0x0AF7651916CD43DD8448EB211C80319C


def request() -> Any:
    """Open a span, as a server does around a request."""
    from opentelemetry import trace

    return trace.get_tracer("shop").start_as_current_span("POST /orders")


def trace_of(span: Any) -> int:
    return span.get_span_context().trace_id


def named(bench: Bench, task_id: int) -> str | None:
    headers = bench.task(task_id).headers or {}
    return headers.get("traceparent")


def trace_named(bench: Bench, task_id: int) -> int:
    return int((named(bench, task_id) or "00-0").split("-")[1], 16)


# -- create


def test_a_task_carries_the_trace_of_its_producer(bench: Bench, spans: Spans) -> None:
    with request() as span, Session(bench.engine) as session, session.begin():
        task_id = create_task(session, "t", {"card": SECRET}, queue="mail", headers={"a": 1})

    created = spans.one("create")
    assert trace_named(bench, task_id) == trace_of(span) == created.context.trace_id
    assert created.parent.span_id == span.get_span_context().span_id
    assert bench.task(task_id).headers["a"] == 1
    assert created.name == "create mail"
    assert dict(created.attributes) == {
        "messaging.system": "tasks_app",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": "mail",
        "tasks_app.task.name": "t",
    }


def test_without_a_span_nothing_is_added(bench: Bench, spans: Spans) -> None:
    assert bench.task(bench.create()).headers is None
    assert not spans.all("create")


def test_headers_that_name_a_trace_stay_as_they_are(bench: Bench, spans: Spans) -> None:
    with request():
        assert named(bench, bench.create(headers={"traceparent": GIVEN})) == GIVEN


def test_many_tasks_share_one_span(bench: Bench, spans: Spans) -> None:
    tasks = [NewTask("t", {"n": n}) for n in range(5)] + [NewTask("u", headers={"b": 2})]
    with request() as span, Session(bench.engine) as session, session.begin():
        ids = create_tasks(session, tasks)
    assert {trace_named(bench, task_id) for task_id in ids} == {trace_of(span)}
    assert spans.one("create").attributes["messaging.batch.message_count"] == 6
    assert bench.task(ids[5]).headers["b"] == 2


def test_on_every_way_in(bench: Bench, spans: Spans) -> None:
    async def asynchronous() -> list[int]:
        async with bench.async_session() as session:
            many = await acreate_tasks(session, [NewTask("t")])
            return [await acreate_task(session, "t"), *many]

    with request() as span:
        ids = asyncio.run(asynchronous())
        with psycopg.connect(bench.plain_url) as raw:
            ids += [create_task(raw, "t"), *create_tasks(raw, [NewTask("t")])]
        with TaskBuffer(bench.engine) as buffer:
            buffer.create_task("buffered")
    ids.append(bench.sql("SELECT id FROM task_pending WHERE name = 'buffered'"))

    assert {trace_named(bench, task_id) for task_id in ids} == {trace_of(span)}


def test_a_group_and_its_callback_are_of_the_same_trace(bench: Bench, spans: Spans) -> None:
    bench.succeeding("member")
    bench.succeeding("then")
    with request() as span, Session(bench.engine) as session, session.begin():
        group = create_group(session, [NewTask("member")] * 3, then=NewTask("then"))
    bench.drain()
    assert {trace_named(bench, task_id) for task_id in group.task_ids} == {trace_of(span)}
    assert trace_named(bench, group.callback_id) == trace_of(span)
    assert {s.context.trace_id for s in spans.all("run")} == {trace_of(span)}


def test_a_schedule_keeps_no_trace(bench: Bench, spans: Spans) -> None:
    with request(), Session(bench.engine) as session, session.begin():
        create_schedule(session, "nightly", "t", every="1h")
    assert bench.sql("SELECT options::text FROM task_schedule") == "{}"


# -- claim, run, settle


def test_a_run_goes_on_with_the_trace_of_its_headers(bench: Bench, spans: Spans) -> None:
    inside: list[Any] = []

    @bench.handler("traced")
    def handle(ctx: Any) -> None:
        from opentelemetry import trace

        inside.append(trace.get_current_span().get_span_context())
        with request():
            effect(ctx)
        inside.append(ctx.task_id)
        create_ids.append(create_task(ctx.session, "child"))

    create_ids: list[int] = []
    task_id = bench.execute_one("traced", headers={"traceparent": GIVEN})

    claim, run, settle = (spans.one(each) for each in ("claim", "run", "settle"))
    assert {s.context.trace_id for s in (claim, run, settle)} == {TRACE}
    assert {s.parent.span_id for s in (claim, run, settle)} == {0xB7AD6B7169203331}
    assert inside[0].span_id == run.context.span_id
    assert [s.parent.span_id for s in spans.all()] == [run.context.span_id]
    assert trace_named(bench, create_ids[0]) == TRACE
    assert dict(run.attributes) == {
        "messaging.system": "tasks_app",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": str(task_id),
        "tasks_app.task.name": "traced",
        "tasks_app.task.attempt": 1,
    }
    assert settle.attributes["tasks_app.outcome"] == "succeeded"
    assert settle.start_time >= run.start_time
    assert settle.end_time >= run.end_time


def test_a_task_without_a_trace_begins_one_at_its_claim(bench: Bench, spans: Spans) -> None:
    bench.succeeding()
    bench.execute([bench.create(), bench.create(headers={"traceparent": 7})])
    claims = spans.all("claim")
    assert [s.parent for s in claims] == [None, None]
    for operation in ("run", "settle"):
        of = {s.context.trace_id: s.parent.span_id for s in spans.all(operation)}
        assert of == {s.context.trace_id: s.context.span_id for s in claims}


@pytest.mark.parametrize(
    ("error", "outcome", "kind"),
    [
        (ValueError(SECRET), "retried", "builtins.ValueError"),
        (Retry(SECRET), "retried", "tasks_app.domain.handlers.outcomes.Retry"),
        (Fail(SECRET), "failed", "tasks_app.domain.handlers.outcomes.Fail"),
        (Skip(SECRET), "skipped", None),
    ],
)
def test_a_failure_names_its_class_and_nothing_else(
    bench: Bench, spans: Spans, error: Exception, outcome: str, kind: str | None
) -> None:
    bench.raising(error)
    bench.execute([bench.create(payload={"card": SECRET})])
    run, settle = spans.one("run"), spans.one("settle")
    assert settle.attributes["tasks_app.outcome"] == outcome
    assert run.attributes.get("error.type") == kind
    assert run.status.is_ok is (kind is None)
    assert settle.status.is_ok is (kind is None)
    assert SECRET not in "".join(s.to_json() for s in (run, settle, *spans.all("claim")))


def test_runs_in_a_row_and_async_ones_have_spans_of_their_own(bench: Bench, spans: Spans) -> None:
    seen: set[int] = set()

    def note() -> None:
        from opentelemetry import trace

        seen.add(trace.get_current_span().get_span_context().span_id)

    @bench.handler("together")
    def together(ctx: Any) -> None:
        note()
        effect(ctx)

    @bench.handler("async")
    async def asynchronous(ctx: Any) -> None:
        await asyncio.sleep(0)
        note()
        await ctx.session.execute(text("SELECT 1"))

    ids = [bench.create(name) for name in ["together"] * 4 + ["async"] * 4]
    bench.drain()

    assert set(bench.states(ids)) == {"SUCCEEDED"}
    runs = spans.wait("run", 8)
    assert seen == {s.context.span_id for s in runs}
    assert len(spans.wait("settle", 8)) == 8


def test_spans_that_cannot_be_made_stop_no_task(
    bench: Bench, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks_app.runtime.tracing import otel

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no spans today")

    bench.succeeding()
    task_id = bench.create()
    monkeypatch.setattr(otel, "_start", broken)
    bench.execute([task_id])
    assert bench.state(task_id) == "SUCCEEDED"


def test_claims_that_never_end_make_room() -> None:
    runs = OpenRuns(most=2)
    for task_id in (1, 2, 3):
        runs.keep(task_id, 1, "parent")
    assert [runs.pop(task_id, 1) is None for task_id in (1, 2, 3)] == [True, False, False]


# -- without it


@pytest.mark.test_all
def test_without_the_package_nothing_is_imported(bench: Bench) -> None:
    code = f"""
import sys
sys.modules["opentelemetry"] = None
from sqlalchemy import create_engine
from tasks_app import create_task, handler
from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.worker.standalone import run_work
@handler("t")
def t(ctx): pass
engine = create_engine({bench.url!r})
with engine.begin() as connection:
    create_task(connection, "t")
run_work(Settings(database_url={bench.url!r}), drain=True)
print([name for name in sys.modules if "opentelemetry" in name or name.endswith("tracing.otel")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "['opentelemetry']\n"
    assert bench.sql("SELECT count(*) FROM task_completed") == 1


@pytest.mark.test_all
def test_only_the_api_changes_nothing(bench: Bench) -> None:
    """Many libraries bring it along. Without a provider runs go the fast way."""
    code = f"""
from opentelemetry import trace
from tasks_app import handler
from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.hooks import HOOKS
from tasks_app.runtime.worker.standalone import run_work
@handler("t")
def t(ctx): print(HOOKS.wanted, trace.get_current_span().get_span_context().is_valid)
run_work(Settings(database_url={bench.url!r}), drain=True)
"""
    bench.create()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False False\n"
