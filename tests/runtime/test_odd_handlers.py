"""Any sequence of odd handlers on one child: effects stand if and only if their run succeeded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from tests.runtime import odd_handlers
from tests.runtime.bench import Bench
from tests.runtime.execution.warm_child import warm
from tests.runtime.odd_handlers import ENDING, FAILING, HARMLESS, LOSING, Odd, Run, keep
from tests.waiting import until

EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "0"))
"""So many at random; 0: always the same ones, in every `make test`."""
QUICK = 20
SETTINGS = settings(
    max_examples=EXAMPLES or QUICK,
    derandomize=not EXAMPLES,
    phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
LOOK = text("""
    SELECT coalesce(current_setting('app.tenant', true), ''), current_user = session_user,
        current_setting('statement_timeout'), current_setting('search_path'),
        current_setting('transaction_isolation'), current_setting('transaction_read_only'),
        (SELECT count(*) FROM pg_listening_channels()),
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
        to_regclass('pg_temp.odd') IS NULL,
        (SELECT count(*) FROM pg_prepared_statements WHERE from_sql),
        (SELECT count(*) FROM pg_cursors WHERE is_holdable)
""")
WAYS = ["plain", "threads"]


@dataclass(frozen=True)
class Plan:
    """What one run does."""

    steps: tuple[Odd, ...]
    last: Odd | None
    """What its fate depends on."""

    def __repr__(self) -> str:
        return "+".join(f.__name__ for f in (*self.steps, *filter(None, [self.last])))


PLANS = st.builds(
    Plan,
    st.lists(st.sampled_from([*HARMLESS, keep]), max_size=4, unique=True).map(tuple),
    st.one_of(st.none(), st.none(), st.sampled_from([*FAILING, *ENDING, *LOSING])),
)


@pytest.fixture
def odd(bench: Bench) -> Bench:
    bench.sql("CREATE TABLE odd_late (i bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    bench.at_end(lambda: bench.sql("DROP TABLE odd_late"))
    bench.sql("GRANT ALL ON effect, odd_late TO pg_monitor")
    return bench


def declare(bench: Bench, plans: dict[int, Plan], runs: dict[int, Run], seen: list[Any]) -> None:
    """A handler that does what is planned for their tasks."""
    kept: list[tuple[Any, Callable[[], Any]]] = []

    def h(ctx: Any, payload: dict[str, Any]) -> int:
        run = runs[payload["n"]] = Run(ctx, kept)
        seen.append(tuple(ctx.connection.execute(LOOK).one()))
        plan = plans[payload["n"]]
        for step in (*plan.steps, *filter(None, [plan.last])):
            step(run)
        return run.rows

    bench.handler(max_attempts=1)(h)


@pytest.mark.test_all
@pytest.mark.timeout(0)
@pytest.mark.parametrize("way", WAYS)
def test_effects_stand_if_and_only_if_their_run_succeeded(odd: Bench, way: str) -> None:
    bench = odd
    plans: dict[int, Plan] = {}
    runs: dict[int, Run] = {}
    seen: list[Any] = []
    declare(bench, plans, runs, seen)
    counter = iter(range(10**9))

    @SETTINGS
    @given(st.lists(PLANS, min_size=2, max_size=7))
    def check(drawn: list[Plan]) -> None:
        numbers = [next(counter) for _ in drawn]
        plans.update(zip(numbers, drawn, strict=True))
        seen.clear()
        ids = [bench.create(payload={"n": n}) for n in numbers]
        threads = 2 if way == "threads" else 0
        # On a busy machine a run may take a second; then what waits behind it would go back.
        child = warm(bench.child(extra_threads=threads, give_back_after=60))
        child.execute(ids)
        until(lambda: child.inflight.empty, 20)
        child.stop()
        bench.children.remove(child)
        for task_id, number, plan in zip(ids, numbers, drawn, strict=True):
            judge(bench, task_id, plan)
            assert not runs[number].stale_writes, plan
        assert bench.effects(-1) == 0
        assert len(set(seen)) == 1, seen
        bench.sql("DELETE FROM task_pending")

    check()


def judge(bench: Bench, task_id: int, plan: Plan) -> None:
    """Its fate is what its plan says, and its effects stand accordingly."""
    task, rows = bench.task(task_id), bench.effects(task_id)
    about = (plan, task.state.value, task.error, rows)
    if plan.last in ENDING:
        assert task.state.value == "FAILED", about
        assert "ended the transaction" in (task.error or ""), about
        return
    if plan.last is None:
        assert task.state.value == "SUCCEEDED", about
        assert rows == task.result, about
        return
    assert rows == 0, about
    if plan.last in LOSING:
        assert (task.state.value, task.failures) == ("PENDING", 0), about
        return
    assert (task.state.value, task.failures, task.crashes) == ("FAILED", 1, 0), about
    if plan.last is odd_handlers.raises:
        assert f"ValueError: {task_id}" in (task.error or ""), about
