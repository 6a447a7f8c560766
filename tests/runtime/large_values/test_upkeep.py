"""An object store that hangs, or has much, holds up neither maintenance nor a worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime

import pytest

from tasks_app.domain.large_values.store import LargeValueStore
from tasks_app.runtime.large_values import LargeValues
from tasks_app.runtime.leader import maintainer
from tasks_app.runtime.leader.maintainer import LargeValueUpkeep, Maintainer
from tests.clock import until
from tests.runtime.bench import Bench

DONE = "SELECT done_at FROM task_lease WHERE name = 'maintain'"
ASKED, ANSWERED, OVER = threading.Event(), threading.Event(), threading.Event()


class Hanging:
    """Answers when the test is over."""

    def put(self, key: str, data: bytes) -> None: ...

    def get(self, key: str) -> bytes | None: ...

    def delete(self, key: str) -> None: ...

    def keys(self, before: datetime) -> Iterator[str]:
        ASKED.set()
        OVER.wait(10)
        ANSWERED.set()
        return iter(())


def hanging() -> LargeValueStore:
    return Hanging()


@pytest.fixture(autouse=True)
def _events(bench: Bench) -> None:
    for each in (ASKED, ANSWERED, OVER):
        each.clear()
    bench.at_end(OVER.set)


@pytest.mark.usefixtures("maintenance_due")
def test_maintenance_ends_as_a_store_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = bench.settings(large_values=f"{__name__}:hanging")
    database = bench.database()
    monkeypatch.setattr(maintainer, "PRUNE_FOR_S", 60)
    Maintainer(database, settings=settings).run_if_due()
    assert not ANSWERED.is_set()
    assert bench.sql(DONE)
    until(ASKED.is_set)


def test_one_look_at_a_store_at_a_time(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    values = LargeValues(bench.settings(large_values=f"{__name__}:hanging"))
    upkeep = LargeValueUpkeep(values, bench.engine.begin)
    upkeep.start_outside()
    until(ASKED.is_set)
    ASKED.clear()
    upkeep.start_outside()
    assert not ASKED.is_set()
    assert "still runs" in caplog.text
