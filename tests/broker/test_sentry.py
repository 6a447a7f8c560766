"""The recipe for Sentry, as docs/operations/tracing.md has it, in a real worker."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.broker.celery_process import HOUSE
from tests.broker.conftest import House
from tests.docs.reading import blocks, section, text_of
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

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
    """Takes envelopes as Sentry does."""

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
