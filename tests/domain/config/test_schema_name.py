"""A wrong name of a schema ends every command with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks_app.domain.config.urls import schema_name
from tasks_app.domain.errors import ConfigurationError


@pytest.mark.parametrize(
    "name", ["My-Schema", 'quo"te', "%s", "123", "pg_foo", "information_schema", "a\n"]
)
def test_a_wrong_name_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TASKS_APP_SCHEMA", name)

    with pytest.raises(ConfigurationError, match=r"^TASKS_APP_SCHEMA is wrong: "):
        schema_name()


@pytest.mark.parametrize("name", ["jobs", "_x1", "pgx", "information_schema2"])
def test_a_plain_one_is_taken(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TASKS_APP_SCHEMA", name)

    assert schema_name() == name


@pytest.mark.test_all
@pytest.mark.parametrize(
    "words",
    [
        ("-m", "tasks_app", "stats"),
        ("-m", "tasks_app", "doctor"),
        ("-m", "celery", "-A", "tasks_app", "worker"),
    ],
)
def test_a_command_ends_with_one_sentence_and_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        cwd=tmp_path,
        env=os.environ | {"TASKS_APP_SCHEMA": "pg_foo"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("TASKS_APP_SCHEMA is wrong: ")
    assert len(done.stderr.splitlines()) == 1
