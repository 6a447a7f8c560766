"""What is kept of tasks that succeeded: all, those that needed more than one attempt, or none."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import NewTask, create_group, explain_task
from tasks_app.domain.errors import HandlerError
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.runtime.statistics import TASK_COUNTS
from tests.runtime.bench import Bench, effect
from tests.runtime.execution.warm_child import carry_out
from tests.runtime.handler_db.twins import twin

ROWS = "SELECT count(*) FROM task_completed"
LINES = "SELECT count(*) FROM task_log"


def declare(bench: Bench, way: str = "each", **options: Any) -> None:
    """A handler that fails as often as its payload says, then succeeds."""

    def work(ctx: Any, payload: dict[str, Any]) -> dict[str, Any]:
        if ctx.attempt <= payload["failures"]:
            raise ValueError("not yet")
        if way != "each":
            effect(ctx)
        return {"n": 1}

    bench.handler("t", retry="0s,0s", **options)(twin(work, is_async=way == "async"))


def run(bench: Bench, *failures: int, **options: Any) -> list[int]:
    ids = [bench.create(payload={"failures": n}) for n in failures]
    options |= {"give_back_after": 60}  # a claim that comes back is an attempt, too
    carry_out(bench, ids, **options)
    while bench.sql("SELECT count(*) FROM task_pending"):
        bench.drain(**options)
    return ids


def test_failures_are_always_kept(bench: Bench) -> None:
    declare(bench, history="none", max_attempts=1)

    (task_id,) = run(bench, 9)

    assert bench.state(task_id) == "FAILED"
    assert len(bench.attempts(task_id)) == 1


def test_a_queue_decides_unless_the_handler_does(bench: Bench) -> None:
    declare(bench)
    bench.handler("kept", history="all")(lambda ctx: None)

    task_id = bench.create("kept")
    bench.execute([task_id], history="all,default=none")
    run(bench, 0, history="all,default=none")
    run(bench, 0, history="none,default=all")

    assert bench.sql(ROWS) == 2


def test_results_of_members_are_kept(bench: Bench) -> None:
    declare(bench, history="none")
    bench.handler("then")(lambda ctx: bench.runs.append("then"))
    with bench.engine.begin() as connection:
        members = [NewTask("t", {"failures": 0})] * 2
        create_group(connection, members, then=NewTask("then"))
    ids = bench.sql("SELECT array_agg(id) FROM task_pending WHERE name = 't'")

    bench.execute(ids)

    assert bench.sql("SELECT count(*) FROM task_completed WHERE result = '{\"n\": 1}'") == 2
    bench.drain()
    assert bench.runs == ["then"]


@pytest.mark.test_all
def test_log_lines_stay_of_those_that_stay(bench: Bench) -> None:
    @bench.handler("t", retry="0s", history="none")
    def h(ctx: Any, payload: dict[str, Any]) -> None:
        ctx.log.warning("a line")
        if ctx.attempt <= payload["failures"]:
            raise ValueError("not yet")

    run(bench, 0, 1, log_lines=5)
    assert bench.sql(LINES) == 0
    run(bench, 9, log_lines=5)
    assert bench.sql(LINES) == 2


def test_they_are_counted(bench: Bench) -> None:
    TASK_COUNTS.forget()
    declare(bench, history="none")

    run(bench, 0, 0, 0)
    bench.handler("kept")(lambda ctx: None)
    bench.create("kept")
    bench.drain()

    with bench.engine.connect() as connection:
        found = connection.execute(
            text("SELECT name, outcome, sum(number) FROM task_count_part GROUP BY 1, 2")
        )
        counted = {tuple(row) for row in found}
    done, unkept = CountedOutcome.DONE, CountedOutcome.UNKEPT
    assert counted == {("t", done, 3), ("t", unkept, 3), ("kept", done, 1)}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("bulk=none", "'bulk=none' is not the history of all other queues, as in 'all,bulk=none'"),
        ("all,q=none,q=all", "queue 'q' has two histories"),
        ("all,q q=none", "'q q' is not the name of a queue"),
        *((wrong, "history") for wrong in ["some", "none,x", "all,=none", "all,x=some", "all,"]),
    ],
)
def test_what_it_says_of_what_it_refuses(bench: Bench, wrong: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        bench.settings(history=wrong)


def test_a_wrong_history_is_refused_where_it_is_declared(bench: Bench) -> None:
    for wrong in ("some", True, ["none"]):
        with pytest.raises(HandlerError, match="is not one of all, failures, none"):
            bench.handler("t", history=wrong)(lambda ctx: None)


def test_what_a_unique_key_keeps_out_it_keeps_out(bench: Bench) -> None:
    bench.handler("t", history="none")(lambda ctx: None)
    first = bench.create(unique_key="k", unique_scope="for_period 1h")
    bench.drain()

    again = bench.create(unique_key="k", unique_scope="for_period 1h")

    assert (again, again.created) == (first, False)
    assert bench.sql("SELECT count(*) FROM task_pending") == 0


@pytest.mark.parametrize("way", ["each", "effect", "async"])
def test_its_transitions_are_logged(bench: Bench, way: str) -> None:
    declare(bench, way, history="none")
    try:
        run(bench, 0, transitions="all")
        run(bench, 1, transitions="all")
    finally:
        LOG.level = Logged.OFF

    ends = "SELECT count(*) FROM task_transition WHERE event = 'succeed'"
    assert (bench.sql(ends), bench.sql(ROWS)) == (2, 0)


def test_a_callback_that_left_no_row_is_not_awaited(bench: Bench) -> None:
    bench.handler("m", history="none")(lambda ctx: None)
    bench.handler("then", history="none")(lambda ctx: bench.runs.append("then"))
    with bench.engine.begin() as connection:
        create_group(connection, [NewTask("m")], then=NewTask("then"))
    bench.drain()

    with bench.engine.connect() as connection:
        callback = connection.execute(text("SELECT callback_id FROM task_group")).scalar_one()
        finding = explain_task(connection, callback).findings[0]

    assert bench.runs == ["then"]
    assert "is in no pool" in finding.fact
    assert "it left no row" in finding.advice
