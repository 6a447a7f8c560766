"""Reports, metrics and alerts on the command line."""

from __future__ import annotations

import base64
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pydantic import ValidationError
from sqlalchemy import Connection, Engine, text

from tasks_app import Settings
from tasks_app.domain.alerts import Alert
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.monitor.metric_catalogue import METRICS
from tasks_app.monitor.metrics import MetricsReader, MetricsServer, check_address
from tasks_app.pool import alerts
from tasks_app.pool.retention import DAYS_AHEAD
from tasks_app.pool.statistics.parts import CountPart, write_parts
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.runtime.db.database import Database
from tests.cli.shell import Shell
from tests.clock import until
from tests.docs.reading import first_column, text_of
from tests.factory import pending_task
from tests.pool.test_statistics import KEPT
from tests.runtime.alerts.conftest import listening
from tests.runtime.api.acts import failed_task

HOUR = timedelta(hours=1)
DECLINED = "card 4711-0815 of Jane Doe was declined by token sk-SECRET-9"
TRACEBACK = f"""Traceback (most recent call last):
  File "/srv/shop/pay.py", line 7, in charge
    raise DeclinedError(...)
shop.DeclinedError: {DECLINED}
"""
EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
_SCHEDULE = text("""
    INSERT INTO task_schedule (name, task, kind, expression, next_run_at, look_at)
    VALUES ('nightly', 't', 'every', '1m', now() - interval '5 minutes', now())
""")


def count(
    connection: Connection,
    at: datetime,
    name: str,
    outcome: CountedOutcome,
    number: int,
    queue: str,
) -> CountPart:
    histogram = [0] * 10 + [number]
    minute = int(at.timestamp()) // 60
    ms = number * 700
    return CountPart(minute, name, queue, outcome, number, ms, ms, histogram, histogram)


@pytest.fixture
def day(engine: Engine) -> None:
    """A day of work, one error that is new, and what waits."""
    with engine.begin() as connection:
        now = datetime.now(UTC)
        parts = []
        for ago in range(1, 30):
            at = now - ago * HOUR
            parts.append(count(connection, at, "mail.send", CountedOutcome.DONE, 100 + ago, "mail"))
            parts.append(count(connection, at, "shop.pay", CountedOutcome.DONE, 40, "default"))
            parts.append(count(connection, at, "shop.pay", CountedOutcome.RETRIED, 7, "default"))
            parts.append(count(connection, at, "shop.pay", CountedOutcome.FAILED, 2, "default"))
        parts.append(count(connection, now - HOUR, EVIL, CountedOutcome.FAILED, 1, EVIL))
        write_parts(connection, "a", parts)
        roll_up(connection, None, KEPT)
        failed_task(connection, "shop.DeclinedError", DECLINED, traceback=TRACEBACK)
        failed_task(connection, "EvilError", EVIL)
        for _ in range(3):
            pending_task(connection, queue="mail")


def test_it_says_what_happened_at_80_columns(shell: Shell, day: None) -> None:
    told = shell("report")

    assert told.returncode == 0, told.stderr
    assert max(map(len, told.stdout.splitlines())) <= 80
    words = " ".join(told.stdout.split())
    for said in (
        "done a second.",
        " % of the runs did not succeed.",
        "shop.pay 48 168 960",
        "shop.DeclinedError in shop.pay:charge",
        "Ends of runs are counted until",
        "What waits and runs now",
        "What doctor finds",
    ):
        assert said in words, said


def test_no_message_of_an_error_is_told(shell: Shell, day: None, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    told = [shell("report").stdout, shell("report", "--json").stdout]
    assert shell("report", "--html", str(page)).returncode == 0
    for said in (*told, page.read_text()):
        assert "DeclinedError" in said
        assert "4711-" not in said
        assert "Jane" not in said
        assert "declined by" not in said
        assert "shop.pay:charge" in said


def test_json_has_the_same(shell: Shell, day: None) -> None:
    found = shell.json("report", "--since", "24h")
    assert found["outcomes"]["failed"] == 24 * 2 + 1
    assert found["history"]["failed"] == 24 * 2 + 1
    assert {each["queue"] for each in found["queues"]} == {"mail", "default"}
    assert {each["number"] for each in found["new_errors"]} == {1}


@pytest.mark.parametrize(
    ("since", "bars"), [("1h", 61), ("24h", 25), ("7d", 169), ("60d", 61), ("instant", 49)]
)
def test_any_time(shell: Shell, day: None, since: str, bars: int) -> None:
    if since == "instant":
        since = (datetime.now(UTC) - 48 * HOUR).isoformat()
    found = shell.json("report", "--since", since)
    assert len(found["history"]["bars"]) in (bars, bars + 1)


def test_ids_that_came_twice_are_no_ends(shell: Shell, engine: Engine) -> None:
    at = datetime.now(UTC) - HOUR
    with engine.begin() as connection:
        parts = [
            count(connection, at, "mail.send", outcome, number, "mail")
            for outcome, number in ((CountedOutcome.DONE, 3), (CountedOutcome.DUPLICATE, 2))
        ]
        write_parts(connection, "a", parts)
        roll_up(connection, None, KEPT)
    told = shell("report").stdout
    assert "Ended: 3 done.\n" in told
    assert "2 ids of messages had nothing to start and were dropped: harmless." in told


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_the_page_loads_and_runs_nothing(shell: Shell, day: None, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    told = shell("report", "--html", str(path))
    assert (told.returncode, told.stdout) == (0, f"Written: {path}\n")

    page = path.read_text()
    reader = Reader()
    reader.feed(page)
    assert not reader.tags & {"script", "img", "link", "iframe", "object", "form", "a", "base"}
    assert not {
        name for name in reader.attributes if name.startswith("on") or name in ("src", "href")
    }
    assert "url(" not in page
    assert "@import" not in page
    assert page.count("<svg") == page.count("</svg>") == 1
    assert "&lt;script&gt;" in page


def test_schedules_that_are_late_are_named(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(_SCHEDULE)
    told = " ".join(shell("report").stdout.split())
    assert re.search(r"nightly 0 late by 5 min now", told)


@pytest.mark.test_all
def test_an_empty_pool_has_a_report_too(shell: Shell, engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    told = shell("report")
    assert "No task has ended" in told.stdout
    assert shell("report", "--html", str(path)).returncode == 0


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def guarded(database_url: str, engine: Engine) -> Iterator[str]:
    database = Database(database_url)
    reader = MetricsReader(database, Settings(database_url=database_url))
    with MetricsServer("127.0.0.1", 0, reader, "bob:secret") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
    database.dispose()


def test_once_prints_them(shell: Shell) -> None:
    done = shell("metrics", "--once")
    assert done.returncode == 0
    assert done.stdout.startswith("# HELP tasks_app_")
    assert "\ntasks_app_up 1\n" in done.stdout


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_none(address: str) -> None:
    check_address(address, "")


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::", "10.0.0.1", "a.example"])
def test_every_other_address_does(address: str) -> None:
    with pytest.raises(ConfigurationError):
        check_address(address, "")
    check_address(address, "bob:secret")


@pytest.mark.parametrize("auth", ["bob", "bob:", ":secret"])
def test_half_a_password_is_refused(auth: str) -> None:
    with pytest.raises(ConfigurationError, match="name:password"):
        check_address("127.0.0.1", auth)


def test_a_password_is_asked_for(guarded: str) -> None:
    right, wrong = (base64.b64encode(b"bob:" + word).decode() for word in (b"secret", b"x"))
    assert get(f"{guarded}/metrics")[0] == 401
    assert get(f"{guarded}/metrics", Authorization=f"Basic {wrong}")[0] == 401
    assert get(f"{guarded}/metrics", Authorization=f"Basic {right}")[0] == 200
    assert get(f"{guarded}/other", Authorization=f"Basic {right}")[0] == 404
    assert get(f"{guarded}/healthz") == (200, "alive\n")


@pytest.mark.test_all
def test_a_process_serves_until_it_is_told_to_end(shell: Shell) -> None:
    command = [sys.executable, "-m", "tasks_app", "metrics", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        try:
            status, said = get(url)
        finally:
            process.send_signal(signal.SIGTERM)
    assert (status, process.returncode) == (200, 0)
    assert "\ntasks_app_up 1\n" in said


def test_the_page_names_what_is_exported() -> None:
    page = text_of("docs/reference/metrics.md")
    assert first_column(page) == [metric.name for metric in METRICS]


@pytest.mark.parametrize(("command", "option"), [("metrics", "address"), ("dashboard", "host")])
def test_a_taken_port_is_refused_before_it_is_announced(
    shell: Shell, command: str, option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = shell(command, "--port", str(port))
    assert (done.returncode, done.stdout) == (2, "")
    refused = f"Cannot listen on 127.0.0.1, port {port}: Address already in use."
    assert f"{refused} Use another --{option} or --port." in done.stderr


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host", "https://", "secret", "http://a:b@h/"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match=r"https://host/path|leave out user"):
        Settings(alert_webhook=url)


def test_the_command(shell: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as hook:
        monkeypatch.setenv("TASKS_APP_ALERT_WEBHOOK", hook.url)
        assert shell("alerts", "watch", "--once").returncode == 0
        assert hook.said == []  # a worker may be about to start
        with engine.begin() as connection:
            connection.execute(text("UPDATE task_alert SET sending_until = '-infinity'"))
        assert shell.json("alerts", "watch", "--once") == {"sent": 1}
        assert hook.said == [("firing", "workers")]
        assert "workers" in {each["key"] for each in shell.json("alerts", "list")}


def test_the_list_fits_80_columns(
    shell: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    key = "error-burst:9c6de9f8f781ff84"
    fact = "40 tasks failed in ten minutes: KeyError in invoice.send, queue billing"
    assert shell("alerts", "list").stdout == "There has been no alert.\n"
    with engine.begin() as connection:
        alerts.open_alert(connection, Alert(key, fact, "tasks-app errors show 9c6de9f8f781ff84"))
        alerts.open_alert(connection, Alert("workers", "no worker is alive", "Start one."))
        alerts.close_alert(connection, "workers")
    told = shell("alerts", "list").stdout.splitlines()

    assert max(map(len, told)) <= 80
    assert told[0].split() == ["key", "since", "until", "sent"]
    assert re.fullmatch(rf"{key}  just now +open +not sent", told[1])
    assert told[2].strip().startswith(fact)
    assert re.fullmatch(r"workers +just now +just now +not sent", told[3])
    assert len(told) == 5


@pytest.mark.test_all
@pytest.mark.parametrize("command", ["metrics", "dashboard", "work"])
def test_what_runs_anyway_watches(
    command: str, shell: Shell, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_ALERT_PARTITIONS", str(DAYS_AHEAD + 1))
    port = () if command == "work" else ("--port", str(free_port))
    with listening() as hook:
        monkeypatch.setenv("TASKS_APP_ALERT_WEBHOOK", hook.url)
        with subprocess.Popen(
            [sys.executable, "-m", "tasks_app", command, *port], stderr=subprocess.DEVNULL
        ) as process:
            try:
                until(lambda: hook.said, 30)
            finally:
                process.send_signal(signal.SIGTERM)

    assert hook.said == [("firing", "partitions")]
    assert process.returncode in (0, -signal.SIGTERM)
