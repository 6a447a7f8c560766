"""A shell that runs ``tasks-app`` as an operator does."""

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

from tasks_app.cli.group import group
from tasks_app.cli.main import main
from tests.python_path import python_path


@dataclass(frozen=True)
class Done:
    """What a command left."""

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
        return subprocess.run(
            [sys.executable, "-m", "tasks_app", *arguments],
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )

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
