"""What is kept of tasks that succeeded: all, those that needed more than one attempt, or none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import NewTask, create_group, create_tasks, explain_task, requeue_task, wait_task
from tasks_app.domain.errors import HandlerError, UniqueKeyTakenError, UnknownTaskError
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.runtime.statistics import TASK_COUNTS
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.reaper import Reaper
from tests.clock import until
from tests.runtime.bench import EFFECT, QUEUE, Bench, carry_out, effect, warm
from tests.runtime.handler_db.twins import twin
from tests.runtime.mortal import forked
from tests.runtime.timetable import NOON, fires, scheduled, scheduler, tasks

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
    bench.run_one("kept")
    counted = set(
        bench.rows("SELECT name, outcome, sum(number) FROM task_count_part GROUP BY 1, 2")
    )
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
    first = bench.run_one(unique_key="k", unique_scope="for_period 1h")
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
    bench.do(create_group, [NewTask("m")], then=NewTask("then"))
    bench.drain()
    with bench.engine.connect() as connection:
        callback = connection.execute(text("SELECT callback_id FROM task_group")).scalar_one()
        finding = explain_task(connection, callback).findings[0]
    assert bench.runs == ["then"]
    assert "is in no pool" in finding.fact
    assert "it left no row" in finding.advice


INSERT = text(EFFECT)
M = timedelta(minutes=1)
LEFT = "SELECT count(*) FROM (SELECT FROM task_completed UNION ALL SELECT FROM task_error) t"


def inserting(bench: Bench, way: str, history: str | None = "none", *, name: str = "t") -> None:
    def work(ctx: Any) -> None:
        ctx.session.execute(INSERT, {"id": ctx.task_id, "note": ""})

    bench.handler(name, retry="0s,0s", history=history)(twin(work, is_async=way == "async"))


def ids_in(bench: Bench, source: str) -> list[int]:
    return bench.sql(f"SELECT array_agg(id ORDER BY id) FROM {source}") or []


@pytest.mark.test_all
@pytest.mark.parametrize("moment", range(2))
@pytest.mark.parametrize("way", ["each", "async"])
def test_killed_at_any_time_each_effect_is_once(bench: Bench, way: str, moment: int) -> None:
    inserting(bench, way)
    ids: list[int] = sorted(bench.do(create_tasks, [NewTask("t")] * 200))

    def work() -> None:
        child = Child(bench.settings(), bench.registry, bench.slots, queues=(QUEUE,))
        warm(child).start()
        child.execute(ids)

    with forked(work) as process:
        until(lambda: bench.sql("SELECT count(*) FROM effect") > 50 * moment or not moment)
        process.kill()
    done = ids_in(bench, "(SELECT task_id AS id FROM effect) e")
    assert sorted([*done, *ids_in(bench, "task_pending")]) == ids

    database = bench.database()
    until(lambda: Reaper(database, bench.slots, bench.registry, bench.settings()).reap_dead() == 0)
    carry_out(bench, ids)
    while bench.sql("SELECT count(*) FROM task_pending"):
        bench.drain()  # those that were on board are claimed alone

    assert ids_in(bench, "(SELECT task_id AS id FROM effect) e") == ids
    assert bench.sql(LEFT) == 0


@pytest.mark.parametrize("first", ["all", "none"])
def test_the_setting_may_change_between_attempts(bench: Bench, first: str) -> None:
    @bench.handler("t", retry="0s")
    def h(ctx: Any) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")

    task_id = bench.create()
    bench.execute([task_id], history=first)
    bench.execute([task_id], history="none" if first == "all" else "all")
    kept = first == "none"
    assert bench.sql(LEFT) == kept
    assert bench.sql("SELECT count(*) FROM task_attempt") == kept


def test_workers_with_different_settings_share_a_queue(bench: Bench) -> None:
    inserting(bench, "each", None)
    ids: list[int] = [bench.create() for _ in range(20)]
    carry_out(bench, ids[:10], history="none")
    carry_out(bench, ids, history="all")
    assert ids_in(bench, "(SELECT task_id AS id FROM effect) e") == ids
    assert ids_in(bench, "task_completed") == ids[10:]


def test_a_message_that_comes_again_starts_nothing(bench: Bench) -> None:
    inserting(bench, "each")
    task_id = bench.create()
    for _ in range(3):
        carry_out(bench, [task_id, task_id])
    assert bench.effects(task_id) == 1


def test_who_failed_and_is_requeued_leaves_nothing_then(bench: Bench) -> None:
    @bench.handler("t", history="none", max_attempts=1)
    def h(ctx: Any) -> None:
        if not bench.runs:
            raise ValueError("not yet")

    task_id = bench.run_one()
    assert bench.state(task_id) == "FAILED"
    bench.runs.append("mended")
    bench.do(requeue_task, task_id)
    bench.drain()
    assert bench.sql(LEFT) == 0
    assert bench.sql("SELECT count(*) FROM task_attempt") == 0


@pytest.mark.test_all
def test_who_waits_for_it_hears_that_it_is_not_there(bench: Bench) -> None:
    bench.handler("t", history="none")(lambda ctx: {"n": 1})
    task_id = bench.create()
    bench.beside(bench.drain)
    with pytest.raises(UnknownTaskError, match="its history keeps no row"):
        wait_task(bench.engine, task_id, timeout=20)


@pytest.mark.test_all
@pytest.mark.parametrize("conflict", ["return_existing", "raise", "replace_payload", "reschedule"])
@pytest.mark.parametrize(
    ("scope", "taken"),
    [("queued_or_running", False), ("queued", False), ("for_period 1h", True), ("forever", True)],
)
def test_its_key_is_free_as_if_kept(bench: Bench, scope: str, taken: bool, conflict: str) -> None:
    key = {"unique_key": "k", "unique_scope": scope, "on_conflict": conflict}

    def again(history: str) -> Any:
        bench.handler(history, history=history)(lambda ctx: None)
        first = bench.run_one(history, **key)
        try:
            second = bench.create(history, **key)
        except UniqueKeyTakenError as error:
            return "taken", error.holder == first
        return second == first, second.created, second.outcome

    found = [again("all"), again("none")]

    assert found[0] == found[1]
    assert (found[1][0] in {True, "taken"}) == taken


@pytest.mark.test_all
@pytest.mark.parametrize("keys", [{"order_key": "o"}, {"limit_key": "l"}])
@pytest.mark.parametrize("way", ["each", "async"])
def test_the_next_of_its_key_has_its_turn(bench: Bench, way: str, keys: dict[str, str]) -> None:
    inserting(bench, way)
    bench.do(set_limit, Limit(GateKind.KEY, "l", 1))
    ids: list[int] = [bench.create(**keys) for _ in range(8)]
    while bench.sql("SELECT count(*) FROM task_pending"):
        bench.drain()
    order = bench.sql("SELECT array_agg(task_id ORDER BY ctid) FROM effect")
    assert order == ids if "order_key" in keys else sorted(order) == ids


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
def test_a_schedule_knows_that_its_last_task_is_over(bench: Bench, overlap: str) -> None:
    bench.handler("t", history="none")(lambda ctx: bench.runs.append(ctx.task_id))
    scheduled(bench, overlap=overlap)
    for minute in (1, 2, 3):
        scheduler(bench).run_once(now=NOON + minute * M)
        (task,) = tasks(bench)
        carry_out(bench, [task.id])
    assert len(bench.runs) == 3
    assert [fire[1] for fire in fires(bench)] == ["made"] * 3


@pytest.mark.parametrize("way", ["each", "async"])
def test_tasks_of_any_history_end_on_one_connection(bench: Bench, way: str) -> None:
    inserting(bench, way)
    inserting(bench, way, "all", name="kept")
    ids: list[int] = [bench.create(name) for name in ("kept", "t") * 3]
    carry_out(bench, ids)
    assert ids_in(bench, "(SELECT task_id AS id FROM effect) e") == ids
    assert ids_in(bench, "task_completed") == ids[::2]
    assert bench.sql("SELECT max(attempt) FROM task_completed") == 1
    assert bench.sql("SELECT count(*) FROM task_attempt") == 0
    assert bench.sql("SELECT count(*) FROM task_pending") == 0
