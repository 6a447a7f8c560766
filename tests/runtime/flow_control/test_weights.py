"""Weights: what a start takes from the rates of its limit keys, and what its run spends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit, limit_of
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.runs.settle import settle_group
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.handlers.context import SPENT
from tests.factory import claimer, ending
from tests.runtime.bench import Bench

MODEL, NAME = Gate(GateKind.KEY, "model"), Gate(GateKind.NAME, "t")


def limit(bench: Bench, gate: Gate = MODEL, burst: int = 100, rate: str = "1/1d") -> None:
    """Nothing flows in while a test runs."""
    bench.do(set_limit, limit_of(gate.kind, gate.key, None, rate, burst))


def tokens(bench: Bench, gate: Gate = MODEL) -> float:
    found = bench.sql("SELECT tokens FROM task_gate WHERE gate = :gate", gate=str(gate))
    return 100 if found is None else round(found, 2)


def test_a_start_takes_its_weight_from_each_limit_key_and_one_from_its_name(bench: Bench) -> None:
    bench.succeeding()
    day, other = Gate(GateKind.KEY, "day"), Gate(GateKind.KEY, "other")
    for gate in (MODEL, day, other, NAME):
        limit(bench, gate)
    bench.execute_one(limit_key=["model", "day"], weight=30)
    assert [tokens(bench, gate) for gate in (MODEL, day, other, NAME)] == [70, 70, 100, 99]


@pytest.mark.parametrize(("spent", "left"), [(50, 50), (10, 90), (0, 100), (250, -150)])
def test_what_a_run_spent_is_taken_instead_of_its_weight(bench: Bench, spent, left) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        ctx.spend(7)
        ctx.spend(spent)

    limit(bench)
    limit(bench, NAME)
    bench.execute_one(limit_key="model", weight=30)
    assert (tokens(bench), tokens(bench, NAME)) == (left, 99)
    assert not SPENT


def test_a_run_without_a_weight_spends_beyond_one(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any) -> None:
        ctx.spend(40)

    limit(bench)
    bench.execute_one(limit_key="model")
    assert tokens(bench) == 60


def test_of_one_call_each_item_spends(bench: Bench) -> None:
    @bench.handler(at_once=10)
    def h(ctx: Any, items: Any) -> None:
        bench.runs.append(len(items))
        for number, item in enumerate(items):
            item.spend(20 + number)

    limit(bench)
    bench.execute([bench.create(limit_key="model", weight=1) for _ in range(3)])
    assert (bench.runs, tokens(bench)) == ([3], 37)
    assert not SPENT


def test_a_run_that_fails_has_spent_too_and_the_next_one_weighs_again(bench: Bench) -> None:
    @bench.handler(retry="1h", max_attempts=2)
    def h(ctx: Any) -> None:
        if ctx.attempt == 1:
            ctx.spend(40)
            raise OSError
        assert ctx.attempt == 2

    limit(bench)
    task_id = bench.execute_one(limit_key="model", weight=10)
    assert tokens(bench) == 60
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    bench.execute([task_id])
    assert tokens(bench) == 50
    task = bench.task(task_id)
    assert (task.state, task.weight) == ("SUCCEEDED", 10)


def test_without_a_rate_nothing_is_spent(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        ctx.spend(40)

    bench.do(set_limit, Limit(GateKind.KEY, "few:*", 3))
    bench.execute([bench.create(), bench.create(limit_key="few:1", weight=10)])
    assert bench.sql("SELECT count(*) FROM task_gate WHERE tokens IS NOT NULL") == 0
    assert bench.sql("SELECT count(*) FROM task_completed") == 2
    assert not SPENT


@pytest.mark.parametrize("given", [-1, True, 1.5, "3", None, 2**31])
def test_what_is_no_number_of_tokens_is_refused(bench: Bench, given) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        with pytest.raises(InvalidTaskError, match=r"^tokens is .* Allowed: an integer 0 \.\."):
            ctx.spend(given)

    assert bench.state(bench.execute_one()) == "SUCCEEDED"


def test_what_is_given_back_wakes_who_waits_for_it(bench: Bench) -> None:
    limit(bench)
    bench.sql("UPDATE task_limit SET changed_at = now() - interval '11s'")
    control = AdmissionControl(bench.database())
    first, second = (bench.create(limit_key="model", weight=500) for _ in range(2))
    (run,) = control.claim([first, second], claimer(), uuid4())
    assert tokens(bench) == -400
    assert bench.task(second).parked == "limit key model"
    look_at = "SELECT look_at - now() FROM task_gate"
    assert bench.sql(look_at) > timedelta(days=400)

    SPENT[run.fence[:2]] = 80
    bench.do(settle_group, [ending(run)])
    assert control.ended([run.fence])
    control.wake_after_runs()

    assert tokens(bench) == 20
    assert bench.task(second).parked is None


def test_who_does_not_end_here_has_spent_nothing_here(bench: Bench) -> None:
    limit(bench)
    control = AdmissionControl(bench.database())
    (run,) = control.claim([bench.create(limit_key="model", weight=30)], claimer(), uuid4())
    assert control.ended([run.fence])
    assert not control._weights
    control.wake_after_runs()
    assert tokens(bench) == 70
