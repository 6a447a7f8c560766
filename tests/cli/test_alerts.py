"""Alerts are sent once by two watchers, and once more when they are over."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from uuid import uuid4

import pytest
from pydantic import ValidationError
from sqlalchemy import Engine, text

from tasks_app import Settings
from tasks_app.cli.processes.alerts import glance
from tasks_app.domain.alerts.alert import Alert
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.monitor.alerts.rules import look
from tasks_app.pool.alerts import alerts
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.alerts.watch import deliver, record, to_webhook
from tests.cli.shell import Shell
from tests.factory import claimer, ending, pending_task


class Hook(HTTPServer):
    """A webhook that keeps what it got; ``status`` is its answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.got: list[dict] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/token"

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(each["status"], each["key"]) for each in self.got]


class _Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def tell(engine: Engine, *found: Alert) -> None:
    with engine.begin() as connection:
        record(connection, found, [])


DEAD = Alert("scan", "the last one was 5 min ago", "Start beat.")


def test_of_two_watchers_one_sends(engine: Engine, hook: Hook) -> None:
    with engine.connect() as one, engine.connect() as two:
        with one.begin():
            assert alerts.open_alert(one, DEAD.key, DEAD.fact, DEAD.advice)
        with two.begin():
            assert not alerts.open_alert(two, DEAD.key, DEAD.fact, DEAD.advice)
        with one.begin():
            taken = alerts.take_notice(one)
            with two.begin():
                assert alerts.take_notice(two) is None  # while the first has not committed
        with two.begin():
            assert alerts.take_notice(two) is None  # nor after
        assert taken is not None
        with one.begin():
            assert alerts.mark_sent(one, taken)
    assert deliver(engine, to_webhook(hook.url)) == 0


def test_what_a_dead_sender_left_is_sent_again(engine: Engine, hook: Hook) -> None:
    tell(engine, DEAD)
    with engine.begin() as connection:
        alerts.take_notice(connection, timedelta(0))

    assert deliver(engine, to_webhook(hook.url)) == 1
    assert hook.said == [("firing", "scan")]


def test_it_is_told_that_it_is_over(engine: Engine, hook: Hook) -> None:
    send = to_webhook(hook.url)
    for found in ([DEAD], [DEAD], [], []):
        tell(engine, *found)
        deliver(engine, send)

    assert hook.said == [("firing", "scan"), ("resolved", "scan")]


def test_what_could_not_be_looked_at_is_not_over(engine: Engine) -> None:
    tell(engine, DEAD)
    with engine.begin() as connection:
        record(connection, [], ["scan"])

        assert alerts.open_keys(connection) == {"scan"}


def test_a_refusal_is_logged_without_the_secret(
    engine: Engine, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.status = 500
    tell(engine, DEAD)

    assert deliver(engine, to_webhook(hook.url)) == 0
    assert f"http://127.0.0.1:{hook.server_port}: HTTPError 500" in caplog.text
    assert "token" not in caplog.text


def test_errors_are_told_by_cause_and_without_their_message(
    engine: Engine, hook: Hook, database_url: str
) -> None:
    with engine.begin() as connection:
        for number in range(2):
            (task,) = claim(
                connection, [pending_task(connection)], claimer(), uuid4(), admitted=True
            )
            cause = Cause("ValueError", f"card {number}")
            settle_one(connection, ending(task, Event.FAIL, failures=1, cause=cause))
    given = Settings(database_url=database_url, alert_errors=2)

    for _ in range(2):
        glance(engine, given, to_webhook(hook.url))

    keys = [key.partition(":")[0] for _, key in hook.said]
    assert keys.count("new-error") == keys.count("error-burst") == 1
    assert keys.count("workers") == 1
    assert "card" not in json.dumps(hook.got)


def test_a_held_snapshot(engine: Engine, database_url: str) -> None:
    given = Settings(database_url=database_url, alert_snapshot=2)
    with engine.connect() as holder:
        holder.execution_options(isolation_level="REPEATABLE READ")
        holder.execute(text("SELECT pg_current_xact_id()"))
        for _ in range(3):
            with engine.begin() as connection:
                connection.execute(text("SELECT pg_current_xact_id()"))
        held = {alert.key for alert in look(engine, given)[0]}

    assert "snapshot" in held


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host", "https://", "secret", "http://a:b@h/"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match=r"https://host/path|no user"):
        Settings(alert_webhook=url)


def test_the_command(shell: Shell, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_ALERT_WEBHOOK", hook.url)

    assert shell("alerts", "watch", "--once").returncode == 0
    assert ("firing", "scan") in hook.said
    assert "scan" in {each["key"] for each in shell.json("alerts", "list")}
