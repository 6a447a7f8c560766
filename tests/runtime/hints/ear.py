"""A broker's place for hints: it notes what it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from tasks_app.runtime.hints import HINTS
from tests.runtime.bench import Bench


class Ear:
    """A publisher that notes what it is told; it can be deaf, slow, or full."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, list[int]]] = []
        self.instants: list[float] = []
        self.error: BaseException | None = None
        self.depths: dict[str, int | None] = {}
        self.looks = 0
        self.open = threading.Event()
        self.open.set()

    def publish(self, queue: str, ids: Sequence[int]) -> None:
        self.open.wait(20)
        if self.error is not None:
            raise self.error
        self.messages.append((queue, list(ids)))
        self.instants += [time.monotonic()] * len(ids)

    def start(self, queue: str, ids: Sequence[int]) -> bool:
        return False

    def finish(self) -> None:
        raise AssertionError("nothing was started")

    def depth(self, queue: str) -> int | None:
        self.looks += 1
        return self.depths.get(queue, 0)

    @property
    def ids(self) -> list[int]:
        return [i for _, ids in self.messages for i in ids]


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    """What the hints of this process reach."""
    monkeypatch.setenv("TASKS_APP_BROKER_URL", "redis://nobody")
    ear = Ear()
    before = HINTS.provide(lambda settings: ear)
    yield ear
    ear.open.set()
    HINTS.provide(before)


def told(ear: Ear) -> list[int]:
    """All ids that were told, when the last hint is out."""
    HINTS.flush(20)  # at an exit there is less patience
    return ear.ids


def wait_of(bench: Bench, task_id: int) -> timedelta:
    """How long the scan leaves the row alone."""
    return bench.sql("SELECT scan_at - due_at FROM task_pending WHERE id = :id", id=task_id)
