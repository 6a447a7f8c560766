"""``show`` and ``list`` say how large a value is that stands outside of its row, and load none."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tasks_app import create_task
from tasks_app.runtime.large_values import large_values
from tests.cli.shell import Shell


@pytest.fixture(autouse=True)
def kept(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TASKS_APP_LARGE_VALUES", "database")
    large_values.cache_clear()
    yield
    large_values.cache_clear()


def test_people_see_its_size(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = create_task(connection, "t", {"text": "x" * 100_000})
    said = "kept outside of the row (100011 bytes)"
    for more in ((), ("--json",)):
        assert said in shell("show", str(task_id), *more).stdout
    (listed,) = json.loads(shell("list", "--json").stdout)
    assert listed["payload"] == said
