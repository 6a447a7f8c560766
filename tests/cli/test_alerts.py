"""``alerts watch`` and ``alerts list``; which settings are refused."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from pydantic import ValidationError
from sqlalchemy import Engine, text

from tasks_app import Settings
from tasks_app.domain.alerts import Alert
from tasks_app.pool import alerts
from tasks_app.pool.retention import DAYS_AHEAD
from tests.cli.shell import Shell
from tests.runtime.alerts.hook import listening
from tests.waiting import until


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
