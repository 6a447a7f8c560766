"""Delays that come, run times, passes of a scan, and where claims begin to read."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from tasks_app.domain.flows import MAP_TASK, UNDO_TASK
from tasks_app.pool.dispatch.scan import find_upcoming
from tasks_app.runtime import hint_sender, scan
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.leader import dispatcher
from tasks_app.runtime.run_times import FASTEST_S, FEW_RUNS, RunTimeReport
from tasks_app.runtime.scan import (
    LONGEST_PAUSE_S,
    MARGIN_S,
    EmptyPollBackoff,
    Pace,
    PollPaces,
    ScanPasses,
    ScanPosition,
    Start,
)
from tests.clock import Clock, until
from tests.runtime.bench import Bench
from tests.runtime.hints.ear import Ear, told
from tests.runtime.leader.test_dispatcher import Scene
from tests.runtime.memory import Memory
from tests.statements import watched

NOW = datetime.now(UTC)
REAL_S = 0.1
"""Hints come out by the real clock; so soon after the start of a pass a task is due in tests."""


@pytest.fixture
def scene(bench: Bench) -> Scene:
    """Its clock stands still: two passes estimate one instant alike on a slow machine, too."""
    clock = Clock()
    clock.now = time.monotonic()
    scene = Scene(bench, Memory(), clock, scan_interval=1)
    scene.worker(now=NOW)
    return scene


def made(scene: Scene, due_in_s: float, **options: str) -> int:
    return scene.bench.create(run_at=NOW + timedelta(seconds=due_in_s), **options)


def test_what_is_due_before_the_pass_after_next_is_announced_once(scene: Scene, ear: Ear) -> None:
    near = [made(scene, REAL_S), made(scene, REAL_S + 0.01)]
    made(scene, 1.6)
    made(scene, REAL_S, queue="nobodys")
    again = [scene.dispatcher.run_once(now=NOW).again_in(1.0) for _ in range(2)]
    until(lambda: near[-1] in told(ear))  # the first one's repetition would come before it
    assert ear.ids == near
    assert again == [1.0, 1.0]


def test_no_hint_is_early(scene: Scene, ear: Ear) -> None:
    began = time.monotonic()
    made(scene, REAL_S)
    scene.dispatcher.run_once(now=NOW)
    until(lambda: told(ear))
    assert ear.instants[0] >= began + REAL_S


def test_a_task_that_was_put_off_is_announced_anew(scene: Scene, ear: Ear) -> None:
    task_id = made(scene, REAL_S)
    scene.dispatcher.run_once(now=NOW)
    scene.bench.sql(
        "UPDATE task_pending SET due_at = due_at + interval '0.1 s',"
        " scan_at = scan_at + interval '0.1 s'"
    )
    scene.dispatcher.run_once(now=NOW)
    until(lambda: len(told(ear)) == 2)
    assert ear.ids == [task_id] * 2


def test_of_many_the_nearest_are_told(
    scene: Scene, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "MOST", 2)
    ids = [made(scene, REAL_S + later_s) for later_s in (0.02, 0.0, 0.01)]
    scene.dispatcher.run_once(now=NOW)
    until(lambda: len(told(ear)) == 2)
    assert ear.ids == [ids[1], ids[2]]


def test_the_scan_need_not_wait_for_a_hint(scene: Scene, ear: Ear) -> None:
    made(scene, REAL_S)
    scene.dispatcher.run_once(now=NOW)
    later = NOW + timedelta(seconds=REAL_S)
    assert scene.dispatcher.run_once(now=later).published == 1


def test_it_wakes_up_for_deep_queues(
    scene: Scene, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hint_sender, "DEEP_SILENCE_S", 60.0)
    ear.depths = {"default": 1_000}
    made(scene, REAL_S)
    scene.dispatcher.run_once(now=NOW)
    until(lambda: not HINTS.takes("default"))
    made(scene, 0.4)
    assert scene.dispatcher.run_once(now=NOW).again_in(1.0) == pytest.approx(0.1)


def test_without_hints_it_wakes_up(scene: Scene, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_HINTS", "off")
    made(scene, 0.4)
    assert scene.dispatcher.run_once(now=NOW).again_in(1.0) == pytest.approx(0.4)
    assert told(ear) == []


def test_a_paused_queue_is_not_announced(scene: Scene, ear: Ear) -> None:
    made(scene, REAL_S)
    scene.bench.sql("INSERT INTO task_queue_pause VALUES ('default')")
    scene.dispatcher.run_once(now=NOW)
    assert scene.bench.do(find_upcoming, ["default"], timedelta(seconds=1), now=NOW) == []
    assert told(ear) == []


class Report:
    """A report on paces that the test sets, and a look at the table."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        self.bench = bench
        self.clock = Clock()
        self.paces: dict[str, float] = {}
        self.report = RunTimeReport(
            bench.database(), lambda: dict(self.paces), bench.registry, clock=self.clock, **options
        )

    def after(self, seconds: float, **paces: float) -> dict[str, float]:
        """Learn, look again so much later; return what was written just then."""
        self.clock.now += seconds
        self.paces |= paces
        self.bench.sql("UPDATE task_pace SET updated_at = 'epoch'")
        self.report.report()
        written = "SELECT name, run_s FROM task_pace WHERE updated_at > 'epoch'"
        return dict(self.bench.rows(written))


def test_a_new_name_is_told_small_changes_not(bench: Bench) -> None:
    report = Report(bench)
    assert report.after(0, a=0.1) == {"a": 0.1}
    assert report.after(1, b=0.2) == {"b": 0.2}
    assert report.after(100, a=0.11, b=0.19) == {}


def test_a_change_by_a_fifth_is_told_after_ten_seconds_a_great_one_at_once(bench: Bench) -> None:
    report = Report(bench)
    report.after(0, a=0.1, b=0.1)
    assert report.after(1, a=0.13) == {}
    assert report.after(1, b=0.3) == {"b": 0.3}
    assert report.after(0.2, b=0.1) == {}
    assert report.after(0, new=0.1) == {"new": 0.1}
    report.after(0.2)
    assert report.after(1, b=0.1) == {"b": 0.1}
    assert report.after(10, b=0.115) == {"a": 0.13}


def test_a_first_run_that_had_to_connect_is_corrected_without_a_pause(bench: Bench) -> None:
    report = Report(bench)
    assert report.after(0, a=0.1) == {"a": 0.1}
    assert report.after(0.01, a=0.02) == {}
    assert report.after(0.01, a=0.001) == {"a": 0.001}


def test_changes_below_the_floor_are_no_news(bench: Bench) -> None:
    report = Report(bench)
    assert report.after(0, a=1e-6) == {"a": FASTEST_S}
    assert report.after(100, a=1e-4) == {}


def test_what_a_child_runs_beside_each_other_takes_a_part_of_its_time(bench: Bench) -> None:
    """So that one message holds as many as run at once, however long each of them takes."""

    @bench.handler("async")
    async def waits(ctx: Any) -> None: ...

    bench.succeeding("sync")
    report = Report(bench, threads=8, async_concurrency=100)
    assert report.after(0, **{"async": 60.0, "sync": 0.1}) == {"async": 0.004, "sync": 0.0125}


@pytest.mark.test_all
def test_a_write_that_failed_is_still_news(bench: Bench) -> None:
    report = Report(bench)
    with bench.engine.begin() as connection:
        connection.execute(text("LOCK task_pace IN SHARE MODE"))
        report.paces["a"] = 0.1
        with pytest.raises(OperationalError):
            report.report.report()
    assert report.after(1) == {"a": 0.1}


def test_a_child_tells_what_it_ran(bench: Bench) -> None:
    bench.succeeding()
    child = bench.child()
    child.execute([bench.create() for _ in range(FEW_RUNS)])
    assert until(lambda: bench.sql("SELECT run_s FROM task_pace WHERE name = 't'"), 5) is not None


WHOLE, GOES_ON = Start(), Start(goes_on=True)


class Watch(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.passes = ScanPasses(clock=self)

    def read(self, took: float, found: int = 0) -> Start:
        """Make a pass; return where it began."""
        began = self.now
        start = self.passes.start(began)
        self.now += took
        if found:
            self.passes.places["default", 5] = (self.now, 1)
        self.passes.was_read(began, start, left=found)
        return start


def test_while_there_is_something_a_twentieth_of_the_time_is_for_whole_ones() -> None:
    watch = Watch()
    read = [watch.read(0.01, found=500) for _ in range(2_100)]
    assert read[:3] == [WHOLE, WHOLE, GOES_ON]
    assert 95 <= read.count(WHOLE) <= 105
    assert read.count(WHOLE) + read.count(GOES_ON) == len(read)


def test_a_pass_that_finds_nothing_is_followed_by_a_whole_one() -> None:
    watch = Watch()
    for _ in range(2):
        watch.read(0.1, found=500)
    assert watch.read(0.0) == GOES_ON
    assert watch.read(0.0) == WHOLE
    assert watch.read(0.0) == WHOLE


def test_a_whole_one_begins_at_the_front() -> None:
    watch = Watch()
    watch.read(0.01, found=500)
    assert watch.passes.places
    assert watch.passes.start(watch.now) == WHOLE
    assert not watch.passes.places


def test_the_next_whole_one_is_never_far() -> None:
    watch = Watch()
    for _ in range(2):
        watch.read(20.0, found=500)
    watch.now += LONGEST_PAUSE_S - 0.1
    assert watch.read(0.0, found=500) == GOES_ON
    watch.now += 0.2
    assert watch.read(0.0, found=500) == WHOLE


def test_slow_whole_ones_go_on_behind_what_became_due_lately() -> None:
    watch = Watch()
    for _ in range(3):
        watch.read(0.1)
    first = watch.read(0.01, found=1)
    again = watch.read(0.01, found=1)
    assert first.within is not None
    assert again == GOES_ON


def test_a_worker_with_enough_to_do_finds_older_tasks_at_its_next_whole_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rarely = PollPaces(back=Pace(0.0, 1_000_000, LONGEST_PAUSE_S))
    monkeypatch.setattr(scan, "PACES", rarely)
    bench.succeeding()
    executor = bench.child(claim_size=5).executor
    ids = [bench.create() for _ in range(25)]

    def pass_on() -> None:
        executor.top_up(["default"])
        executor.run_waiting()

    pass_on()
    pass_on()
    old = bench.create(run_at=datetime.now(UTC) - timedelta(hours=1))
    urgent = bench.create(priority=0)
    pass_on()
    assert bench.runs == [*ids[:10], urgent, *ids[10:14]]
    executor.poller.begin_at_the_front()
    pass_on()

    assert bench.runs[15:] == [old, *ids[14:18]]


class WatchThrottle(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.backoff = EmptyPollBackoff(clock=self)

    def look(self, took_s: float, found: int = 0) -> float:
        """Look; return for how long the backoff lasts then."""
        began = self.now
        self.now += took_s
        self.backoff.polled(began, found=found)
        ended, rest_s = self.now, 0.0
        while self.backoff.lasts:
            rest_s += 0.01
            self.now = ended + rest_s
        return rest_s


def test_fast_or_fruitful_looks_are_repeated_at_once() -> None:
    watch = WatchThrottle()
    assert [watch.look(0.001) for _ in range(5)] == [0.0] * 5
    assert [watch.look(0.1, found=1) for _ in range(5)] == [0.0] * 5


def test_slow_empty_looks_take_a_twentieth_of_the_time() -> None:
    watch = WatchThrottle()
    assert watch.look(0.03) == 0.0  # one slow look is the machine's
    assert watch.look(0.03) == pytest.approx(20 * 0.03, abs=0.02)
    assert watch.look(9.0) == pytest.approx(20 * 0.03, abs=0.02)
    assert watch.look(9.0) == pytest.approx(5.0, abs=0.02)
    assert watch.look(0.03, found=1) == 0.0
    assert watch.look(0.03) == 0.0


@pytest.fixture
def all_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PACES", PollPaces(empty=Pace(0.0, 1e6, 5.0)))


@pytest.mark.usefixtures("all_slow")
def test_beside_plain_tasks_it_is_rarely_looked_for_async_ones(bench: Bench) -> None:
    bench.succeeding("plain")

    @bench.handler("coroutine")
    async def coroutine(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)

    child = bench.child(claim_size=1)
    executor = child.executor
    for _ in range(2):
        executor.top_up(["default"])
    ids = [bench.create("plain") for _ in range(3)]
    with watched(child.database.engine, "%(lonely)s") as claims:
        for _ in ids:
            executor.top_up(["default"])
            executor.run_waiting()

    names = [list(json.loads(claim.values["handlers"])) for claim in claims]
    assert names == [["coroutine"], *[["plain", MAP_TASK, UNDO_TASK]] * 3]
    assert bench.runs == ids


@pytest.mark.usefixtures("all_slow")
def test_when_there_are_no_others_all_kinds_are_looked_for(bench: Bench) -> None:
    bench.succeeding("plain")

    @bench.handler("coroutine")
    async def coroutine(ctx: Any) -> None:
        pass

    executor = bench.child().executor
    for _ in range(2):
        executor.top_up(["default"])
    assert all(backoff.lasts for backoff in executor.poller.backoffs.values())
    bench.create("coroutine")
    assert executor.top_up(["default"]) == 1


class WatchPosition(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.front = ScanPosition(clock=self)

    def read(self, took: float, found: int = 0) -> timedelta | None:
        """Make a pass; return what it read."""
        began = self.now
        within = self.front.within(began)
        self.now += took
        self.front.was_read(began, within, left=found)
        return within


def test_while_whole_passes_are_fast_all_are_whole() -> None:
    watch = WatchPosition()
    assert [watch.read(0.005) for _ in range(100)] == [None] * 100


def test_slow_whole_passes_take_a_two_hundredth_of_the_time() -> None:
    watch = WatchPosition()
    passes = []
    for _ in range(4_000):
        whole = watch.front.within(watch.now) is None
        passes.append(whole)
        watch.read(0.04 if whole else 0.002)
        watch.now += 0.098
    assert passes[:2] == [True, True]
    assert 45 <= sum(passes) <= 55  # of 400 seconds


def test_one_slow_pass_is_the_machines_and_the_next_is_whole_again() -> None:
    watch = WatchPosition()
    assert [watch.read(took) for took in (0.0, 5.0, 0.0, 5.0, 0.0)] == [None] * 5


def test_between_them_all_is_read_since_a_pass_that_found_nothing() -> None:
    watch = WatchPosition()
    watch.read(0.1)
    watch.read(0.1)

    watch.now += 1
    first = watch.read(0.0, found=3)
    watch.now += 1
    second = watch.read(0.0)
    third = watch.read(0.0)

    assert first == timedelta(seconds=1.1 + MARGIN_S)
    assert second == timedelta(seconds=2.1 + MARGIN_S)
    assert third == timedelta(seconds=MARGIN_S)


def test_as_long_as_there_is_something_from_the_front_on_all_are_whole() -> None:
    watch = WatchPosition()
    assert [watch.read(0.1, found=500) for _ in range(10)] == [None] * 10


def test_the_next_whole_pass_is_never_far() -> None:
    watch = WatchPosition()
    watch.read(20.0)
    watch.read(20.0)
    watch.now += LONGEST_PAUSE_S - 0.1
    assert watch.read(0.0) is not None
    watch.now += 0.2
    assert watch.read(0.0) is None


class WatchedPosition(ScanPosition):
    def __init__(self, pace: Pace) -> None:
        super().__init__(pace)
        self.asked: list[timedelta | None] = []

    def within(self, began: float) -> timedelta | None:
        self.asked.append(super().within(began))
        return self.asked[-1]


def slow_pace(longest_pause_s: float) -> Pace:
    return Pace(0.0, 1_000_000, longest_pause_s)


@pytest.mark.test_all
def test_a_worker_finds_new_tasks_at_once_and_old_ones_at_its_next_whole_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = slow_pace(4.0)
    monkeypatch.setattr(scan, "PACES", PollPaces(front=pace))  # claims wait as long
    position = WatchedPosition(pace)
    bench.succeeding()
    work = bench.work(front=position)
    bench.beside(work.run)
    until(lambda: position.asked[-1:] and position.asked[-1] is not None)
    old = bench.create(run_at=datetime.now(UTC) - timedelta(hours=1))
    new = bench.create()

    until(lambda: bench.runs)
    assert bench.runs == [new]
    until(lambda: len(bench.runs) == 2)
    assert bench.runs == [new, old]
    assert None in position.asked[1:]


@pytest.mark.test_all
def test_a_worker_that_drains_reads_all_once_more_before_it_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = slow_pace(60.0)
    monkeypatch.setattr(scan, "PACES", PollPaces(front=pace))
    position = WatchedPosition(pace)

    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)
        if len(bench.runs) == 1:
            until(lambda: sum(within is not None for within in position.asked) > 10)
            bench.create(run_at=datetime.now(UTC) - timedelta(hours=1))

    bench.create()

    bench.work(concurrency=2, front=position).run(drain=True)

    assert len(bench.runs) == 2
