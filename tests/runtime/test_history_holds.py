"""What holds for tasks that leave no row: once, whoever dies; keys, limits, schedules."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import NewTask, create_tasks, requeue_task, wait_task
from tasks_app.domain.errors import UniqueKeyTakenError, UnknownTaskError
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.reaper import Reaper
from tests.runtime.bench import EFFECT, QUEUE, Bench
from tests.runtime.execution.warm_child import carry_out, warm
from tests.runtime.mortal import forked
from tests.runtime.timetable import NOON, fires, scheduled, scheduler, tasks
from tests.waiting import until

INSERT = text(EFFECT)
M = timedelta(minutes=1)
LEFT = "SELECT count(*) FROM (SELECT FROM task_completed UNION ALL SELECT FROM task_error) t"


def inserting(bench: Bench, way: str, history: str | None = "none", *, name: str = "t") -> None:
    def work(ctx: Any) -> None:
        ctx.session.execute(INSERT, {"id": ctx.task_id, "note": ""})

    async def awork(ctx: Any) -> None:
        await ctx.session.execute(INSERT, {"id": ctx.task_id, "note": ""})

    bench.handler(name, retry="0s,0s", history=history)(awork if way == "async" else work)


def ids_in(bench: Bench, source: str) -> list[int]:
    return bench.sql(f"SELECT array_agg(id ORDER BY id) FROM {source}") or []


@pytest.mark.test_all
@pytest.mark.parametrize("moment", range(2))
@pytest.mark.parametrize("way", ["each", "async"])
def test_killed_at_any_moment_each_effect_is_there_once(
    bench: Bench, way: str, moment: int
) -> None:
    inserting(bench, way)
    with bench.engine.begin() as connection:
        ids: list[int] = sorted(create_tasks(connection, [NewTask("t")] * 200))

    def work() -> None:
        child = Child(bench.settings(), bench.registry, bench.slots, queues=(QUEUE,))
        warm(child).start()
        child.execute(ids)

    with forked(work) as process:
        until(lambda: bench.sql("SELECT count(*) FROM effect") > 50 * moment or not moment)
        process.kill()
    done = ids_in(bench, "(SELECT task_id AS id FROM effect) e")
    assert sorted([*done, *ids_in(bench, "task_pending")]) == ids

    database = Database(bench.url)
    bench.at_end(database.dispose)
    until(lambda: Reaper(database, bench.slots, bench.registry, bench.settings()).look() == 0)
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

    task_id = bench.create()
    bench.drain()
    assert bench.state(task_id) == "FAILED"
    bench.runs.append("mended")
    with bench.engine.begin() as connection:
        requeue_task(connection, task_id)

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
def test_its_key_is_as_free_as_that_of_one_that_is_kept(
    bench: Bench, scope: str, taken: bool, conflict: str
) -> None:
    key = {"unique_key": "k", "unique_scope": scope, "on_conflict": conflict}

    def again(history: str) -> Any:
        bench.handler(history, history=history)(lambda ctx: None)
        first = bench.create(history, **key)
        bench.drain()
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
def test_the_next_of_its_key_comes_in_its_turn(
    bench: Bench, way: str, keys: dict[str, str]
) -> None:
    inserting(bench, way)
    with bench.engine.begin() as connection:
        set_limit(connection, Limit(GateKind.KEY, "l", 1))
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
