"""`celery -A tasks_app pool …` is `tasks-app …`, and no burden for other commands of Celery."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from tasks_app.cli.group import COMMANDS, group, pool
from tasks_app.embedded.servers import Valkey

pytestmark = pytest.mark.test_all

BIN = Path(sys.executable).parent
TWO_WAYS = ([str(BIN / "tasks-app")], [str(BIN / "celery"), "-A", "tasks_app", "pool"])


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_celery_finds_the_same_commands_under_the_name_pool() -> None:
    (found,) = entry_points(group="celery.commands", name="pool")

    plugin = found.load()
    context = click.Context(plugin)

    assert plugin is pool
    assert plugin.name == "pool"
    assert plugin.list_commands(context) == group.list_commands(context) == list(COMMANDS)
    assert plugin.get_command(context, "list") is group.get_command(context, "list")


def test_the_plugin_imports_click_and_nothing_else_that_costs() -> None:
    """Every `celery` of this environment loads it, whatever it is about to do."""
    code = "import click, sys; a = set(sys.modules); import tasks_app.cli.group; "

    said = run(sys.executable, "-c", code + "print(*sorted(set(sys.modules) - a))").stdout

    names = [name for name in said.split() if name.split(".")[0] not in sys.stdlib_module_names]
    assert set(names) == {
        "tasks_app",
        "tasks_app.cli",
        "tasks_app.cli.group",
        "tasks_app.runtime",
        "tasks_app.runtime.gc_pause",  # the other imports go faster with it
    }


def test_what_goes_wrong_ends_the_same_both_ways(
    broker: Valkey, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKS_APP_BROKER_URL", broker.url)
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    unknown = [run(*way, "show", "999999999") for way in TWO_WAYS]
    misused = [run(*way, "cancel") for way in TWO_WAYS]
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", "postgresql+psycopg://u:secret@127.0.0.1:1/x")
    away = [run(*way, "list") for way in TWO_WAYS]

    for done, status in ((unknown, 1), (misused, 2), (away, 3)):
        assert [each.returncode for each in done] == [status, status], done
        assert done[0].stderr.splitlines()[-1] == done[1].stderr.splitlines()[-1]
        assert "Traceback" not in done[1].stderr
    assert "There is no task" in unknown[1].stderr
    assert "does not answer" in away[1].stderr
