"""The trigger of ``notify``, from the shell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tasks_app.pool.dispatch import notifications
from tests.cli.shell import Shell


@pytest.fixture(autouse=True)
def _removed(engine: Engine) -> Iterator[None]:
    yield
    with engine.begin() as connection:
        notifications.remove_trigger(connection)


def test_it_is_installed_and_removed_and_says_how_it_stands(shell: Shell) -> None:
    said = [
        shell("notify", verb).stdout.strip()
        for verb in ("status", "install", "install", "status", "remove", "remove")
    ]
    assert said == [
        *("not installed", "installed", "was installed already"),
        *("installed", "removed", "was not installed"),
    ]
    assert shell.json("notify", "install") == {"installed": True, "changed": True}
    assert shell.json("notify", "status") == {"installed": True}


@pytest.mark.test_all
def test_it_does_not_wait_long_for_those_who_create_tasks(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("LOCK task_pending IN ROW EXCLUSIVE MODE")
        done = shell("notify", "install")
    assert done.returncode == 3
    assert "LockNotAvailable" in done.stderr
    assert "Try again." in done.stderr
    assert shell("notify", "status").stdout.strip() == "not installed"
