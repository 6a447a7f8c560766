"""Other versions of Celery and kombu, Sentry and OpenTelemetry beside us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from tasks_app.pool.schema import migrate, newest
from tests.broker.celery_process import HOUSE, CeleryProcess
from tests.broker.conftest import House
from tests.cli.shell import Shell
from tests.clock import until
from tests.docs.reading import blocks, section, text_of
from tests.environment import run_program
from tests.releases import NEXT, NO_RELEASE, code_of, last_release, next_release

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600, method="thread")]

MAY_STILL = f"The schema has version {NEXT}; this code is of {newest()}, and may still run on it."


@pytest.fixture
def house(shared_engine: Engine, broker, tmp_path: Path) -> Iterator[House]:
    """A house whose database has the schema of this code, until somebody migrates it."""
    with shared_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("DROP DATABASE IF EXISTS versions WITH (FORCE)"))
        connection.execute(text("CREATE DATABASE versions"))
    engine = create_engine(shared_engine.url.set(database="versions"))
    with engine.begin() as connection:
        migrate(connection)
    house = House(engine, engine.url.render_as_string(hide_password=False), broker, tmp_path)
    yield house
    house.end()
    engine.dispose()


def of(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": f"{folder}{os.pathsep}{HOUSE}"}


def worker(house: House, **environment: str) -> CeleryProcess:
    """Start one, which also scans; other tests may be at work on this machine."""
    process = house.worker(ready=False, **environment)
    house.ready(process, timeout_s=120)
    return process


def command(house: House, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, "-m", "tasks_app", *arguments],
        cwd=HOUSE,
        env={**os.environ, **house.environment(), **environment},
    )


@contextmanager
def load(house: House) -> Iterator[list[int]]:
    ids: list[int] = []
    over = threading.Event()

    def produce() -> None:
        while not over.wait(0.1):
            ids.extend(house.create("ok", 2))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield ids
    finally:
        over.set()
        thread.join()


def work_goes_on(house: House, ids: list[int]) -> None:
    """Wait for the end of what there is by now; each task had its effect, once."""
    now = list(ids) or house.create("ok", 5)
    ended = house.over(now, 120)
    assert ended == {"SUCCEEDED": len(now)}
    effects, tasks = house.effects()
    assert effects == tasks


def last_words(house: House, *arguments: str, **environment: str) -> str:
    """Start it; return the last line of what it said before it ended by itself."""
    process = house.start(*arguments, **environment)
    assert process.wait(120) != 0
    assert "Traceback" not in process.log()
    return process.log().strip().splitlines()[-1]


def test_this_code_runs_on_the_next_schema_under_load(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = of(next_release(tmp_path / "next", oldest=newest()))
    shell = Shell(monkeypatch, HOUSE, **house.environment())
    before = worker(house)

    with load(house) as ids:
        too_early = command(house, "work", **later)
        migrated = command(house, "migrate", **later)
        work_goes_on(house, ids)  # by those that were at work
        before.stop()
        restarted = worker(house)
        work_goes_on(house, ids)
        worker(house, **later)
        restarted.stop()
        work_goes_on(house, ids)
    again, listed = shell("migrate"), shell("list")

    assert too_early.stderr.strip() == (
        f"The schema has version {newest()}; {NEXT} is needed. Run: tasks-app migrate"
    )
    assert f"The schema went from {newest()} to {NEXT}" in migrated.stdout, migrated.stderr
    assert MAY_STILL in restarted.log()
    assert again.returncode == 0
    assert f"{MAY_STILL} Upgrade tasks_app soon. Nothing to migrate" in again.stdout
    assert listed.returncode == 0


def test_a_schema_that_this_code_may_not_run_on_is_one_sentence(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = of(next_release(tmp_path / "next", oldest=NEXT))
    shell = Shell(monkeypatch, HOUSE, **house.environment())
    assert command(house, "migrate", **later).returncode == 0
    said = (
        f"This code is older than the schema: the schema has version {NEXT} and needs code of "
        f"{NEXT} or newer, this code is of {newest()}. Upgrade tasks_app."
    )

    for process in ("worker", "beat"):
        assert said in last_words(house, process)
    for arguments in (["migrate"], ["migrate", "--check"], ["list"], ["create", "ok"], ["work"]):
        done = shell(*arguments)
        assert (done.returncode, done.stderr.strip(), done.stdout) == (1, said, "")
    assert said.partition(". ")[0] in shell("doctor").stdout


@pytest.fixture
def last(tmp_path: Path) -> dict[str, str]:
    """How to run the code of the last release."""
    commit = last_release()
    folder = code_of(commit, tmp_path / "last")
    if folder is None:
        pytest.skip(f"{NO_RELEASE}: git knows no commit {commit} here. Fetch all of its history.")
    return of(folder)


def test_the_last_release_runs_on_the_schema_of_this_code(
    house: House, last: dict[str, str]
) -> None:
    task_id = command(house, "create", "ok").stdout.split()[0]
    done = command(house, "work", "--drain", **last)
    assert done.returncode == 0, done.stderr
    assert house.sql(f"SELECT state FROM task_all WHERE id = {task_id}") == "SUCCEEDED"


def test_this_code_refuses_the_schema_of_the_last_release(
    house: House, last: dict[str, str]
) -> None:
    """Unless nothing was migrated since."""
    house.sql("DROP SCHEMA public CASCADE")
    house.sql("CREATE SCHEMA public")
    assert command(house, "migrate", **last).returncode == 0
    version = house.sql("SELECT version_num FROM tasks_app_version")

    done = command(house, "work", "--drain")

    if version == newest():
        assert done.returncode == 0
    else:
        assert done.stderr.strip() == (
            f"The schema has version {version}; {newest()} is needed. Run: tasks-app migrate"
        )


CARD = "4929-1234-5678"
HANDLERS = """
import os, signal
from tasks_app import Fail, handler

@handler("fails", retry="0s,0s")
def fails(ctx, payload):
    card = payload["card"]
    ctx.log.info("asking for %s", card)
    raise ConnectionError(f"no answer for {card}")

@handler("gives.up")
def gives_up(ctx, payload):
    try:
        {}[payload["card"]]
    except KeyError as error:
        raise Fail(f"unknown: {payload['card']}") from error

@handler("flaky", retry="0s")
def flaky(ctx, payload):
    if ctx.attempt == 1:
        raise ValueError(payload["card"])

@handler("dies", max_attempts=1)
def dies(ctx, payload):
    os.kill(os.getpid(), signal.SIGKILL)

@handler("fine")
def fine(ctx, payload):
    return payload["card"]
"""


class Sink(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.bodies: list[str] = []

    @property
    def events(self) -> list[dict[str, Any]]:
        found = []
        for body in list(self.bodies):
            lines = [json.loads(line) for line in body.splitlines() if line]
            pairs = zip(lines[1::2], lines[2::2], strict=False)
            found += [event for head, event in pairs if head.get("type") == "event"]
        return found


class _Answer(BaseHTTPRequestHandler):
    server: Sink

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        match self.headers.get("Content-Encoding"):
            case "gzip":
                body = decompress(body)
            case "deflate":
                body = zlib.decompress(body)
        self.server.bodies.append(body.decode())
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as sink:
        thread = threading.Thread(target=sink.serve_forever, daemon=True)
        thread.start()
        yield sink
        sink.shutdown()


def test_one_event_for_each_task_that_failed_for_good(
    house: House, sink: Sink, tmp_path: Path
) -> None:
    [recipe] = blocks(section(text_of("docs/operations/tracing.md"), "Sentry"), "python")
    (tmp_path / "sentry_recipe.py").write_text(recipe)
    (tmp_path / "sentry_handlers.py").write_text(HANDLERS)
    names = ("fails", "gives.up", "flaky", "dies", "fine")
    of = {name: house.create(name, payload={"card": CARD})[0] for name in names}
    worker = house.worker(
        TASKS_APP_IMPORTS="sentry_recipe,sentry_handlers",
        PYTHONPATH=f"{tmp_path}:{HOUSE}",
        SENTRY_DSN=f"http://key@127.0.0.1:{sink.server_port}/1",
    )
    assert house.over(list(of.values())) == {"SUCCEEDED": 2, "FAILED": 3}
    until(lambda: len(sink.events) >= 3, 20, "three events")
    worker.stop()

    assert all("tags" in event for event in sink.events), sink.events
    told = {event["tags"]["task_name"]: event for event in sink.events}
    assert len(sink.events) == len(told) == 3
    assert {name: int(e["tags"]["task_id"]) for name, e in told.items()} == {
        name: of[name] for name in ("fails", "gives.up", "dies")
    }
    assert told["fails"]["tags"]["attempt"] in (3, "3")
    [raised] = told["fails"]["exception"]["values"]
    assert raised["type"] == "ConnectionError"
    assert raised["stacktrace"]["frames"][-1]["function"] == "fails"
    assert [each["type"] for each in told["gives.up"]["exception"]["values"]] == [
        "KeyError",
        "Fail",
    ]
    assert told["dies"]["message"] == "dies: process died"
    everything = "".join(sink.bodies)
    assert CARD not in everything
    assert '"vars"' not in everything


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
