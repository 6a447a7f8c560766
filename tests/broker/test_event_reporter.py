"""What events of tasks show, and their way from a child's pipe to the broker."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tasks_app.broker.events import (
    BURST,
    LATE,
    LONGEST_LINE,
    EventPipe,
    EventWriter,
    Reporter,
    events_of,
    is_wanted,
    line_of,
    shown,
)
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.settlement import exception_text
from tasks_app.domain.large_values.store import Reference
from tasks_app.domain.tasks.run import Cause
from tasks_app.runtime.hooks import Notice, NoticeKind
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE, Scoreboard

PAYLOAD = '{"card": "4711-canary", "pin": 1234, "list": [{"deep": "it\\"s"}], "n": 7, "yes": true}'


def notice(kind: NoticeKind, **values: Any) -> Notice:
    return Notice(kind, 42, "orders.confirm", "default", **values)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("card 4711-canary refused", "E: card *** refused"),
        ("{'card': '4711-canary'} is bad", "E: {'card': '***'} is bad"),
        ("pin 1234 of 7", "E: pin *** of 7"),
        ('it"s deep', "E: *** deep"),
        ("first line\nDETAIL: Failing row contains (canary)", "E: first line"),
        ("", "E"),
        ("x" * 500, f"E: {'x' * 296}…"),
    ],
)
def test_the_first_line_of_an_exception_is_shown_without_values_of_the_payload(
    message: str, text: str
) -> None:
    assert exception_text(Cause("E", message), PAYLOAD) == text


@pytest.mark.parametrize(
    "payload",
    [
        *(None, "no JSON", '{"a": ' + "[" * 600 + "]" * 600 + "}"),
        str(Reference(UUID(int=1), 70_000, encrypted=False)),
    ],
)
def test_a_payload_that_cannot_be_compared_hides_the_whole_line(payload: str | None) -> None:
    assert exception_text(Cause("E", "card 4711"), payload) == "E: ***"


def test_a_value_that_begins_another_leaves_nothing_of_it() -> None:
    payload = '{"short": "4711", "long": "4711-canary"}'
    assert exception_text(Cause("E", "card 4711-canary, not 4711"), payload) == (
        "E: card ***, not ***"
    )


def test_our_own_words_are_shown_whatever_the_payload_is() -> None:
    cause = Cause("process died", "Its process 1234 died while only this task ran in it.")
    assert exception_text(cause, None) == exception_text(cause, PAYLOAD)
    assert exception_text(cause, None) == f"{cause.kind}: {cause.message}"


def test_of_data_its_size_is_shown_and_the_chosen_keys() -> None:
    assert shown("payload", PAYLOAD, ()) == {"payload": "86 bytes"}
    assert shown("payload", PAYLOAD, ("n", "list", "other")) == {
        "n": 7,
        "list": '[{"deep": "it\\"s"}]',
        "payload": "86 bytes",
    }
    assert shown("payload", '"canary"', ("n",)) == {"payload": "8 bytes"}
    assert shown("payload", None, ("n",)) == {}
    assert shown("result", json.dumps({"n": "x" * 500}), ("n",))["n"] == "x" * 99 + "…"


def types(told: Notice) -> list[str]:
    return [event["type"] for event in events_of(told, ())]


def test_a_second_attempt_leaves_the_state_of_the_first_before_it_is_received() -> None:
    assert types(notice(NoticeKind.RECEIVED, attempt=1)) == ["task-received"]
    assert types(notice(NoticeKind.RECEIVED, attempt=2)) == ["task-retried", "task-received"]


def test_only_what_goes_out_for_a_failed_attempt_may_come_too_late() -> None:
    wait = timedelta(hours=1)
    (retried,) = events_of(notice(NoticeKind.RETRIED, attempt=1, wait=wait), ())
    again, received = events_of(notice(NoticeKind.RECEIVED, attempt=2), ())
    assert retried[LATE] > 3600
    assert LATE not in again | received


@pytest.mark.parametrize(
    ("kind", "expired"),
    [(NoticeKind.CANCELLED, False), (NoticeKind.SKIPPED, False), (NoticeKind.EXPIRED, True)],
)
def test_what_never_ran_to_its_end_is_revoked_and_says_how(kind: NoticeKind, expired: bool) -> None:
    (event,) = events_of(notice(kind), ())
    assert (event["type"], event["expired"], event["result"]) == ("task-revoked", expired, kind)
    assert (event["uuid"], event["name"]) == ("42", "orders.confirm")


@pytest.mark.parametrize(
    ("long", "fits"),
    [
        ({"traceback": "start " + "line\n" * 3000 + "the fault"}, "the fault"),
        ({"kwargs": "ä" * 9000 + "end"}, "end"),
        ({"traceback": "x" * 5000, "kwargs": "y" * 5000, "result": "z" * 9000 + "end"}, "end"),
    ],
)
def test_a_long_event_loses_beginnings_until_it_fits_a_line(
    long: dict[str, str], fits: str
) -> None:
    line = line_of({"type": "task-failed", "uuid": "42", **long})
    assert len(line) < LONGEST_LINE
    assert list(json.loads(line).values())[-1].endswith(fits)


class Collects(EventPipe):
    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(
    ("events", "kind", "attempt", "number"),
    [
        ("all", NoticeKind.SUCCEEDED, 1, 1),
        ("failures", NoticeKind.RECEIVED, 1, 0),
        ("failures", NoticeKind.STARTED, 1, 0),
        ("failures", NoticeKind.SUCCEEDED, 1, 0),
        ("failures", NoticeKind.SKIPPED, 1, 0),
        ("failures", NoticeKind.FAILED, 1, 1),
        ("failures", NoticeKind.RETRIED, 1, 1),
        ("failures", NoticeKind.RESCUED, 1, 1),
        ("failures", NoticeKind.RECEIVED, 2, 2),
        ("failures", NoticeKind.SUCCEEDED, 2, 1),
    ],
)
def test_with_failures_only_other_first_attempts_are_not_shown(
    events: Any, kind: NoticeKind, attempt: int, number: int
) -> None:
    pipe = Collects()
    EventWriter(pipe, Settings(events=events))(notice(kind, attempt=attempt))
    assert len(pipe.lines) == number


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
