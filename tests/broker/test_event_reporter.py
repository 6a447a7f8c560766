"""From the children's pipe to the broker: never waiting, never raising, silent after an error."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks_app.broker.events import (
    BURST,
    LATE,
    LONGEST_LINE,
    EventPipe,
    Reporter,
    is_wanted,
    line_of,
)
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE, Scoreboard


class Wire:
    """A producer that keeps what it is given, and fails when told to."""

    def __init__(self) -> None:
        self.bursts: list[list[dict[str, Any]]] = []
        self.fails = False

    def publish(self, burst: list[dict[str, Any]], **_: Any) -> None:
        if self.fails:
            raise ConnectionError("secret")
        self.bursts.append(burst)

    @property
    def uuids(self) -> list[str]:
        return [event["uuid"] for burst in self.bursts for event in burst]


class Clock:
    """The time that the reporter believes."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pipe(tmp_path: Path) -> EventPipe:
    """A child's end."""
    return EventPipe.beside(tmp_path / "slots")


@pytest.fixture
def reporter(
    tmp_path: Path, wire: Wire, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reporter]:
    """A started reporter; its ticks are the test's."""
    monkeypatch.setenv(SLOTS_VARIABLE, str(tmp_path / "slots"))
    dispatcher = SimpleNamespace(
        enabled=True,
        groups=set(),
        hostname="w@h",
        clock=SimpleNamespace(forward=lambda: 1),
        mutex=threading.Lock(),
        producer=wire,
        exchange=SimpleNamespace(name="celeryev"),
        serializer="json",
        headers={},
        delivery_mode=1,
    )
    worker = SimpleNamespace(
        task_events=True,
        consumer=SimpleNamespace(event_dispatcher=dispatcher),
        timer=SimpleNamespace(call_after=lambda *_: None),
    )
    reporter = Reporter(worker)
    reporter.clock = clock.monotonic
    reporter.start(worker)
    reporter.dispatcher = dispatcher
    return reporter


def line(number: int, **more: Any) -> bytes:
    return line_of({"type": "task-started", "uuid": str(number), "timestamp": 1.0, **more})


def slots(tmp_path: Path) -> Scoreboard:
    return Scoreboard(tmp_path / "slots")


def test_lines_go_out_in_order_and_in_bursts(
    reporter: Reporter, wire: Wire, pipe: EventPipe
) -> None:
    for number in range(2 * BURST + 50):
        pipe.write(line(number))
    reporter.tick()
    assert wire.uuids == [str(n) for n in range(2 * BURST + 50)]
    assert max(map(len, wire.bursts)) == BURST
    assert len(wire.bursts) <= 4
    event = wire.bursts[0][0]
    assert (event["type"], event["hostname"], event["clock"]) == ("task-started", "w@h", 1)


def test_lines_of_many_processes_stay_whole(
    reporter: Reporter, wire: Wire, pipe: EventPipe, tmp_path: Path
) -> None:
    def write(first: int) -> None:
        own = EventPipe.beside(tmp_path / "slots")
        for number in range(first, first + 100):
            own.write(line(number, traceback="x" * (LONGEST_LINE - 200)))
        assert own.lost == 0

    threads = [threading.Thread(target=write, args=(n * 100,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    while len(wire.uuids) < 200:
        reporter.tick()

    assert sorted(map(int, wire.uuids)) == list(range(200))


@pytest.mark.test_all
def test_a_full_pipe_loses_lines_and_nobody_waits(reporter: Reporter, pipe: EventPipe) -> None:
    began = time.monotonic()
    for number in range(20_000):
        pipe.write(line(number, kwargs="x" * 200))
    assert pipe.lost > 10_000
    assert time.monotonic() - began < 10


def test_without_a_parent_lines_are_lost_and_nothing_is_raised(tmp_path: Path) -> None:
    orphan = EventPipe.beside(tmp_path / "slots")
    orphan.write(b"{}")
    os.mkfifo(tmp_path / "events")
    orphan.write(b"{}")
    orphan.write(b"x" * LONGEST_LINE)
    assert orphan.lost == 3
    assert orphan.read() == []


def test_the_first_error_silences_it_for_a_while_and_then_it_begins_anew(
    reporter: Reporter,
    wire: Wire,
    pipe: EventPipe,
    clock: Clock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wire.fails = True
    pipe.write(line(1))
    reporter.tick()
    wire.fails = False
    pipe.write(line(2))
    reporter.tick()

    assert wire.uuids == []
    assert not slots(tmp_path).reporting
    assert [r.getMessage() for r in caplog.records] == [
        "events of tasks are off for 15 s: ConnectionError"
    ]

    clock.now += 16
    reporter.tick()
    assert slots(tmp_path).reporting
    pipe.write(line(3))
    reporter.tick()
    assert wire.uuids == ["3"]


def test_a_slow_broker_silences_it_too(
    reporter: Reporter, wire: Wire, pipe: EventPipe, clock: Clock, tmp_path: Path
) -> None:
    pipe.write(line(1))
    wire.publish = lambda *_, **__: setattr(clock, "now", clock.now + 2)  # type: ignore[method-assign]
    reporter.tick()
    reporter.tick()
    assert not slots(tmp_path).reporting


def test_children_write_only_while_celery_itself_would_send(
    reporter: Reporter, wire: Wire, pipe: EventPipe, tmp_path: Path
) -> None:
    """``enable_events`` and ``disable_events``, from Flower or by hand, change the groups."""
    assert slots(tmp_path).reporting  # told at the start, before Celery is connected
    reporter.dispatcher.groups = {"worker"}
    pipe.write(line(1))
    reporter.tick()
    assert not slots(tmp_path).reporting
    reporter.dispatcher.groups.add("task")
    reporter.tick()
    assert slots(tmp_path).reporting
    assert wire.uuids == []


def test_it_is_wanted_as_celery_wants_it() -> None:
    assert not is_wanted(None)
    assert not is_wanted(SimpleNamespace(enabled=False, groups=set()))
    assert is_wanted(SimpleNamespace(enabled=True, groups=set()))


def test_what_would_hide_newer_news_is_dropped_when_it_is_late(
    reporter: Reporter, wire: Wire, pipe: EventPipe, clock: Clock
) -> None:
    pipe.write(line(1, **{LATE: clock.now - 1}))
    pipe.write(line(2, **{LATE: clock.now + 1}))
    reporter.tick()
    assert wire.uuids == ["2"]
    assert LATE not in wire.bursts[0][0]


@pytest.mark.parametrize(("events", "there"), [("all", True), ("failures", True), ("off", False)])
def test_switched_off_there_is_no_reporter(
    monkeypatch: pytest.MonkeyPatch, events: str, there: bool
) -> None:
    monkeypatch.setenv("TASKS_APP_EVENTS", events)
    assert Reporter(SimpleNamespace()).include_if(None) is there
