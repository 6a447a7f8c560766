"""Celery events: written, masked, sent; beat's heartbeats."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from celery import Celery
from redis import Redis

from tasks_app import requeue_task
from tasks_app.broker.beat import PoolScheduler
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
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.house.flower_handlers import SECRET
from tests.broker.listening import Listener
from tests.broker.scans import Scans
from tests.clock import until

FLOWER = {"TASKS_APP_IMPORTS": "flower_handlers", "TASKS_APP_EVENTS_SHOW": "points,shop"}
SECRETS = {"card": SECRET, "shop": "north"}


@pytest.fixture(scope="module")
def listener(house: House) -> Iterator[Listener]:
    listener = Listener(house.environment()["TASKS_APP_BROKER_URL"])
    yield listener
    listener.end()


@pytest.fixture(scope="module")
def worker(house: House, listener: Listener) -> CeleryProcess:
    """A worker without -E, which is asked for events as Flower asks, and a beat."""
    worker = house.worker(**FLOWER)
    house.beat(TASKS_APP_SCAN_INTERVAL="0.2s")
    # Its first event comes before it hears commands: what is sent in between reaches nobody.
    until(lambda: switched(listener, "enable"), 30, "the worker's answer to a command")
    until(lambda: is_heard_of(house, listener), 20, "the first task's event")
    return worker


def is_heard_of(house: House, listener: Listener) -> bool:
    """Whether the children know by now that somebody listens: they learn it within a second."""
    (task_id,) = house.create("fine", payload=SECRETS)
    house.over([task_id], 20)
    try:
        until(lambda: listener.shows(task_id) == "SUCCESS", 1)
    except AssertionError:
        return False
    return True


def switch(listener: Listener, how: str) -> None:
    """Let the worker send events of tasks, or not."""
    assert switched(listener, how)


def switched(listener: Listener, how: str) -> bool:
    """Ask once, and tell whether it answered."""
    command = getattr(listener.app.control, f"{how}_events")
    return bool(command(destination=list(listener.workers()), reply=True, timeout=5))


def shown_of_events(listener: Listener, task_id: int, state: str) -> Any:
    """Wait until Flower would show the task in this state; return what it shows."""
    until(lambda: listener.shows(task_id) == state, 20, f"{state} of {task_id}")
    return listener.task(task_id)


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_success_is_shown_with_its_course_and_without_its_data(
    house: House, listener: Listener, worker: CeleryProcess
) -> None:
    (task_id,) = house.create("fine", payload=SECRETS, biz_key="order:7")

    task = shown_of_events(listener, task_id, "SUCCESS")

    assert listener.types(task_id) == ["received", "started", "succeeded"]
    assert (task.name, task.worker.hostname.partition("@")[0]) == ("fine", worker.name)
    assert task.kwargs == "{'biz_key': 'order:7', 'shop': 'north', 'payload': '40 bytes'}"
    assert task.result == "{'points': 10, 'result': '35 bytes'}"
    assert task.runtime >= 0
    assert task.received <= task.started <= task.succeeded
    assert listener.workers() == {task.worker.hostname}


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_retry_is_red_no_longer_when_it_succeeds(
    house: House, listener: Listener, worker: CeleryProcess
) -> None:
    (task_id,) = house.create("wobbly", payload=SECRETS)

    task = shown_of_events(listener, task_id, "SUCCESS")

    first, again = ["received", "started", "retried"], ["retried", "received", "started"]
    assert listener.types(task_id) == [*first, *again, "succeeded"]
    assert task.retries == 1
    assert task.exception == "ValueError: no credit for ***"
    assert "raise ValueError" in task.traceback


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize(
    ("name", "payload", "state", "text"),
    [
        ("broken", SECRETS, "FAILURE", "ValueError: card *** refused"),
        ("stops", {"how": "fail"}, "FAILURE", "Fail: as told"),
        ("stops", {"how": "cancel"}, "REVOKED", "cancelled: Cancel: as told"),
        ("stops", {"how": "skip"}, "REVOKED", "skipped: Skip: as told"),
    ],
)
def test_each_other_end_has_its_state_and_cause(
    house: House,
    listener: Listener,
    worker: CeleryProcess,
    name: str,
    payload: dict[str, Any],
    state: str,
    text: str,
) -> None:
    (task_id,) = house.create(name, payload=payload)

    task = shown_of_events(listener, task_id, state)

    assert (task.exception or task.result) == text


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"enabled": False}, "skipped: disabled: The task was disabled when it became due."),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "expired: expired: "),
    ],
)
def test_what_beat_itself_ends_is_shown_under_a_worker_that_is_there(
    house: House,
    listener: Listener,
    worker: CeleryProcess,
    options: dict[str, Any],
    text: str,
) -> None:
    (task_id,) = house.create("fine", **options)

    task = shown_of_events(listener, task_id, "REVOKED")

    assert (task.name, task.result[: len(text)]) == ("fine", text)
    assert len(listener.workers()) == 1


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_requeued_task_leaves_the_red_state(
    house: House, listener: Listener, worker: CeleryProcess
) -> None:
    (task_id,) = house.create("mended")
    shown_of_events(listener, task_id, "FAILURE")

    with house.engine.begin() as connection:
        requeue_task(connection, task_id)

    shown_of_events(listener, task_id, "SUCCESS")
    assert listener.types(task_id)[3:] == ["retried", "received", "started", "succeeded"]


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_killed_child_fails_its_task_and_not_the_message(
    house: House, listener: Listener, worker: CeleryProcess
) -> None:
    """What the child told before it was killed is not lost: its neighbours are shown."""
    before, (task_id,) = house.create("fine", 20, {}), house.create("killer")

    task = shown_of_events(listener, task_id, "FAILURE")

    assert task.exception.startswith("process died")
    for neighbour in before:
        shown_of_events(listener, neighbour, "SUCCESS")
    uuids = {e["uuid"] for e in listener.events if e["type"].startswith("task-")}
    assert all(uuid.isdigit() for uuid in uuids)


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_no_value_of_a_task_is_in_any_event(
    house: House, listener: Listener, worker: CeleryProcess
) -> None:
    (row,) = house.create("row", payload=SECRETS)

    task = shown_of_events(listener, row, "FAILURE")

    assert "duplicate key value violates unique constraint" in task.exception
    assert SECRET not in str(listener.events)


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_events_may_be_switched_off_and_on_while_it_runs(
    house: House, listener: Listener, worker: CeleryProcess
) -> None:
    switch(listener, "disable")
    until(lambda: not told(house, listener), 10, "silence")

    switch(listener, "enable")

    until(lambda: told(house, listener), 10, "events")


def told(house: House, listener: Listener) -> bool:
    """Run a task; tell whether anything was heard of it."""
    (task_id,) = house.create("fine")
    house.over([task_id])
    with suppress(AssertionError):
        until(lambda: listener.of(task_id), 1)
    return bool(listener.of(task_id))


def control(listener: Listener, command: str, **arguments: Any) -> dict[str, Any]:
    """Send a command; return the worker's answer."""
    (answers,) = listener.app.control.broadcast(
        command, arguments=arguments, destination=list(listener.workers()), reply=True, timeout=5
    )
    (answer,) = answers.values()
    return answer


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_revoke_cancels_a_waiting_row_and_shows_it(
    house: House, listener: Listener, worker: CeleryProcess
) -> None:
    (task_id,) = house.create("fine", delay="1h")

    answer = control(listener, "revoke", task_id=str(task_id), terminate=False, signal="SIGTERM")

    assert answer == {"ok": f"tasks {task_id} will be cancelled"}
    assert house.over([task_id]) == {"CANCELLED": 1}
    assert shown_of_events(listener, task_id, "REVOKED").name == "fine"


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_terminate_cancels_a_running_row_and_kills_nobody(
    house: House, listener: Listener, worker: CeleryProcess
) -> None:
    (task_id,) = house.create("patient")
    shown_of_events(listener, task_id, "STARTED")

    (child,) = [c for c in control(listener, "pool_stats")["children"] if c["running"]]
    control(listener, "revoke", task_id=[str(task_id)], terminate=True, signal="SIGTERM")

    assert (child["running"], child["alive"]) == ([task_id], True)
    assert child["seconds"] >= 0
    assert house.over([task_id]) == {"CANCELLED": 1}
    shown_of_events(listener, task_id, "REVOKED")
    assert {c["pid"] for c in control(listener, "pool_stats")["children"]} >= {child["pid"]}


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_ids_that_are_not_ours_are_revoked_as_celery_does(
    listener: Listener, worker: CeleryProcess
) -> None:
    foreign = "0f8fad5b-d9cb-469f-a165-70867728950e"

    control(listener, "revoke", task_id=[foreign, "17"])

    assert control(listener, "revoked") == [foreign]


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize("arguments", [{"queue": "default"}, {}])
def test_a_queue_is_paused_by_remote_control_and_runs_soon_after_resume(
    house: House, listener: Listener, worker: CeleryProcess, arguments: dict[str, str]
) -> None:
    control(listener, "pool_pause", **arguments)
    count = "SELECT count(*) FROM task_queue_pause"
    until(lambda: house.sql(count) == 1, 5)
    (task_id,) = house.create("fine")
    started = [e["timestamp"] for e in listener.events][-1]
    until(lambda: [e for e in listener.events if e["timestamp"] > started + 1.5], 10)
    assert house.task(task_id).state == "PENDING"

    control(listener, "pool_resume", **arguments)
    until(lambda: house.sql(count) == 0, 5)
    assert house.over([task_id], timeout_s=2) == {"SUCCEEDED": 1}


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_no_queue_has_such_a_name(listener: Listener, worker: CeleryProcess) -> None:
    assert "queue is 'no queue'" in control(listener, "pool_pause", queue="no queue")["error"]


HOLDER = (
    "SELECT split_part(holder, ' ', 1) FROM task_lease WHERE name = 'scan' AND held_until > now()"
)
LEADER = "SELECT holder FROM task_lease WHERE name = 'scan' AND held_until > now()"
MAINTAINED = "SELECT count(*) FROM task_lease WHERE name = 'maintain' AND done_at IS NOT NULL"
MINE = """
beat_schedule = {"mine": {"task": "mine", "schedule": 0.5, "options": {"queue": "mine"}}}
"""


@pytest.fixture(scope="module")
def worker_of_beat(house: House) -> CeleryProcess:
    return house.worker(TASKS_APP_IMPORTS="house_handlers,deafening")


@pytest.fixture(scope="module")
def beats(house: House, worker_of_beat: CeleryProcess, tmp_path_factory) -> list[CeleryProcess]:
    """Two, with an entry of the user's own."""
    folders = [tmp_path_factory.mktemp("beat") for _ in range(2)]
    for folder in folders:
        (folder / "celeryconfig.py").write_text(MINE)
    return [house.start("beat", "-l", "INFO", folder=folder) for folder in folders]


def leader(house: House, beats: list[CeleryProcess]) -> CeleryProcess:
    """Wait until one of them leads."""
    return until(
        lambda: next((b for b in beats if f":{b.pid}" in (house.sql(LEADER) or "")), None), 20
    )


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_look_that_is_a_moment_too_early_is_no_reason_to_go_without_a_nap() -> None:
    """Celery's is always 10 ms too early, and asked for so long, which took most of beat's time."""
    scheduler = PoolScheduler.__new__(PoolScheduler)

    assert scheduler.adjust(0.004) == 0.004
    assert scheduler.adjust(1.0) == 1.0


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_without_beat_a_worker_scans_and_maintains(
    house: House, worker_of_beat: CeleryProcess
) -> None:
    ids = house.create("ok", 20)

    states = house.over(ids)

    assert states == {"SUCCEEDED": 20}
    assert house.effects() == (20, 20)
    assert house.sql(HOLDER) == "standby"
    assert house.sql(MAINTAINED) == 1


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_consumer_that_hears_nothing_is_restarted(
    house: House, worker_of_beat: CeleryProcess
) -> None:
    """Alive, connected, its children idle, and tasks are due: it takes 45 seconds."""
    assert house.sql(HOLDER) == "standby"
    with Celery(broker=house.environment()["TASKS_APP_BROKER_URL"]) as app:
        app.conf.broker_transport_options = {"global_keyprefix": "tasks_app:"}
        assert app.control.broadcast("deafen", reply=True, timeout=10, limit=1)
    ids = house.create("ok", 5)

    states = house.over(ids, 100)

    assert states == {"SUCCEEDED": 5}
    assert "restarting the consumer" in worker_of_beat.log()


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_beat_comes_and_leads_at_once(
    house: House, worker_of_beat: CeleryProcess, beats: list[CeleryProcess]
) -> None:
    leader(house, beats)
    ids = house.create("ok", 10)

    assert house.over(ids) == {"SUCCEEDED": 10}
    assert house.sql(HOLDER) == "beat"


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_an_entry_of_the_user_fires_once_however_many_beats_run(
    house: House, beats: list[CeleryProcess]
) -> None:
    leader(house, beats)
    with Redis.from_url(house.environment()["TASKS_APP_BROKER_URL"]) as redis:
        fired = lambda: redis.llen("tasks_app:mine")  # noqa: E731
        since = "SELECT extract(epoch FROM now() - to_timestamp(:then))"
        then, before = house.sql("SELECT extract(epoch FROM now())"), fired()
        until(lambda: fired() >= before + 6, 20)
        elapsed = float(house.sql(since, then=float(then)))

    assert elapsed > 2.4


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_standby_takes_over_when_the_leader_is_killed(
    house: House, beats: list[CeleryProcess]
) -> None:
    first = leader(house, beats)
    beats.remove(first)
    with Scans(house.engine) as scans:
        until(lambda: scans.seen)
        first.kill()
        second = leader(house, beats)
        until(lambda: len(scans.seen) > 3)

    assert second is beats[0]
    assert scans.longest_gap_s() <= 7


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_leader_that_ends_in_good_order_lets_others_go_on_at_once(
    house: House, worker_of_beat: CeleryProcess, beats: list[CeleryProcess]
) -> None:
    last = leader(house, beats)
    beats.remove(last)

    with Scans(house.engine) as scans:
        until(lambda: scans.seen)
        assert last.stop() == 0
        until(lambda: house.sql(HOLDER) == "standby", 20)
        until(lambda: len(scans.seen) > 3)

    assert scans.longest_gap_s() <= 4.5  # a lease of 5 s did not have to end


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_another_scheduler_sends_the_scan_as_a_message(
    house: House, worker_of_beat: CeleryProcess, tmp_path: Path
) -> None:
    other = house.start(
        "beat", "-l", "INFO", "-S", "celery.beat:PersistentScheduler", "-s", str(tmp_path / "s")
    )

    until(lambda: house.sql(HOLDER) == "schedule", 20)
    ids = house.create("ok", 10)

    assert house.over(ids) == {"SUCCEEDED": 10}
    assert house.sql(HOLDER) == "schedule"
    assert other.stop() == 0


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
    """A pipe that keeps the lines."""

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
