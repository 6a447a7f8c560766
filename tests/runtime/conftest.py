"""The workbench, and a table for what handlers do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tasks_app.runtime.hints import HINTS, as_configured
from tests.runtime.bench import Bench
from tests.runtime.hints.ear import ear  # noqa: F401  a fixture
from tests.runtime.refusing import Refusals, refusing


@pytest.fixture
def bench(engine: Engine, database_url: str, tmp_path: Path) -> Iterator[Bench]:
    """A workbench on the emptied database; hints of the test before reach nobody any more."""
    HINTS.provide(HINTS.provide(as_configured))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effect (task_id bigint, note text)"))
        connection.execute(text("DELETE FROM effect"))
    bench = Bench(engine, database_url, tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def refusals(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusals]:
    """A layer that refuses statements; it is lifted before the bench stops its children."""
    with refusing(monkeypatch) as refusals:
        yield refusals
