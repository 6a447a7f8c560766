"""``tasks-app report`` as an operator reads it, and as it is mailed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.statistics.parts import CountPart, write_parts
from tasks_app.pool.statistics.roll_up import roll_up
from tests.cli.shell import Shell
from tests.factory import pending_task
from tests.pool.statistics.counted import KEPT
from tests.runtime.api.bulk_rows import failed_task

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


@pytest.mark.parametrize(
    "since", ["5x", "tomorrow", "-1h", "2999-01-01T00:00:00Z", "0s", "9999-12-31T23:59:59-23:59"]
)
def test_what_is_no_time_is_refused(shell: Shell, engine: Engine, since: str) -> None:
    told = shell("report", f"--since={since}")
    assert told.returncode == 2
    assert "Traceback" not in told.stderr
    assert "--since" in told.stderr
    assert since != "5x" or "Write 24h, 7d or an instant" in told.stderr


def test_a_file_that_cannot_be_written_is_refused(shell: Shell, engine: Engine) -> None:
    told = shell("report", "--html", "/nowhere/report.html")
    assert (told.returncode, "--html" in told.stderr) == (2, True)


class Reader(HTMLParser):
    """Notes what a page would load or run."""

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
