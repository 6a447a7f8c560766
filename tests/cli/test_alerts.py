"""``alerts watch`` and ``alerts list``; which settings are refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from sqlalchemy import Engine, text

from tasks_app import Settings
from tests.cli.shell import Shell
from tests.runtime.alerts.hook import listening


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host", "https://", "secret", "http://a:b@h/"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match=r"https://host/path|no user"):
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
