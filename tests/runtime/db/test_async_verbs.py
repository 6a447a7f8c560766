"""Every verb for async callers: on AsyncSession, AsyncConnection and psycopg's AsyncConnection."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
import pytest

import tasks_app
from tasks_app import BatchJob, NewTask, Step, Table, acreate_task
from tasks_app.batch.job import JOBS
from tasks_app.runtime.handlers.registry import Registry
from tests.factory import some
from tests.runtime.bench import Bench
from tests.runtime.db.test_connections import ASYNC_KINDS, async_autocommit
from tests.runtime.hints.ear import Ear, told
from tests.tiers import few

Work = Callable[[Any, Bench], Awaitable[list[Any]]]


def work(ctx: Any, rows: Any) -> None:
    """Never called: nobody runs a partition here."""


JOB = BatchJob("async.verbs", [Step("all", Table("effect"), chunk=work)], registry=Registry())


async def queues(caller: Any, _: Bench) -> list[Any]:
    days = await tasks_app.aset_calendar(caller, "holidays", [date(2027, 1, 1)])
    changed = await tasks_app.achange_queue(caller, "mail", running_below=5)
    return [
        await tasks_app.alist_calendars(caller) == {"holidays": days},
        changed is not None and changed.running_below == 5,
        await tasks_app.aget_queue(caller, "mail") is not None,
        await tasks_app.apause_queue(caller, "mail", "moving", resume_in="1h"),
        [each.queue for each in await tasks_app.alist_queues(caller)] == ["mail"],
        list(await tasks_app.aresume_queue(caller, "mail")) == ["mail"],
        await tasks_app.areset_queue(caller, "mail"),
        await tasks_app.aremove_calendar(caller, "holidays"),
    ]


async def limits(caller: Any, bench: Bench) -> list[Any]:
    limit = await tasks_app.aset_limit(caller, "name", "t", most=3)
    return [
        await tasks_app.alist_limits(caller) == [limit],
        await tasks_app.adrop_limit(caller, "name", "t"),
        not await tasks_app.aunblock_task(caller, 1),
    ]


async def schedules(caller: Any, _: Bench) -> list[Any]:
    made = await tasks_app.acreate_schedule(caller, "night", "t", {"n": 1}, cron="0 2 * * *")
    shown = await tasks_app.apreview(caller, 3, cron="0 2 * * *")
    run = some(await tasks_app.arun_schedule(caller, "night"))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    filled = await tasks_app.abackfill_schedule(caller, "night", start, start + timedelta(days=2))
    changed = some(await tasks_app.achange_schedule(caller, "night", queue="mail"))
    assert filled is not None
    return [
        made.next_run_at == shown.instants[0],
        (await tasks_app.apreview_schedule(caller, "night", 3)) == shown,
        (run.created, len(filled)) == (True, 2),
        changed == await tasks_app.aget_schedule(caller, "night"),
        await tasks_app.adisable_schedule(caller, "night"),
        await tasks_app.aenable_schedule(caller, "night"),
        [each.name for each in await tasks_app.alist_schedules(caller)] == ["night"],
        await tasks_app.aremove_schedule(caller, "night"),
    ]


async def groups(caller: Any, _: Bench) -> list[Any]:
    members = [NewTask("t", {"n": n}) for n in "ab"]
    group = await tasks_app.acreate_group(caller, members, then=NewTask("then"))
    progress = some(await tasks_app.aget_group(caller, group.id))
    more = await tasks_app.aextend_group(caller, group.id, [NewTask("t")])
    cancelled = await tasks_app.acancel_group(caller, group.id)
    return [
        progress.total == 2,
        cancelled.ids == (*group.task_ids, *more),
        [each.state async for each in tasks_app.agroup_results(caller, group.id)]
        == ["CANCELLED"] * 3,
    ]


async def flows(caller: Any, _: Bench) -> list[Any]:
    flow = tasks_app.Flow("f")
    flow.step("b", "t", needs=flow.step("a", "t", undo="u"))
    made = await tasks_app.acreate_flow(caller, flow)
    more = tasks_app.Flow("more")
    more.step("c", "t", needs="b")
    added = await tasks_app.aextend_flow(caller, made.id, more)
    progress = some(await tasks_app.aget_flow(caller, made.id))
    cancelled = await tasks_app.acancel_flow(caller, made.id)
    again = await tasks_app.arerun_flow(caller, made.id, from_="a")
    undone = await tasks_app.aundo_flow(caller, made.id)
    sent = await tasks_app.asend_event(caller, "order:7/paid")
    paid = await tasks_app.aget_event(caller, "order:7/paid")
    return [
        {each.name: each.task_id for each in progress.steps} == made.task_ids | added,
        [each.id for each in await tasks_app.alist_flows(caller)] == [made.id],
        cancelled.cancelled == 3,
        again == ["a", "b", "c"],
        undone == [],
        sent and [paid] == await tasks_app.alist_events(caller),
    ]


async def jobs(caller: Any, _: Bench) -> list[Any]:
    run = await tasks_app.astart_job(caller, JOB, {"day": "2026-01-01"})
    with pytest.raises(tasks_app.BatchStateError, match="no partition runs"):
        await tasks_app.areplan_job(caller, run.batch_id, "all", divide=2)
    view = some(await tasks_app.aget_job(caller, run.batch_id))
    listed = await tasks_app.alist_jobs(caller)
    running = await tasks_app.astop_job(caller, run.batch_id)
    with pytest.raises(tasks_app.BatchStateError, match="STOPPING"):
        await tasks_app.arestart_job(caller, run.batch_id)
    with pytest.raises(tasks_app.BatchStateError, match="still runs"):
        await tasks_app.aabandon_job(caller, run.batch_id)
    return [run.new, [view.batch] == listed, running == 0]


async def errors(caller: Any, bench: Bench) -> list[Any]:
    (group,) = await tasks_app.alist_errors(caller)
    return [
        await tasks_app.amark_error_known(caller, group.fingerprint, by="ann"),
        await tasks_app.amark_error_unknown(caller, group.fingerprint),
        await tasks_app.afill_fingerprints(caller) == 0,
    ]


async def tasks(caller: Any, _: Bench) -> list[Any]:
    task_id = await acreate_task(caller, "t", biz_key="order:1")
    other = await acreate_task(caller, "t")
    many = await tasks_app.acancel_tasks(caller, biz_key="order:1")
    found = await tasks_app.aget_task(caller, other)
    return [
        many.ids == (task_id,),
        (await tasks_app.aexplain_task(caller, other)).known,
        await tasks_app.acancel_task(caller, other) == "cancelled",
        await tasks_app.arequeue_task(caller, other) == "requeued",
        found is not None,
        found and (await tasks_app.aload_large_values(caller, found)).id == other,
    ]


async def waiting(caller: Any, _: Bench) -> list[Any]:
    task_id = await acreate_task(caller, "t", delay="1h")
    changed = [
        await tasks_app.ahold_task(caller, task_id),
        await tasks_app.areschedule_task(caller, task_id, delay="2h"),
        await tasks_app.areprioritise_task(caller, task_id, 0),
        await tasks_app.amove_task(caller, task_id, "slow"),
        await tasks_app.arelease_task(caller, task_id),
        await tasks_app.adisable_task(caller, task_id),
        await tasks_app.aenable_task(caller, task_id),
        await tasks_app.arun_task_now(caller, task_id),
    ]
    return [answer is tasks_app.Changed.CHANGED for answer in changed]


@pytest.fixture(autouse=True)
def known_here() -> Iterator[None]:
    """As if the job were declared without a registry of its own."""
    JOBS[JOB.name] = JOB
    yield
    del JOBS[JOB.name]


SUBJECTS: list[Work] = [queues, limits, schedules, groups, flows, jobs, errors, tasks, waiting]


def test_every_verb_is_called_here() -> None:
    called = {name for each in SUBJECTS for name in each.__code__.co_names}
    first = {
        name: next(iter(inspect.signature(each).parameters), "")
        for name in tasks_app.__all__
        if inspect.isfunction(each := getattr(tasks_app, name))
    }
    verbs = {name for name in first if first[name] == "session" and f"a{name}" in first}
    elsewhere = {"acreate_tasks"}  # test_raw_connections
    assert {f"a{name}" for name in verbs} - called == elsewhere


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("kind", few(1, ASYNC_KINDS))
def test_each_works_on_each_kind(bench: Bench, kind: Callable[[Bench], Any], subject: Work) -> None:
    if subject is errors:
        bench.raising(ValueError("no"), max_attempts=1)
        bench.run_one()

    async def act() -> list[Any]:
        async with kind(bench) as caller:
            return await subject(caller, bench)

    answers = asyncio.run(act())
    assert answers == [True] * len(answers)


def test_what_a_transaction_of_psycopg_rolls_back_did_not_happen(bench: Bench) -> None:
    async def act() -> None:
        async with await psycopg.AsyncConnection.connect(bench.plain_url) as caller:
            await tasks_app.acreate_group(caller, [NewTask("t")] * 3)
            await tasks_app.apause_queue(caller, "mail")
            await caller.rollback()

    asyncio.run(act())
    assert bench.sql("SELECT count(*) FROM task_pending") == 0
    assert bench.sql("SELECT count(*) FROM task_queue_pause") == 0


def test_with_autocommit_a_verb_is_one_transaction(bench: Bench) -> None:
    """A pause, say, writes a line into the audit, too."""

    async def act() -> None:
        async with async_autocommit(bench) as caller:
            with pytest.raises(psycopg.errors.CheckViolation):
                await tasks_app.apause_queue(caller, "mail")

    bench.sql("ALTER TABLE task_audit ADD CONSTRAINT no CHECK (action <> 'pause')")
    try:
        asyncio.run(act())
    finally:
        bench.sql("ALTER TABLE task_audit DROP CONSTRAINT no")

    assert bench.sql("SELECT count(*) FROM task_queue_pause") == 0


def test_a_group_of_an_async_session_is_hinted_at_when_it_commits(bench: Bench, ear: Ear) -> None:
    async def act() -> list[int]:
        async with bench.async_session() as caller:
            group = await tasks_app.acreate_group(caller, [NewTask("t")] * 2)
            assert told(ear) == []
        return [int(each) for each in group.task_ids]

    assert sorted(asyncio.run(act())) == sorted(told(ear))


@pytest.mark.test_all
def test_more_results_than_a_page_come_in_order(bench: Bench) -> None:
    async def act(kind: Callable[[Bench], Any]) -> bool:
        async with kind(bench) as caller:
            group = await tasks_app.acreate_group(caller, [NewTask("t")] * 2_500)
            await tasks_app.acancel_group(caller, group.id)
            ended = [each.task_id async for each in tasks_app.agroup_results(caller, group.id)]
            return ended == group.task_ids

    assert all(asyncio.run(act(kind)) for kind in ASYNC_KINDS)
