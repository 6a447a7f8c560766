"""A process that keeps large values, and a look at what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tasks_app.runtime.encryption.encryption import encryption
from tasks_app.runtime.large_values import large_values
from tests.runtime.bench import Bench

Configure = Callable[..., dict[str, Any]]
BIG = {"text": "x" * 100_000}
"""Above the limit of a row, which is 64 KiB."""


def _forget() -> None:
    for each in (large_values, encryption):
        each.cache_clear()


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Set variables for this process, as producer and reader; return them for its workers."""

    def set_(**variables: Any) -> dict[str, Any]:
        for name, value in variables.items():
            monkeypatch.setenv(f"TASKS_APP_{name.upper()}", str(value))
        _forget()
        return variables

    yield set_
    _forget()


@pytest.fixture
def kept(configure: Configure) -> dict[str, Any]:
    return configure(large_values="database")


def values(bench: Bench) -> int:
    return int(bench.sql("SELECT count(*) FROM task_large_value"))


def echo(bench: Bench, name: str = "t", **options: Any) -> None:
    @bench.handler(name, **options)
    def run(ctx: Any, payload: dict[str, Any]) -> dict[str, Any]:
        bench.runs.append(payload)
        return {"echo": payload}
