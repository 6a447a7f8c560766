"""Locks that tasks and handlers declare, on real children."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from tasks_app import explain_task, locks
from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import HandlerError, InvalidLockError
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.locks import Locks
from tasks_app.pool.runs.settle import settle_group
from tasks_app.pool.tasks.amend import change_payload
from tasks_app.runtime.api.limits import free_lock, limit_lock
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tests.factory import claimer, ending
from tests.runtime.bench import Bench

LEFT = "SELECT count(*) FROM task_lock_holder"


class Inside:
    """A handler that notes who is inside, and with whom."""

    def __init__(self, bench: Bench, name: str = "t", **options: Any) -> None:
        self.mutex = threading.Lock()
        self.inside: set[int] = set()
        self.most = 0
        self.entered: list[int] = []

        @bench.handler(name, **options)
        def room(ctx: Any, payload: dict[str, Any]) -> None:
            with self.mutex:
                self.inside.add(ctx.task_id)
                self.entered.append(ctx.task_id)
                self.most = max(self.most, len(self.inside))
            threading.Event().wait(0.005)
            with self.mutex:
                self.inside.discard(ctx.task_id)


def attempts(bench: Bench) -> set[int]:
    return {attempt for (attempt,) in bench.rows("SELECT DISTINCT attempt FROM task_all")}


def test_twenty_over_one_lock_run_one_by_one_in_order_with_one_attempt(bench: Bench) -> None:
    room = Inside(bench)
    ids = [bench.create(locks="r") for _ in range(20)]
    bench.drain(concurrency=4)
    assert bench.states(ids) == ["SUCCEEDED"] * 20
    assert (room.most, room.entered, attempts(bench)) == (1, ids, {1})
    assert bench.sql(LEFT) == 0


def test_the_end_of_a_run_wakes_the_next_at_once(bench: Bench) -> None:
    first, second = bench.create(locks="r"), bench.create(locks="r")
    control = AdmissionControl(bench.database())
    (run,) = control.claim([first, second], claimer(), uuid4())
    assert bench.task(second).parked == "lock r"
    bench.do(settle_group, [ending(run)])
    assert control.ended([run.fence])
    control.wake_after_runs()
    assert [task.task_id for task in control.claim([second], claimer(), uuid4())] == [second]
    assert bench.rows("SELECT task_id FROM task_lock_holder") == [(second,)]


def test_a_release_beside_tasks_lets_the_leader_wake_them(bench: Bench) -> None:
    control = AdmissionControl(bench.database())
    task_id = bench.create(locks="r")
    with locks.hold(bench.engine, exclusive="r"):
        assert control.claim([task_id], claimer(), uuid4()) == []
        assert control.wake_due().woken == 0
    assert control.wake_due().woken == 1


@pytest.mark.parametrize(
    "act", [partial(free_lock, resource="r"), partial(limit_lock, resource="r", most=2)]
)
def test_what_an_operator_does_lets_the_leader_wake_them(bench: Bench, act: Callable) -> None:
    control = AdmissionControl(bench.database())
    task_id = bench.create(locks=Locks(counted={"r": 1}))
    locks.hold(bench.engine, counted={"r": 1}, renew=False).take()
    assert control.claim([task_id], claimer(), uuid4()) == []
    bench.do(act)
    assert control.wake_due().woken == 1


def test_a_judgement_without_a_claim_keeps_the_order(bench: Bench) -> None:
    leader, child = AdmissionControl(bench.database()), AdmissionControl(bench.database())
    ids = [bench.create(locks="r") for _ in range(3)]
    with bench.engine.begin() as connection:
        verdict = leader.judge(connection, ids)
    leader.hold([verdict])
    assert [task.task_id for task in child.claim(ids, claimer(), uuid4())] == ids[:1]


def test_explain_says_for_whom_it_waits(bench: Bench) -> None:
    control = AdmissionControl(bench.database())
    first, second = bench.create(locks="r"), bench.create(locks="r")
    control.claim([first, second], claimer(), uuid4())
    with bench.engine.begin() as connection:
        said = str(explain_task(connection, second))
    assert f"It waits for its lock: r is held by t (task {first}), exclusive" in said


def test_a_handler_names_its_locks_by_the_payload(bench: Bench) -> None:
    room = Inside(bench, locks="account:{account}")
    ids = [bench.create(payload={"account": n % 2}) for n in range(6)]
    bench.drain(concurrency=4)
    assert bench.states(ids) == ["SUCCEEDED"] * 6
    assert attempts(bench) == {1}
    assert room.most <= 2
    for n in range(2):
        assert [i for i in room.entered if i in ids[n::2]] == ids[n::2]
    assert bench.rows("SELECT resource, grants FROM task_lock ORDER BY 1") == [
        ("account:0", 3),
        ("account:1", 3),
    ]


def test_no_other_claim_takes_the_task_of_such_a_handler(bench: Bench) -> None:
    Inside(bench, locks="account:{account}")
    task_id = bench.create(payload={"account": 7})
    with locks.hold(bench.engine, exclusive="account:7"):
        bench.drain()
        assert bench.task(task_id).parked == "lock account:7"
    bench.drain()
    assert bench.state(task_id) == "SUCCEEDED"


def test_its_own_locks_go_before_those_of_the_handler(bench: Bench) -> None:
    Inside(bench, locks="account:{account}")
    bench.create(payload={"account": 7}, locks=Locks(shared="own"))
    bench.drain()
    assert bench.rows("SELECT resource FROM task_lock") == [("own",)]


def test_a_payload_without_the_field_fails_for_good(bench: Bench) -> None:
    Inside(bench, locks="account:{account}")
    task_id = bench.create(payload={"other": 7})
    bench.drain()
    assert bench.state(task_id) == "FAILED"
    assert "the payload's field account, which it lacks" in bench.error(task_id)


def test_who_knows_the_handler_is_refused_before_the_insert(bench: Bench) -> None:
    Inside(bench, locks="account:{account}")
    spec = bench.registry.get("t")
    with pytest.raises(InvalidLockError, match="field account, which it lacks"):
        validate_task(NewTask("t", {}), spec, 1000)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("", "has '' in it"),
        ([], "name no resource"),
        ([f"r{n}" for n in range(101)], "name 101 resources"),
        (["r", "r"], "names 'r' again"),
        ("x" * 256, "has "),
        (7, "is of type int"),
        (Locks(counted={"r": 0}), "is not a number of holders"),
    ],
)
def test_locks_that_cannot_be_are_refused(bench: Bench, given: Any, problem: str) -> None:
    with pytest.raises(InvalidLockError, match=problem):
        bench.create(locks=given)
    with pytest.raises(HandlerError, match=problem):
        bench.handler("wrong", locks=given)


def test_what_changes_the_payload_names_the_locks_anew(bench: Bench) -> None:
    Inside(bench, locks="account:{account}")
    task_id = bench.create(payload={"account": 7})
    with locks.hold(bench.engine, exclusive="account:7"):
        bench.drain()
        bench.do(change_payload, Pool.PENDING, task_id, '{"account": 8}')
        bench.drain()
        assert bench.state(task_id) == "SUCCEEDED"
    assert bench.rows("SELECT resource FROM task_lock WHERE grants > 0 ORDER BY 1") == [
        ("account:7",),
        ("account:8",),
    ]


def test_a_run_may_take_again_what_it_holds_and_waits_for_no_more(bench: Bench) -> None:
    said: list[str] = []

    @bench.handler(locks="r")
    def again(ctx: Any) -> None:
        with ctx.locks(exclusive="r"), ctx.locks(exclusive="more"):
            said.append("both")
        try:
            with ctx.locks(exclusive="waited", wait="1s"):
                said.append("waited")
        except locks.LockOrderError as error:
            said.append(str(error))

    bench.run_one()
    assert said[0] == "both"
    assert said[1].startswith("This code holds r and would wait")


def test_a_retry_comes_back_behind_those_who_wait(bench: Bench) -> None:
    entered: list[int] = []

    @bench.handler(locks="r", retry="0s")
    def once_more(ctx: Any) -> None:
        entered.append(ctx.task_id)
        if len(entered) == 1:
            raise ValueError

    ids = [bench.create() for _ in range(3)]
    bench.drain()
    assert entered == [ids[0], ids[1], ids[2], ids[0]]
    assert bench.states(ids) == [State.SUCCEEDED] * 3
