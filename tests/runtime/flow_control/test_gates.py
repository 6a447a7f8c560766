"""Order keys and limits on real children: who passes, who is held, and who wakes whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any
from uuid import uuid4

import pytest

from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.pool.flow_control.order_and_limits import drop_limit, set_limit
from tasks_app.pool.flow_control.waiting_list import LOOK_AGAIN_S
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_group
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tests.clock import until
from tests.factory import claimer, ending
from tests.runtime.bench import Bench
from tests.statements import once_after, watched

PARKED = "SELECT count(*) FROM task_pending WHERE parked IS NOT NULL"


def limit(bench: Bench, kind: GateKind, target: str, most: int | None = 1, **more: Any) -> None:
    bench.do(set_limit, Limit(kind, target, most, **more))


class Hall:
    """A handler that notes how many are inside with it."""

    def __init__(self, bench: Bench, name: str = "t") -> None:
        self.mutex = threading.Lock()
        self.inside, self.most = 0, 0
        self.entered: list[int] = []
        self.open = bench.event()

        @bench.handler(name)
        def hall(ctx: Any) -> None:
            with self.mutex:
                self.inside += 1
                self.most = max(self.most, self.inside)
                self.entered.append(ctx.task_id)
            self.open.wait(20)
            with self.mutex:
                self.inside -= 1


@pytest.mark.test_all
def test_tasks_of_one_key_run_one_at_a_time_lowest_id_first(bench: Bench) -> None:
    bench.succeeding()
    ids = [bench.create(order_key=f"k{n % 3}") for n in range(30)]
    bench.drain(concurrency=4)
    assert bench.states(ids) == ["SUCCEEDED"] * 30
    for n in range(3):
        of_key = [i for i in bench.runs if i in ids[n::3]]
        assert of_key == sorted(of_key)


def test_a_message_runs_the_first_of_a_key_and_holds_the_others_visibly(bench: Bench) -> None:
    bench.succeeding()
    ids = [bench.create(order_key="k") for _ in range(3)]
    hall = Hall(bench, "slow")
    slow = bench.create("slow", order_key="k")
    child = bench.child()

    child.execute([ids[2], ids[1], ids[0], slow])
    until(lambda: bench.task(ids[1]).parked is None, what="the wake")

    assert bench.runs == ids[: len(bench.runs)]
    assert bench.task(slow).parked == "order k"
    child.execute(ids)
    until(lambda: bench.task(ids[2]).parked is None)
    child.execute(ids)
    assert bench.runs == ids
    assert not hall.entered


@pytest.mark.test_all
@pytest.mark.parametrize("kind", [GateKind.QUEUE, GateKind.NAME, GateKind.KEY])
def test_no_more_than_the_limit_run_at_a_time(bench: Bench, kind: GateKind) -> None:
    hall = Hall(bench)
    limit(
        bench,
        kind,
        {GateKind.QUEUE: "default", GateKind.NAME: "t", GateKind.KEY: "tenant:*"}[kind],
        2,
    )
    for _ in range(6):
        bench.create(limit_key="tenant:1")
    work = bench.work(concurrency=5)
    bench.beside(work.run)

    until(lambda: hall.inside == 2)
    until(lambda: bench.sql(PARKED) == 4)
    hall.open.set()
    until(lambda: bench.sql("SELECT count(*) FROM task_pending") == 0)

    assert hall.most == 2


@pytest.mark.test_all
def test_each_key_of_a_pattern_has_the_limit_for_itself(bench: Bench) -> None:
    hall = Hall(bench)
    limit(bench, GateKind.KEY, "tenant:*", 1)
    for n in range(4):
        bench.create(limit_key=f"tenant:{n // 2}")
    bench.create(limit_key="other:1")
    bench.create(limit_key="other:1")
    bench.beside(bench.work(concurrency=6).run)

    until(lambda: hall.inside == 4)
    until(lambda: bench.sql(PARKED) == 2)
    hall.open.set()
    until(lambda: bench.sql("SELECT count(*) FROM task_pending") == 0)


def test_a_limit_that_is_taken_away_lets_all_go(bench: Bench) -> None:
    hall = Hall(bench)
    limit(bench, GateKind.NAME, "t", 0)
    for _ in range(3):
        bench.create()
    bench.beside(bench.work(concurrency=3).run)
    until(lambda: bench.sql(PARKED) == 3)
    bench.do(drop_limit, GateKind.NAME, "t")
    until(lambda: hall.inside == 3)


@pytest.mark.test_all
def test_a_head_that_waits_for_its_retry_blocks_or_skips(bench: Bench) -> None:
    @bench.handler("t", retry="1h")
    def fails_once(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)
        if ctx.task_id in heads:
            raise LookupError

    heads = [bench.create(order_key="b"), bench.create(order_key="s", order_policy="skips")]
    behind = [bench.create(order_key="b"), bench.create(order_key="s")]
    bench.drain()
    assert bench.states([*heads, *behind]) == ["PENDING", "PENDING", "PENDING", "SUCCEEDED"]


@pytest.mark.test_all
def test_a_head_that_failed_for_good_blocks_until_it_is_requeued(bench: Bench) -> None:
    wrong = [True]

    @bench.handler("t", max_attempts=1)
    def fails(ctx: Any) -> None:
        if wrong and ctx.task_id == head:
            raise LookupError
        bench.runs.append(ctx.task_id)

    head, behind = bench.create(order_key="b"), bench.create(order_key="b")
    bench.drain()
    assert bench.states([head, behind]) == ["FAILED", "PENDING"]
    wrong.clear()
    with bench.engine.begin() as connection:
        from tasks_app.pool.tasks.requeue import requeue

        requeue(connection, head)
    bench.drain()

    assert bench.runs == [head, behind]


@pytest.mark.test_all
def test_a_head_that_is_cancelled_while_it_waits_lets_the_next_go_on(bench: Bench) -> None:
    @bench.handler("t", retry="1h")
    def fails(ctx: Any) -> None:
        if ctx.task_id == head:
            raise LookupError
        bench.runs.append(ctx.task_id)

    head, *behind = (bench.create(order_key="k") for _ in range(3))
    bench.drain()
    assert [bench.task(task_id).parked for task_id in behind] == ["order k", "order k"]
    bench.do(cancel, head)
    bench.drain()
    assert bench.runs == behind


def test_a_child_that_never_said_that_there_is_room_is_made_up_for_by_a_look(bench: Bench) -> None:
    bench.succeeding()
    first, second = bench.create(order_key="k"), bench.create(order_key="k")
    child = bench.child(start=False)
    child.execute([first, second])
    assert bench.states([first, second]) == ["SUCCEEDED", "PENDING"]
    assert bench.task(second).parked == "order k"

    database = Database(bench.url)
    leader = AdmissionControl(database)
    assert 0 < (leader.wake_due().next_s or 0) <= LOOK_AGAIN_S
    bench.sql("UPDATE task_gate SET look_at = now()")
    leader.wake_due()
    database.dispose()

    assert bench.task(second).parked is None
    assert bench.sql("SELECT look_at FROM task_gate") is None


def test_runs_that_began_before_there_was_a_limit_are_looked_for(bench: Bench) -> None:
    """They do not know it, so at their end they tell nobody."""
    first, second = bench.create(), bench.create()
    database = bench.database()
    with database.single() as connection:
        (run,) = claim(connection, [first], claimer(), uuid4())
    limit(bench, GateKind.NAME, "t")
    leader = AdmissionControl(database)
    assert leader.claim([second], claimer(), uuid4()) == []
    bench.do(settle_group, [ending(run)])
    assert leader.wake_due(now=datetime.now(UTC) + timedelta(seconds=2)).woken == 1


def test_runs_that_know_of_the_limit_are_not_looked_for(bench: Bench) -> None:
    ids = [bench.create(), bench.create()]
    limit(bench, GateKind.NAME, "t")
    bench.sql("UPDATE task_limit SET changed_at = now() - interval '11s'")
    database = bench.database()
    leader = AdmissionControl(database)
    assert len(leader.claim(ids, claimer(), uuid4())) == 1
    assert (leader.wake_due().next_s or 0) > LOOK_AGAIN_S - 5


def test_who_holds_a_task_wakes_it_if_the_run_before_it_ended_meanwhile(bench: Bench) -> None:
    first, second = bench.create(order_key="k"), bench.create(order_key="k")
    database, another = Database(bench.url), Database(bench.url)
    bench.at_end(database.dispose)
    bench.at_end(another.dispose)
    one, other = AdmissionControl(database), AdmissionControl(another)
    (run,) = one.claim([first], claimer(), uuid4())

    def end() -> None:
        bench.do(settle_group, [ending(run)])
        one.ended([run.fence])
        one.wake_after_runs()

    # The run ends, and looks who waits, before it is committed that the second one is held.
    with once_after(another.engine, "parked AS MATERIALIZED", end):
        assert other.claim([second], claimer(), uuid4()) == []

    assert bench.task(second).parked is None


def test_a_limit_that_changes_while_somebody_looks_is_not_overlooked(bench: Bench) -> None:
    bench.succeeding()
    limit(bench, GateKind.NAME, "t", 0)
    task_id = bench.create()
    database = bench.database()
    leader = AdmissionControl(database)
    with database.begin() as connection:
        verdict = leader.judge(connection, [task_id])
    leader.hold([verdict])
    bench.sql("UPDATE task_gate SET look_at = now()")

    with bench.engine.begin() as connection:
        drop_limit(connection, GateKind.NAME, "t")
        looking = bench.beside(leader.wake_due)
        until(lambda: bench.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
    looking.join(10)

    assert bench.task(task_id).parked is None


def test_who_is_woken_at_one_gate_and_held_at_another_yields_its_place(bench: Bench) -> None:
    limit(bench, GateKind.KEY, "l")
    head = bench.create(order_key="k", delay="1h")
    first, ordered, last = (bench.create(limit_key="l", order_key=key) for key in (None, "k", None))
    database = bench.database()
    leader = AdmissionControl(database)
    (run,) = leader.claim([first, ordered, last], claimer(), uuid4())
    bench.do(settle_group, [ending(run)])
    leader.ended([run.fence])
    leader.wake_after_runs()
    assert bench.task(ordered).parked is None
    assert bench.task(last).parked == "limit key l"
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now() WHERE id = :id", id=head)
    assert leader.claim([head], claimer(), uuid4())

    assert leader.claim([ordered], claimer(), uuid4()) == []

    assert bench.task(ordered).parked == "order k"
    assert bench.task(last).parked is None


SHORT, LONG = "WITH keyed AS MATERIALIZED", "SELECT kind, target, most"
"""What locks by ids, and what reads the limits to judge by them."""


@pytest.fixture
def database(bench: Bench) -> Iterator[Database]:
    database = Database(bench.url)
    yield database
    database.dispose()


def claimed(control: AdmissionControl, ids: list[int], most: int | None = None) -> list[int]:
    return [task.task_id for task in control.claim(ids, claimer(), uuid4(), most)]


def test_tasks_that_share_no_key_are_judged_together(bench: Bench, database: Database) -> None:
    ids = [bench.create(order_key=f"k{n}") for n in range(5)]
    with watched(database.engine, LONG) as judged:
        assert claimed(AdmissionControl(database), ids) == ids
    assert judged == []


def test_of_few_those_of_the_best_priority_go_first(bench: Bench, database: Database) -> None:
    later, first = (bench.create(order_key=f"k{n}", priority=9 - n) for n in range(2))
    assert claimed(AdmissionControl(database), [later, first], 1) == [first]


def test_the_rest_of_a_message_blocks_no_short_way(bench: Bench, database: Database) -> None:
    control = AdmissionControl(database)
    for n in range(2):
        clear, head, held = (bench.create(order_key=key) for key in (f"c{n}", f"k{n}", f"k{n}"))
        with watched(database.engine, SHORT) as tries:
            assert claimed(control, [clear, head, held]) == [clear]
            assert claimed(control, [head, held]) == [head]
        assert len(tries) == 2


def test_the_short_way_is_still_tried_now_and_then(bench: Bench, database: Database) -> None:
    control = AdmissionControl(database)

    def heads() -> None:
        key = str(uuid4())
        head, held = (bench.create(order_key=key) for _ in range(2))
        assert claimed(control, [head, held]) == [head]

    heads()
    assert control.hindered_until == 0.0
    heads()
    assert control.hindered_until > 0.0

    control.hindered_until = inf
    with watched(database.engine, SHORT) as tries:
        heads()
    assert tries == []

    control.hindered_until = 0.0
    assert claimed(control, [bench.create(order_key="other")])
