"""Bulk handlers: one call for many tasks, an outcome and a fence each, one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from typing_extensions import TypedDict

from tasks_app import (
    AsyncTaskContext,
    DependencyDown,
    Item,
    NewTask,
    Retry,
    Snooze,
    TaskContext,
    cancel_task,
    create_group,
    create_task,
    get_group,
    handler,
)
from tasks_app.domain.errors import HandlerError, InvalidTaskError
from tasks_app.pool.tables import GROUP, PENDING
from tasks_app.runtime.handlers.registry import Registry
from tests.clock import until
from tests.runtime.bench import EFFECT, Bench, carry_out, run_many, warm

KILL_ME = "SELECT pg_terminate_backend(pg_backend_pid())"


class Number(TypedDict):
    n: int


Call = Callable[[Any, Sequence[Item[Any]]], object]


def declare(bench: Bench, function: Call, **options: Any) -> list[list[int]]:
    """Declare a bulk handler that writes an effect for each item; return its calls' numbers."""
    calls: list[list[int]] = []

    @bench.handler("t", **{"at_once": 10, "max_attempts": 1, **options})
    def h(ctx: TaskContext, items: Sequence[Item[Number]]) -> None:
        calls.append([item.payload["n"] for item in items])
        ctx.connection.execute(text(EFFECT), [{"id": i.task_id, "note": ""} for i in items])
        function(ctx, items)

    return calls


def nothing(_: Any, __: Any) -> None: ...


def numbered(bench: Bench, ids: Sequence[int]) -> list[tuple[str, int]]:
    return [(bench.state(task_id), bench.effects(task_id)) for task_id in ids]


DONE = ("SUCCEEDED", 1)


def test_one_call_runs_many_and_one_commit_ends_them(bench: Bench) -> None:
    calls = declare(bench, nothing)
    ids = run_many(bench, 25)
    assert numbered(bench, ids) == [DONE] * 25
    assert [len(call) for call in calls] == [10, 10, 5]
    commits = bench.sql("SELECT count(DISTINCT xmin::text) FROM task_completed")
    assert commits == 3
    of_effects = {x for (x,) in bench.rows("SELECT DISTINCT xmin::text FROM effect")}
    assert of_effects == {
        x for (x,) in bench.rows("SELECT DISTINCT xmin::text FROM task_completed")
    }


def test_each_item_has_an_outcome_of_its_own(bench: Bench) -> None:
    def ends(_: Any, items: Sequence[Item[Number]]) -> None:
        for item in items:
            n = item.payload["n"]
            if n == 1:
                item.fail("no such order")
            elif n == 2:
                item.retry("busy", after="1h")
            elif n == 3:
                item.skip("paid already")
            else:
                item.result({"n": n, "attempt": item.attempt})

    calls = declare(bench, ends, max_attempts=3)
    ids = run_many(bench, 5)
    assert len(calls) == 1
    assert bench.states(ids) == ["SUCCEEDED", "FAILED", "PENDING", "SKIPPED", "SUCCEEDED"]
    assert bench.task(ids[4]).result == {"n": 4, "attempt": 1}
    assert "no such order" in bench.error(ids[1])
    assert bench.task(ids[2]).failures == 1


def test_results_are_stored_as_they_were_given(bench: Bench) -> None:
    values: list[Any] = ['"', "\\", "{a,b}", "NULL", "ä\n", None, {"x": [1, '\\"']}, [], 0, "'"]

    def ends(_: Any, items: Sequence[Item[Number]]) -> None:
        for item in items:
            item.result(values[item.payload["n"]])

    declare(bench, ends)
    ids = run_many(bench, len(values))
    assert [bench.task(task_id).result for task_id in ids] == values


@pytest.mark.parametrize("history", ["all", "failures", "none"])
@pytest.mark.parametrize("transitions", ["off", "all"])
def test_they_are_kept_and_logged_as_plain_runs_are(
    bench: Bench, history: Any, transitions: str
) -> None:
    calls = declare(bench, nothing, history=history)
    ids = [bench.create(payload={"n": n}) for n in range(4)]
    bench.sql("UPDATE task_pending SET attempt = 1 WHERE id = :id", id=ids[0])
    carry_out(bench, ids, transitions=transitions)
    assert sorted(map(sorted, calls)) == [[0, 1, 2, 3]]
    kept = {"all": ids, "failures": ids[:1], "none": []}[history]
    assert [id_ for (id_,) in bench.rows("SELECT id FROM task_completed ORDER BY id")] == kept
    assert bench.sql("SELECT count(*) FROM task_pending") == 0
    lines = "SELECT count(*) FROM task_transition WHERE event = 'succeed'"
    assert bench.sql(lines) == (4 if transitions == "all" else 0)
    assert [bench.effects(task_id) for task_id in ids] == [1] * 4


def test_an_outcome_may_be_taken_back(bench: Bench) -> None:
    def ends(_: Any, items: Sequence[Item[Number]]) -> None:
        for item in items:
            item.fail("first")
            item.result("after all")

    declare(bench, ends)
    assert [bench.task(task_id).result for task_id in run_many(bench, 2)] == ["after all"] * 2


def test_if_none_succeeds_nothing_is_committed(bench: Bench) -> None:
    declare(bench, lambda _, items: [item.fail("no") for item in items])
    assert numbered(bench, run_many(bench, 3)) == [("FAILED", 0)] * 3


def test_a_poisoned_item_harms_nobody(bench: Bench) -> None:
    """The call is rolled back, and its items run one by one: the error is its own."""

    def poisoned(_: Any, items: Sequence[Item[Number]]) -> None:
        if any(item.payload["n"] == 4 for item in items):
            raise ValueError("four")

    calls = declare(bench, poisoned)
    ids = run_many(bench, 10)
    assert numbered(bench, ids) == [*[DONE] * 4, ("FAILED", 0), *[DONE] * 5]
    assert calls == [list(range(10)), *[[n] for n in range(10)]]
    assert [bench.task(task_id).failures for task_id in ids] == [0] * 4 + [1] + [0] * 5
    assert "four" in bench.error(ids[4])


@pytest.mark.parametrize("how", ["statement", "commit", "backend"])
def test_so_does_one_that_the_database_refuses(bench: Bench, how: str) -> None:
    """In a statement of the call, at its COMMIT, or by the end of its connection."""

    def poisoned(ctx: Any, items: Sequence[Item[Number]]) -> None:
        for item in items:
            if item.payload["n"] == 2:
                match how:
                    case "statement":
                        ctx.connection.execute(text("SELECT 1 / 0"))
                    case "commit":
                        ctx.write("SELECT 1 / 0")
                    case _:
                        ctx.connection.execute(text(KILL_ME))

    declare(bench, poisoned)
    ids = [bench.create(payload={"n": n}) for n in range(4)]
    child = warm(bench.child())
    child.execute(list(ids))
    until(lambda: child.inflight.empty)
    child.stop()
    states = bench.states(ids)
    assert (states[0], states[1], states[3]) == ("SUCCEEDED",) * 3
    assert states[2] == ("PENDING" if how == "backend" else "FAILED")  # its fault is not proven
    assert [bench.effects(task_id) for task_id in ids] == [1, 1, 0, 1]


def test_a_lost_fence_undoes_the_call_and_the_others_run_again(bench: Bench) -> None:
    def retaken(_: Any, items: Sequence[Item[Number]]) -> None:
        if len(items) > 1:
            bench.sql(
                "UPDATE task_pending SET lease_token = gen_random_uuid() WHERE id = :id",
                id=items[1].task_id,
            )

    calls = declare(bench, retaken)
    ids = run_many(bench, 3)
    assert numbered(bench, [ids[0], ids[2]]) == [DONE] * 2
    assert (bench.state(ids[1]), bench.effects(ids[1])) == ("RUNNING", 0)
    assert calls[0] == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "state", "failures"),
    [
        (Retry("limit", after="1h"), "PENDING", 1),
        (Snooze("1h"), "PENDING", 0),
        (DependencyDown("bank"), "PENDING", 0),
        (ConnectionRefusedError("bank"), "PENDING", 0),
    ],
)
def test_an_outcome_that_the_call_raises_is_that_of_all(
    bench: Bench, error: BaseException, state: str, failures: int
) -> None:
    def ends(_: Any, __: Any) -> None:
        raise error

    options = {"dependency_errors": [ConnectionRefusedError], "max_attempts": 3}
    calls = declare(bench, ends, **options)
    ids = [bench.create(payload={"n": n}) for n in range(5)]
    carry_out(bench, ids)
    assert len(calls) == 1
    assert numbered(bench, ids) == [(state, 0)] * 5
    assert {bench.task(task_id).failures for task_id in ids} == {failures}


def test_a_payload_that_does_not_fit_fails_by_itself(bench: Bench) -> None:
    calls = declare(bench, nothing)
    ids = [bench.create(payload={"n": n}) for n in range(3)]
    bench.sql("""UPDATE task_pending SET payload = '{"n": "x"}' WHERE id = :id""", id=ids[0])
    carry_out(bench, ids)
    assert bench.states(ids) == ["FAILED", "SUCCEEDED", "SUCCEEDED"]
    assert calls == [[1, 2]]


def test_a_result_that_cannot_be_stored_fails_its_item(bench: Bench) -> None:
    def ends(_: Any, items: Sequence[Item[Number]]) -> None:
        items[0].result(object())

    declare(bench, ends)
    assert bench.states(run_many(bench, 3)) == ["FAILED", "SUCCEEDED", "SUCCEEDED"]


def test_a_value_returned_is_of_no_task(bench: Bench) -> None:
    @bench.handler("t", at_once=10, max_attempts=1)
    def h(ctx: TaskContext, items: Any) -> list[int]:
        return [1 for _ in items]

    ids = run_many(bench, 2)
    assert bench.states(ids) == ["FAILED"] * 2
    assert "item.result(…)" in bench.error(ids[0])


def test_what_is_of_one_task_is_refused_by_name(bench: Bench) -> None:
    declare(bench, lambda ctx, _: ctx.commit())
    assert "ctx.commit is of one task" in bench.error(run_many(bench, 2)[0])


def test_others_and_those_with_limits_of_their_own_stay_apart(bench: Bench) -> None:
    calls = declare(bench, nothing)
    bench.succeeding("other")
    ids = [
        bench.create(payload={"n": n}, **({"timeout": "9s"} if n == 1 else {})) for n in range(4)
    ]
    ids.insert(2, bench.create("other"))
    carry_out(bench, ids)
    assert bench.states(ids) == ["SUCCEEDED"] * 5
    assert sorted(map(sorted, calls)) == [[0, 2, 3], [1]]


def test_a_cancel_of_one_ends_the_call_and_the_others_run(bench: Bench) -> None:
    def cancelled(_: Any, items: Sequence[Item[Number]]) -> None:
        if len(items) > 1:
            bench.do(cancel_task, items[1].task_id, by="test")
            threading.Event().wait(20)

    calls = declare(bench, cancelled)
    ids = [bench.create(payload={"n": n}) for n in range(3)]
    carry_out(bench, ids)
    assert numbered(bench, ids) == [DONE, ("CANCELLED", 0), DONE]
    assert calls == [[0, 1, 2], [0], [2]]


def test_a_child_that_stops_gives_back_what_did_not_run_alone(bench: Bench) -> None:
    def stops(_: Any, items: Sequence[Item[Number]]) -> None:
        if len(items) > 1:
            bench.children[-1].inflight.stop()
            raise ValueError

    declare(bench, stops)
    ids = [bench.create(payload={"n": n}) for n in range(3)]
    carry_out(bench, ids)
    assert numbered(bench, ids) == [("PENDING", 0)] * 3
    assert [bench.task(task_id).failures for task_id in ids] == [0] * 3


def test_async_calls(bench: Bench) -> None:
    calls: list[int] = []

    @bench.handler("t", at_once=10, max_attempts=1)
    async def h(ctx: AsyncTaskContext, items: Sequence[Item[Number]]) -> None:
        calls.append(len(items))
        for item in items:
            values = {"id": item.task_id, "note": ""}
            await ctx.session.execute(text(EFFECT), values)
            if item.payload["n"] == 12:
                raise ValueError

    ids = run_many(bench, 20)
    bad = numbered(bench, ids).index(("FAILED", 0))
    assert bad == 12
    assert numbered(bench, [*ids[:12], *ids[13:]]) == [DONE] * 19
    assert calls[:2] == [10, 10]


@pytest.mark.parametrize("how", ["raises", "returns"])
def test_a_call_that_ended_its_transaction_is_not_made_again(bench: Bench, how: str) -> None:
    """What it had written stands, so that each item alone would write it once more."""

    def ends(ctx: Any, _: Any) -> None:
        ctx.connection.connection.driver_connection.pgconn.exec_(b"COMMIT")
        if how == "raises":
            raise ValueError

    calls = declare(bench, ends)
    ids = run_many(bench, 3)
    assert len(calls) == 1
    assert numbered(bench, ids) == [("FAILED", 1)] * 3


def test_a_conflict_that_counts_as_an_outage_is_no_crash(bench: Bench) -> None:
    """A plain run is made again after it, whatever ``dependency_errors`` says."""

    def collides(ctx: Any, items: Sequence[Item[Number]]) -> None:
        if len(items) > 1:
            ctx.connection.execute(
                text("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$")
            )

    declare(bench, collides, dependency_errors=[OperationalError])
    ids = run_many(bench, 3)
    assert numbered(bench, ids) == [DONE] * 3
    assert [bench.task(task_id).crashes for task_id in ids] == [0] * 3


def test_threads_share_calls(bench: Bench) -> None:
    calls = declare(bench, nothing)
    ids = run_many(bench, 40, extra_threads=3)
    assert numbered(bench, ids) == [DONE] * 40
    assert sum(map(len, calls)) == 40
    assert max(map(len, calls)) > 1


def test_members_of_a_group_are_counted(bench: Bench) -> None:
    declare(bench, nothing)
    bench.succeeding("after")
    tasks = [NewTask("t", {"n": n}) for n in range(6)]
    group = bench.do(create_group, tasks, then=NewTask("after"))
    bench.drain()
    assert bench.do(get_group, group.id).succeeded == 6
    assert bench.runs


def test_groups_are_locked_in_the_order_of_all(bench: Bench) -> None:
    """Else two calls, or a call and a settle of many, could wait for each other."""
    declare(bench, nothing)
    bench.succeeding("after")
    first, second = (
        bench.do(create_group, [NewTask("t", {"n": 0})], then=NewTask("after")) for _ in range(2)
    )
    members = f"SELECT id FROM {PENDING} WHERE name = 't' ORDER BY id DESC"
    ids = [task_id for (task_id,) in bench.rows(members)]
    lock = f"SELECT FROM {GROUP} WHERE id = :id FOR UPDATE"
    child = warm(bench.child())
    with bench.engine.connect() as other:
        other.execute(text(lock), {"id": first.id})
        thread = bench.beside(child.execute, ids)
        until(lambda: bench.sql("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        other.execute(text(f"{lock} NOWAIT"), {"id": second.id})
    thread.join(20)
    assert numbered(bench, ids) == [DONE] * 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"at_once": 0}, "not an integer 1 .. 500"),
        ({"at_once": True}, "not an integer 1 .. 500"),
        ({"at_once": "10"}, "not an integer 1 .. 500"),
        ({"at_once": 501}, "not an integer 1 .. 500"),
        ({"at_once": 2, "at_most_once": True}, "at_most_once and has at_once"),
    ],
)
def test_wrong_options(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(HandlerError, match=problem):
        handler("t", registry=Registry(), **options)(lambda ctx, items: None)


def test_wrong_signatures() -> None:
    def one(ctx: TaskContext) -> None: ...

    def plain(ctx: TaskContext, items: dict[str, int]) -> None: ...

    for function, problem in ((one, r"\(ctx, items\)"), (plain, r"Sequence\[Item\[Payload\]\]")):
        with pytest.raises(HandlerError, match=problem):
            handler("t", registry=Registry(), at_once=2)(function)


def test_payloads_are_checked_as_one_items(bench: Bench) -> None:
    @bench.handler("t", at_once=2)
    def h(ctx: TaskContext, items: Sequence[Item[Number]]) -> None: ...

    with pytest.raises(InvalidTaskError, match="n"):
        bench.do(create_task, h, {"n": "x"})
