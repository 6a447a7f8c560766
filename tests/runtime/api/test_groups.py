"""Groups as producers and handlers meet them."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import InvalidTaskError, TasksError, UniqueKeyTakenError
from tasks_app.domain.handlers.outcomes import Fail, Snooze
from tasks_app.runtime.api.groups import (
    acreate_group,
    cancel_group,
    create_group,
    extend_group,
    get_group,
    group_results,
)
from tasks_app.runtime.api.producer import acreate_task, create_task
from tasks_app.runtime.api.tasks import explain_task, get_task, requeue_task
from tests.runtime.bench import Bench, effect
from tests.runtime.refusing import Refusals

THEN, ELSE, STEP = NewTask("then"), NewTask("else"), NewTask("step")


def tasks(number: int, name: str = "t", **options: Any) -> list[NewTask]:
    return [NewTask(name, {"n": n}, options) for n in range(number)]  # type: ignore[arg-type]


def made(bench: Bench, number: int = 3, **options: Any):
    return bench.do(create_group, tasks(number), **{"then": THEN, "on_failure": ELSE, **options})


def progress(bench: Bench, group):
    return bench.do(get_group, group.id)


@pytest.fixture
def calls(bench: Bench) -> list[Any]:
    told: list[Any] = []
    bench.handler("then")(lambda ctx: told.append(("then", ctx.headers)))
    bench.handler("else")(lambda ctx: told.append(("else", ctx.headers)))
    return told


def plain(ctx: Any, payload: Any) -> int:
    return payload["n"]


def with_effects(ctx: Any, payload: Any) -> int:
    effect(ctx)
    return payload["n"]


async def awaited(ctx: Any, payload: Any) -> int:
    await ctx.session.execute(text("SELECT 1"))
    return payload["n"]


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("function", "options"),
    [(plain, {}), (plain, {"at_most_once": True}), (with_effects, {}), (awaited, {})],
    ids=["plain", "at most once", "with effects", "async"],
)
def test_the_callback_knows_what_came_of_all(bench: Bench, function, options) -> None:
    bench.handler("t", **options)(function)
    told = []

    @bench.handler("then")
    def then(ctx: Any) -> None:
        ended = group_results(ctx.session, ctx.headers["group_id"])
        told.append((ctx.task_id, [e.result for e in ended]))

    group = made(bench, 20)
    bench.drain()

    assert told == [(group.callback_id, list(range(20)))]
    found = progress(bench, group)
    assert (found.succeeded, found.failed, found.left, found.outcome) == (20, 0, 0, "SUCCEEDED")


def test_one_that_fails_for_good(bench: Bench, calls) -> None:
    @bench.handler("t", max_attempts=1)
    def fails(ctx: Any, payload: Any) -> None:
        if payload["n"] == 1:
            raise Fail("no")

    group = made(bench)
    bench.drain()
    assert calls == [("else", {"group_id": group.id, "succeeded": 2, "failed": 1})]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("caller", ["connection", "psycopg", "async"])
def test_one_task_has_a_callback_for_either_end(bench: Bench, calls, caller: str, fails) -> None:
    @bench.handler("t", max_attempts=1)
    def pays(ctx: Any, payload: Any) -> None:
        if payload["fails"]:
            raise Fail("no")

    more = {"then": THEN, "on_failure": ELSE}
    if caller == "connection":
        bench.do(create_task, "t", {"fails": fails}, **more)
    elif caller == "psycopg":
        with psycopg.connect(bench.plain_url, autocommit=True) as raw:
            create_task(raw, "t", {"fails": fails}, **more)
    else:
        asyncio.run(awaited_task(bench, {"fails": fails}, more))
    bench.drain()

    assert [name for name, _ in calls] == ["else" if fails else "then"]


async def awaited_task(bench: Bench, payload: Any, more: Any) -> None:
    async with bench.async_session() as session:
        await acreate_task(session, "t", payload, **more)


def test_a_group_that_failed_is_mended(bench: Bench, calls) -> None:
    broken = [True]

    @bench.handler("t", max_attempts=1)
    def fails(ctx: Any, payload: Any) -> None:
        if broken[0] and payload["n"] == 1:
            raise Fail("no")

    group = made(bench)
    bench.drain()
    broken.clear()
    broken.append(False)
    bench.do(requeue_task, group.task_ids[1])
    assert progress(bench, group).outcome is None
    bench.do(extend_group, group.id, [NewTask("t", {"n": 3})])
    bench.drain()

    assert [name for name, _ in calls] == ["else", "then"]
    assert calls[1][1] == {"group_id": group.id, "succeeded": 4, "failed": 0}


def test_what_comes_back_is_waited_for(bench: Bench, calls) -> None:
    @bench.handler("t")
    def later(ctx: Any, payload: Any) -> None:
        if payload["n"] == 1 and ctx.attempt == 1:
            raise Snooze(0)

    made(bench)
    bench.drain()
    assert [name for name, _ in calls] == ["then"]


def test_nothing_exists_unless_the_transaction_commits(bench: Bench) -> None:
    with Session(bench.engine) as session:
        group = create_group(session, tasks(2), then=THEN)
        assert get_group(session, group.id) is not None
        session.rollback()
    assert progress(bench, group) is None
    assert bench.sql("SELECT count(*) FROM task_pending") == 0


def test_in_an_async_session(bench: Bench) -> None:
    async def create() -> Any:
        async with bench.async_session() as session:
            return await acreate_group(session, tasks(2), then=THEN, enough=1)

    group = asyncio.run(create())
    found = progress(bench, group)
    assert (found.total, found.enough, found.callback_id) == (2, 1, group.callback_id)


def test_groups_in_a_row_and_inside_each_other(bench: Bench, calls) -> None:
    bench.handler("t")(plain)

    @bench.handler("outer")
    def outer(ctx: Any, payload: Any) -> None:
        create_group(ctx.session, tasks(2), part_of=payload["group"], then=STEP, on_failure=STEP)

    @bench.handler("step")
    def step(ctx: Any) -> None:
        bench.runs.append(ctx.headers["succeeded"])
        create_group(ctx.session, tasks(3))

    with bench.engine.begin() as connection:
        group = create_group(connection, [NewTask("outer", {"group": 0})] * 2, then=THEN)
        connection.execute(
            text("UPDATE task_pending SET payload = jsonb_build_object('group', batch_id)")
        )
    bench.drain()

    assert bench.runs == [2, 2]
    assert calls == [("then", {"group_id": group.id, "succeeded": 4, "failed": 0})]


def test_a_callback_that_cancels_what_is_left(bench: Bench) -> None:
    @bench.handler("t", max_attempts=1)
    def fails(ctx: Any, payload: Any) -> None:
        raise Fail("no")

    @bench.handler("else")
    def otherwise(ctx: Any) -> None:
        bench.runs.append(cancel_group(ctx.session, ctx.headers["group_id"]).cancelled)

    with bench.engine.begin() as connection:
        waiting = tasks(5, delay="1h")
        group = create_group(connection, [*tasks(1), *waiting], on_failure=ELSE, fail_fast=True)
    bench.drain()

    assert bench.runs == [5]
    assert bench.states(group.task_ids) == ["FAILED"] + ["CANCELLED"] * 5
    assert bench.sql("SELECT what->>'group' FROM task_audit") == str(group.id)


def test_a_member_whose_key_is_taken_is_refused_and_nothing_is_written(bench: Bench) -> None:
    holder = bench.create(unique_key="k")
    with bench.engine.begin() as connection:
        members = [*tasks(2), NewTask("t", options={"unique_key": "k"})]
        with pytest.raises(UniqueKeyTakenError) as refused:
            create_group(connection, members, then=THEN)
    assert refused.value.holder == holder
    assert bench.sql("SELECT count(*) FROM task_pending") == 1
    assert bench.sql("SELECT count(*) FROM task_group") == 0


def test_members_may_have_keys(bench: Bench) -> None:
    with bench.engine.begin() as connection:
        keyed = [NewTask("t", {}, {"unique_key": f"k{n}"}) for n in range(3)]
        scoped = [
            NewTask("t", {}, {"unique_key": f"s{n}", "unique_scope": "forever"}) for n in (1, 2)
        ]
        group = create_group(connection, [*keyed, *tasks(1), *scoped])
    member_of = bench.sql("SELECT array_agg(DISTINCT batch_id) FROM task_pending")
    assert member_of == [group.id]
    assert bench.sql("SELECT count(*) FROM task_pending") == 6


KEYED = NewTask("then", options={"unique_key": "k"})
STRICT = NewTask("then", options={"order_key": "k", "strict_order": True})
REPLACING = NewTask("t", options={"unique_key": "k", "on_conflict": "replace_payload"})


@pytest.mark.parametrize(
    ("members", "options", "path"),
    [
        (tasks(2), {"enough": 0}, "enough"),
        (tasks(2), {"enough": 3}, "enough"),
        (tasks(2), {"enough": True}, "enough"),
        (tasks(2), {"enough": 1, "fail_fast": True}, "fail_fast"),
        (tasks(2), {"then": KEYED}, "then.options.unique_key"),
        (tasks(2), {"on_failure": STRICT}, "on_failure.options.strict_order"),
        (tasks(2), {"then": NewTask("no name")}, "then.name"),
        (tasks(2), {"then": THEN, "part_of": 1}, "part_of"),
        ([*tasks(1), REPLACING], {}, "tasks[1].options.on_conflict"),
        ([*tasks(1), NewTask("t", {"x": float("nan")})], {}, "tasks[1].payload.x"),
    ],
)
def test_what_cannot_be_meant_is_refused(bench: Bench, members, options, path) -> None:
    with bench.engine.begin() as connection, pytest.raises(InvalidTaskError) as refused:
        create_group(connection, members, **options)
    assert refused.value.path == path
    assert bench.sql("SELECT count(*) FROM task_pending") == 0


def test_nothing_becomes_part_of_a_group_that_is_over(bench: Bench) -> None:
    over = made(bench, 0)
    with bench.engine.begin() as connection, pytest.raises(TasksError, match="is over or unknown"):
        create_group(connection, [], then=THEN, on_failure=ELSE, part_of=over.id)


def test_where_each_statement_commits_by_itself_it_is_refused(bench: Bench) -> None:
    alone = bench.engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, pytest.raises(TasksError, match="needs a transaction"):
        create_group(connection, tasks(2), then=THEN)
    assert bench.sql("SELECT count(*) FROM task_pending") == 0


@pytest.mark.parametrize("verb", [cancel_group, group_results])
def test_a_group_that_is_unknown(bench: Bench, verb) -> None:
    with bench.engine.connect() as connection, pytest.raises(TasksError, match="no group 7"):
        verb(connection, 7)


@pytest.mark.test_all
@pytest.mark.parametrize("code", ["22P05", "40P01"])
def test_members_that_cannot_be_written_now_do_not_belie_the_others(
    bench: Bench, calls, refusals: Refusals, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    bench.succeeding()
    others = [bench.create() for _ in range(5)]
    group = bench.do(create_group, tasks(5), then=THEN)
    refusals.refuse(code, "settle others", times=1)
    bench.execute([*others, *group.task_ids])
    bench.drain()
    assert len(refusals.at) == 1
    assert bench.states([*others, *group.task_ids]) == ["SUCCEEDED"] * 10
    assert [name for name, _ in calls] == ["then"]
    assert "lease" not in caplog.text


@pytest.mark.test_all
def test_several_threads_end_members_of_few_groups(bench: Bench, calls) -> None:
    """They meet at the groups' rows all the time; each callback is called once."""
    bench.handler("t")(with_effects)
    groups = [made(bench, 40) for _ in range(3)]
    bench.drain(concurrency=4)
    assert sorted(headers["group_id"] for _, headers in calls) == [g.id for g in groups]
    assert {name for name, _ in calls} == {"then"}


def said(bench: Bench, task_id: int) -> dict[str, str]:
    """What explain finds, by subject."""
    found = bench.do(explain_task, task_id, settings=bench.settings())
    assert found.known
    return {each.subject: each.fact for each in found.findings}


def test_explain_tells_the_group_of_a_member_and_of_a_callback(bench: Bench) -> None:
    bench.succeeding("t")
    group = made(bench, 3)
    first, *others = group.task_ids
    bench.execute([first])
    open_ = f"group {group.id}, of whose 3 members 2 have not ended"
    assert said(bench, others[0])["group"] == f"It is a member of {open_}"
    assert said(bench, first)["group"] == f"It is a member of {open_}"
    waits = f"It does not exist yet: it waits as the callback of {open_}"
    assert said(bench, group.callback_id) == {"callback": waits}

    bench.execute(others)

    over = f"group {group.id}, which is over (SUCCEEDED: 3 succeeded and 0 failed of 3)"
    assert said(bench, group.callback_id)["callback"] == f"It is the callback of {over}"
    assert said(bench, first)["group"] == f"It is a member of {over}"
    with bench.engine.connect() as connection:
        member, callback = (get_task(connection, i) for i in (first, group.callback_id))
    assert member is not None
    assert callback is not None
    assert (member.group_id, callback.group_id) == (group.id, None)


def test_a_task_of_no_group_is_said_to_be_of_none_whatever_its_headers_say(bench: Bench) -> None:
    group = made(bench, 1)
    task_id = bench.create("t", headers={"group_id": group.id})
    odd = bench.create("t", headers={"group_id": "x"})
    for each in (task_id, odd):
        assert not {"group", "callback"} & said(bench, each).keys()


def test_a_callback_that_was_not_declared_for_that_end_is_told(bench: Bench) -> None:
    bench.succeeding("t")
    group = made(bench, 1, then=None)
    bench.execute(group.task_ids)
    assert "and is in no pool" in said(bench, group.callback_id)["callback"]
