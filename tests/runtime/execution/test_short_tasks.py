"""Short tasks in a row end as they would one by one, and each is announced alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tasks_app.domain.handlers.outcomes import Fail, Retry
from tests.runtime.bench import Bench, carry_out, effect, run_many, warm

pytestmark = pytest.mark.timeout(60, method="thread")


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is short on any machine is short here, too."""
    monkeypatch.setattr("tasks_app.runtime.run_times.FAST_S", 10.0)


def test_each_outcome_of_a_row_is_its_own(bench: Bench) -> None:
    raised = {
        1: Fail("no"),
        2: Retry(after=timedelta(hours=1)),
        3: ValueError("x"),
        4: SystemExit(),
    }

    @bench.handler()
    def mixed(ctx: Any, payload: dict[str, int]) -> dict[str, int] | None:
        number = payload["n"]
        if number in raised:
            effect(ctx)
            raise raised[number]
        if number == 5:
            effect(ctx)
        return {"n": number} if number == 6 else None

    ids = run_many(bench, 8)

    again = "PENDING"
    ended = ["SUCCEEDED"] * 3
    assert bench.states(ids) == ["SUCCEEDED", "FAILED", again, again, again, *ended]
    assert [bench.task(i).failures for i in ids] == [0, 1, 1, 1, 1, 0, 0, 0]
    assert [bench.effects(i) for i in ids] == [0, 0, 0, 0, 0, 1, 0, 0]
    assert bench.task(ids[6]).result == {"n": 6}


def test_while_a_task_of_a_row_runs_the_slot_names_it_alone(bench: Bench) -> None:
    @bench.handler()
    def look(ctx: Any) -> None:
        (view,) = bench.slots.occupied()
        assert view.since
        assert view.since < view.kill_at <= view.since + 60
        bench.runs.append([(run.task_id, run.attempt) for run in view.running] == [ctx.fence[:2]])

    run_many(bench, 5, hard_timeout=60)
    assert bench.runs == [True] * 5
    assert bench.slots.occupied() == []


def test_what_must_run_alone_ends_a_row_and_runs_all_the_same(bench: Bench) -> None:
    bench.handler()(lambda _ctx: bench.runs.append(len(child.inflight.running())))
    ids = [bench.create() for _ in range(4)]
    bench.sql("UPDATE task_pending SET crashes = 1, attempt = 1 WHERE id = :id", id=ids[1])
    child = warm(bench.child())
    child.execute(ids)
    assert bench.states(ids) == ["SUCCEEDED"] * 4
    assert bench.runs == [1, 1, 1, 1]


def test_limits_of_a_tasks_own_hold_within_a_row(bench: Bench) -> None:
    @bench.handler()
    def look(ctx: Any) -> None:
        (view,) = bench.slots.occupied()
        bench.runs.append((ctx.remaining is not None, round(view.kill_at - view.since)))

    ids = [bench.create(), bench.create(hard_timeout=7), bench.create(timeout=5), bench.create()]
    carry_out(bench, ids, hard_timeout=60)
    assert bench.runs == [(False, 60), (False, 7), (True, 60), (False, 60)]


def test_a_limit_for_all_holds_within_a_row(bench: Bench) -> None:
    bench.handler()(lambda ctx: bench.runs.append(round(ctx.remaining or 0)))
    ids = [bench.create(), bench.create(timeout=5), bench.create()]
    carry_out(bench, ids, timeout=50)
    assert bench.runs == [50, 5, 50]


def test_a_worker_on_its_way_out_starts_nothing_more_of_a_row(bench: Bench) -> None:
    @bench.handler()
    def last(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)
        if len(bench.runs) == 2:
            bench.slots.drain()

    ids = run_many(bench, 5)
    assert bench.runs == ids[:2]
    assert bench.states(ids) == ["SUCCEEDED"] * 2 + ["PENDING"] * 3
    assert [bench.task(i).failures for i in ids] == [0] * 5


def test_a_slow_task_goes_the_long_way_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes of the others are written before it: they shall not wait for it."""
    monkeypatch.setattr("tasks_app.runtime.run_times.FAST_S", 0.05)

    @bench.handler()
    def slow(ctx: Any) -> None:
        written = bench.sql("SELECT count(*) FROM task_completed")
        bench.runs.append(written)
        for _ in range(50):
            child.executor.run_times.learn(ctx.name, 60.0)

    ids = [bench.create() for _ in range(3)]
    child = warm(bench.child(start=False))  # no housekeeper, whose renewal may lock a row

    child.execute(ids)

    assert bench.runs == [0, 1, 2]
