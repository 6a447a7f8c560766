"""Commands as a person types them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from sqlalchemy import Engine, text

from tasks_app.cli.group import group
from tasks_app.cli.main import main
from tests.environment import python_path, run_program


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


class Shell:
    """Runs ``tasks-app`` in a folder with an environment; in this process unless told otherwise."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, **environment: str) -> None:
        # A command may set the URLs; how wide our own output is does not concern it.
        found = {"TASKS_APP_DATABASE_URL", "TASKS_APP_BROKER_URL", "COLUMNS"}
        for name in found | {name for name in os.environ if name.startswith("TASKS_APP_")}:
            patch.setenv(name, "")  # so that it is taken back in any case
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", python_path(folder))
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        self._patch = patch

    def __call__(self, *arguments: str) -> Done:
        output, errors = io.StringIO(), io.StringIO()
        self._patch.setattr(sys, "argv", ["tasks-app", *arguments])
        with redirect_stdout(output), redirect_stderr(errors), pytest.raises(SystemExit) as end:
            main()
        status = end.value.code
        assert isinstance(status, int)
        return Done(status, output.getvalue(), errors.getvalue())

    def process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_program([sys.executable, "-m", "tasks_app", *arguments], timeout=250)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it; groups, too."""
    waiting: list[tuple[tuple[str, ...], click.Command]] = [((), group)]
    while waiting:
        words, command = waiting.pop()
        yield words, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                waiting.append(((*words, name), found))


def token_of(output: str) -> str:
    """Return the token of the bulk that a command has begun."""
    found = re.search(r"^bulk (\d+)$", output, re.M)
    assert found
    return found[1]


JOBS = """
from pathlib import Path
from pydantic import BaseModel
from sqlalchemy import text
from tasks_app import BatchJob, Step, Table
from tasks_app.batch.planners.even import Even
from tasks_app.batch.planners.keys import KeyRanges

class Params(BaseModel):
    month: str

def chunk(ctx, rows):
    bad = Path("bad").exists()
    for row in rows:
        if bad and row.id == 15:
            raise ValueError("odd")

BatchJob("payroll", [
    Step("check", Table("person"), planner=Even(4), chunk=chunk, commit_every=5,
         on_abort="continue", max_attempts=1),
    Step("pay", Table("person"), planner=Even(2), chunk=chunk, skip_limit=1),
], params=Params)
BatchJob("sorted", [
    Step(name, Table("person"), planner=Even(2), chunk=chunk) for name in ("take", "post", "end")])
BatchJob("gapped", [
    Step("one", Table("person"), planner=KeyRanges([(None, 10), (12, None)]), chunk=chunk)])
"""


@pytest.fixture
def run(
    engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    (tmp_path / "cli_jobs.py").write_text(JOBS)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS person"))
        connection.execute(text("CREATE TABLE person (id int PRIMARY KEY)"))
        connection.execute(text("INSERT INTO person SELECT generate_series(1, 40)"))
    yield Shell(
        monkeypatch, tmp_path, TASKS_APP_DATABASE_URL=database_url, TASKS_APP_IMPORTS="cli_jobs"
    )
    sys.modules.pop("cli_jobs", None)
    for name in ("payroll", "sorted", "gapped"):
        sys.modules["tasks_app.batch.job"].JOBS.pop(name, None)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE person"))
