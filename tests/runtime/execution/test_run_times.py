"""How many tasks a child claims at a time, what it looks for by itself, and a task's way."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import PurePath
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import event, text

from tasks_app.runtime.execution import executor
from tasks_app.runtime.hooks import HOOKS
from tasks_app.runtime.run_times import FEW_RUNS, GROWTH, HOLD_S, MOST_NAMES, RunTimes
from tasks_app.runtime.tracing.tracing import API
from tests.clock import until
from tests.docs.reading import PROJECT
from tests.factory import some
from tests.runtime.bench import Bench, warm


def learned(pace: RunTimes, name: str, seconds: float, runs: int = 50) -> None:
    for _ in range(runs):
        pace.learn(name, seconds)


def test_of_unknown_tasks_one_is_claimed() -> None:
    assert RunTimes().next_group(500) == 1


def test_fast_tasks_are_claimed_by_the_hundred_but_not_at_once() -> None:
    pace = RunTimes()
    pace.learn("t", 0.00001)
    sizes = [pace.next_group(500) for _ in range(7)]
    assert sizes == [GROWTH, GROWTH**2, GROWTH**3, GROWTH**4, 500, 500, 500]


def test_a_claim_takes_on_no_more_work_than_may_wait() -> None:
    pace = RunTimes()
    learned(pace, "t", HOLD_S / 20)
    assert [pace.next_group(500) for _ in range(5)][-1] in {19, 20}


def test_slow_tasks_are_claimed_one_by_one_and_a_slow_one_ends_the_haste() -> None:
    pace = RunTimes()
    learned(pace, "fast", 0.00001)
    while pace.next_group(500) < 500:
        pass
    pace.learn("slow", 10 * HOLD_S)
    assert pace.next_group(500) == 1
    assert pace.is_fast("fast")
    assert not pace.is_fast("slow")
    assert not pace.is_fast("unknown")


def test_names_are_learned_apart_and_not_without_end() -> None:
    pace = RunTimes()
    learned(pace, "slow", 2.0)
    learned(pace, "fast", 0.001)
    assert pace.snapshot() == {"slow": 2.0, "fast": 0.001}
    for number in range(2 * MOST_NAMES):
        learned(pace, f"n{number}", 0.001)
    assert len(pace.snapshot()) <= MOST_NAMES


def test_a_child_leaves_to_others_what_would_wait_behind_an_unknown_task(bench: Bench) -> None:
    started, go_on = threading.Event(), bench.event()

    @bench.handler("slow")
    def slow(ctx: Any) -> None:
        started.set()
        assert go_on.wait(30)

    bench.succeeding("fast")
    first, second = bench.create("slow"), bench.create("fast")
    child = bench.child(together=False, give_back_after=60)
    running = bench.beside(child.execute, [first, second])
    assert started.wait(10)

    assert bench.states([first, second]) == ["RUNNING", "PENDING"]
    bench.child().execute([second])

    assert bench.state(second) == "SUCCEEDED"
    go_on.set()
    running.join(10)


@pytest.mark.test_all
def test_a_child_claims_more_at_a_time_as_it_learns(bench: Bench) -> None:
    sizes = []

    @bench.handler("t")
    def t(ctx: Any) -> None:
        # those behind it: the housekeeper may be just writing what has ended
        ahead = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING' AND id >= :id"
        sizes.append(bench.sql(ahead, id=ctx.task_id))

    ids = [bench.create() for _ in range(21)]
    bench.child(together=False, flush_after=60).execute(ids)

    assert sizes[0] == 1
    assert sizes[1] == GROWTH
    until(lambda: bench.states(ids) == ["SUCCEEDED"] * 21)


def test_of_a_message_that_comes_twice_no_id_is_claimed_alone(bench: Bench) -> None:
    bench.succeeding()
    ids = [bench.create() for _ in range(100)]
    bench.child().execute(ids)
    child, statements = bench.child(together=False, start=False), []  # no preparation
    event.listen(
        child.database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: statements.append(statement),
    )

    child.execute(ids)

    about_these = [s for s in statements if "p.id = ANY" in s]
    assert (
        len(about_these) <= 5
    )  # a claim the short way, the long one, gates, those that are clear, and a look
    assert bench.runs == ids


def test_first_runs_that_took_long_are_forgotten_with_the_first_short_one() -> None:
    pace = RunTimes()
    for seconds in (2.0, 0.5, 0.001, 0.003, 0.002):
        pace.learn("t", seconds)
    assert pace.snapshot() == {"t": 0.001}


def test_a_slow_run_after_a_short_one_is_believed_at_once() -> None:
    pace = RunTimes()
    pace.learn("t", 0.001)
    pace.learn("t", 60.0)
    assert not pace.is_fast("t")
    assert pace.snapshot()["t"] > 10


def test_a_name_is_news_when_it_is_known_or_was_slow() -> None:
    news: list[str] = []
    pace = RunTimes(lambda: news.append("!"))
    learned(pace, "fast", 0.008, runs=FEW_RUNS - 1)
    assert (pace.snapshot(), news) == ({}, [])
    learned(pace, "slow", 2.0, runs=1)
    assert (pace.snapshot(), news) == ({"slow": 2.0}, ["!"])
    learned(pace, "fast", 0.008, runs=100)
    assert (pace.snapshot(), news) == ({"slow": 2.0, "fast": 0.008}, ["!", "!"])


def test_a_new_name_wakes_the_housekeeper(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no outcome waits to be written, as after handlers that use their connection."""

    @bench.handler("connects")
    @bench.handler("t")
    def t(ctx: Any) -> None:
        ctx.connection.execute(text("SELECT 1"))

    # A slow run would be news at once.
    monkeypatch.setattr("tasks_app.runtime.run_times.FAST_S", 3600.0)
    child = bench.child(start=False)
    child.execute([bench.create("connects")])
    child.inflight.housekeeper_wake.clear()
    child.execute([bench.create() for _ in range(FEW_RUNS - 1)])
    assert not child.inflight.housekeeper_wake.is_set()

    child.execute([bench.create()])

    assert child.inflight.housekeeper_wake.is_set()


def test_hints_leave_room_for_a_look_around(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LOOK_AROUND_EVERY_S", 3600.0)
    bench.succeeding()
    child = bench.child(claim_size=1)
    by_sql = [bench.create(priority=0) for _ in range(3)]
    hinted = [bench.create() for _ in range(3)]
    for task_id in hinted:
        child.execute([task_id], queue="default")
    assert set(bench.states(hinted)) == {"SUCCEEDED"}
    assert bench.states(by_sql) == ["SUCCEEDED", "PENDING", "PENDING"]


@pytest.mark.parametrize(
    ("wake", "queue"), [(True, "default"), (False, "theirs"), (False, None)],
    ids=["the scan has room", "a forged queue", "an unknown queue"],
)  # fmt: skip
def test_a_child_with_other_news_stays_with_it(bench: Bench, wake: bool, queue: str | None) -> None:
    bench.succeeding()
    child = bench.child()
    by_sql, told = bench.create(), bench.create()
    theirs = bench.create(queue="theirs")
    child.execute([told], wake=wake, queue=queue)
    assert bench.states([told, by_sql, theirs]) == ["SUCCEEDED", "PENDING", "PENDING"]


def test_messages_whose_tasks_are_done_keep_nobody_waiting(bench: Bench) -> None:
    """Copies of what the scan sent long ago leave it no room in the broker, as hints do."""
    bench.succeeding()
    child = bench.child()
    done = bench.create()
    child.execute([done], wake=True)
    waiting = bench.create()
    child.execute([done], wake=True, queue="default")
    assert bench.states([done, waiting]) == ["SUCCEEDED", "SUCCEEDED"]


def test_what_the_scan_sends_of_another_queue_does_not_count(bench: Bench) -> None:
    bench.succeeding()
    child = bench.child()
    by_sql, hinted = bench.create(), bench.create()
    theirs = bench.create(queue="theirs")
    child.executor.execute([theirs], wake=True, queue="theirs")
    child.executor.execute([hinted], queue="default")
    assert set(bench.states([theirs, hinted, by_sql])) == {"SUCCEEDED"}


MOST = 12


def promised() -> set[str]:
    """Return the rooms of the page's sentence."""
    page = (PROJECT / "docs/architecture.md").read_text()
    said = some(re.search(r"A task that does nothing passes these (.*?)\n\n", page, re.DOTALL))
    runtime, pool, domain = said[1].split(";")
    return {"runtime"} | {
        f"{floor}/{room}"
        for floor, rooms in (("runtime", runtime), ("pool", pool), ("domain", domain))
        for room in re.findall(r"`(\w+)`", rooms)
    }


def test_a_task_that_does_nothing_passes_few_rooms_until_it_is_settled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests of this process may have loaded OpenTelemetry, or left who listens.
    monkeypatch.delitem(sys.modules, API, raising=False)
    monkeypatch.setattr(HOOKS, "_subscribers", {})
    monkeypatch.setattr(HOOKS, "_followers", ())
    bench.handler()(lambda ctx: None)
    child = warm(bench.child())
    child.execute([bench.create()])  # what is made once is made
    entered: set[str] = set()

    def note(frame: FrameType, kind: str, _arg: Any) -> None:
        _, found, path = frame.f_code.co_filename.rpartition("/tasks_app/")
        if kind == "call" and found and frame.f_code.co_name != "<module>":
            entered.add(str(PurePath(path).parent))
        if kind == "return" and path.startswith("pool/runs/settle"):
            sys.setprofile(None)

    ids = [bench.create()]
    sys.setprofile(note)
    try:
        child.executor.execute(ids)
    finally:
        sys.setprofile(None)

    assert bench.states(ids) == ["SUCCEEDED"]
    assert entered == promised()
    assert len(entered) <= MOST
