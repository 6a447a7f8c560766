"""Connections of async handlers wait in the event loop, and are plain ones in all else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg.generators import notifies
from sqlalchemy import text
from sqlalchemy.exc import MissingGreenlet
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from tests.clock import eventually, until
from tests.runtime.bench import EFFECT, Bench

pytestmark = pytest.mark.timeout(60, method="thread")

INSERT = "INSERT INTO effect (task_id, note) VALUES (%s, '')"
LOCK = "SELECT pg_advisory_xact_lock(4711)"
WAITS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


async def driver_of(ctx: Any) -> Any:
    return await (await ctx.session.connection()).run_sync(
        lambda connection: connection.connection.driver_connection
    )


def test_while_one_waits_for_the_server_others_go_on(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any, payload: dict[str, bool]) -> None:
        if payload["waits"]:
            await ctx.session.execute(text(LOCK))
        else:
            await eventually(lambda: bench.sql(WAITS) == 1)
        bench.runs.append(ctx.task_id)

    ids = [bench.create(payload={"waits": waits}) for waits in (True, False)]
    with bench.engine.begin() as connection:
        connection.execute(text(LOCK))
        thread = bench.beside(lambda: bench.execute(ids))
        until(lambda: bench.runs == ids[1:])
    thread.join(10)

    assert bench.states(ids) == ["SUCCEEDED"] * 2


def test_coroutines_of_a_handler_take_turns(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any) -> None:
        driver = await driver_of(ctx)
        await asyncio.gather(
            *(greenlet_spawn(driver.execute, INSERT, (ctx.task_id,)) for _ in range(5))
        )

    task_id = bench.execute_one()
    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 5)


def test_who_is_cancelled_while_it_waits_for_its_turn_holds_up_nobody(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any) -> None:
        driver = await driver_of(ctx)
        assert driver.lock.acquire()
        waits, follows = (
            asyncio.ensure_future(greenlet_spawn(driver.execute, INSERT, (ctx.task_id,)))
            for _ in range(2)
        )
        await asyncio.sleep(0)
        assert not await greenlet_spawn(driver.lock.acquire, timeout=0)
        waits.cancel()
        driver.lock.release()
        with pytest.raises(asyncio.CancelledError):
            await waits
        await follows
        assert driver.lock.acquire(blocking=False)
        driver.lock.release()

    task_id = bench.execute_one()

    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)


@pytest.mark.parametrize("through", ["session", "driver"])
def test_a_statement_ends_with_its_handlers_cancellation(bench: Bench, through: str) -> None:
    """Its connection is not used again."""

    @bench.handler("waits", max_attempts=1)
    async def waits(ctx: Any) -> None:
        driver = await driver_of(ctx)
        statement = (
            ctx.session.execute(text(LOCK))
            if through == "session"
            else greenlet_spawn(driver.execute, LOCK)
        )
        waiting = asyncio.ensure_future(statement)
        await eventually(lambda: bench.sql(WAITS) == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert driver.closed
        await eventually(lambda: bench.sql(WAITS) == 0)
        bench.runs.append(ctx.task_id)

    @bench.handler("next")
    async def following(ctx: Any) -> None:
        await executed(ctx)

    ids = [bench.create("waits"), bench.create("next")]
    with bench.engine.begin() as connection:
        connection.execute(text(LOCK))
        bench.execute(ids, async_concurrency=1, async_connections=1)

    assert bench.runs == ids[:1]
    assert bench.states(ids) == ["FAILED", "SUCCEEDED"]
    assert "gave up a statement on it and went on" in bench.error(ids[0])


def test_rows_can_be_streamed(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any) -> int:
        rows = await ctx.session.stream(text("SELECT generate_series(1, 3000)"))
        return sum([row[0] async for row in rows])

    task_id = bench.execute_one()
    assert bench.task(task_id).result == 3000 * 3001 // 2


def test_outside_of_a_greenlet_nothing_is_sent(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any) -> None:
        driver = await driver_of(ctx)
        with pytest.raises(MissingGreenlet, match="run_sync"):
            driver.execute(INSERT, (ctx.task_id,))

    task_id = bench.execute_one()
    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 0)


async def written(ctx: Any) -> None:
    ctx.write(INSERT, (ctx.task_id,))


async def executed(ctx: Any) -> None:
    await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})


async def begun(ctx: Any) -> None:
    await ctx.session.begin()


@pytest.mark.parametrize("second", [None, written, executed, begun])
@pytest.mark.parametrize("first", [written, executed])
def test_what_follows_a_commit_is_another_transaction(
    bench: Bench,
    first: Callable[[Any], Awaitable[None]],
    second: Callable[[Any], Awaitable[None]] | None,
) -> None:
    @bench.handler(max_attempts=1)
    async def h(ctx: Any, payload: dict[str, bool]) -> None:
        await first(ctx)
        await ctx.commit()
        if second is not None:
            await second(ctx)
        if payload["fails"]:
            raise ValueError

    ids = [bench.create(payload={"fails": fails}) for fails in (True, False)]
    bench.execute(ids)

    both = 1 + (second in {written, executed})
    assert bench.states(ids) == ["FAILED", "SUCCEEDED"]
    assert [bench.effects(task_id) for task_id in ids] == [1, both]


async def never(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


def test_a_cancelled_connect_may_go_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    @bench.handler(max_attempts=1)
    async def h(ctx: Any) -> None:
        connects = asyncio.ensure_future(ctx.session.connection())
        await asyncio.sleep(0)
        connects.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connects
        monkeypatch.undo()
        await executed(ctx)

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", never)
    task_id = bench.execute_one()

    assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)


@pytest.mark.parametrize("close", ["close", "invalidate"])
def test_who_waits_hears_that_its_connection_was_closed(bench: Bench, close: str) -> None:
    """And the number of its socket, which another has at once, is watched for that one alone."""

    @bench.handler("waits", max_attempts=1)
    async def waits(ctx: Any) -> None:
        connection = await ctx.session.connection()
        driver = await driver_of(ctx)
        waiting = asyncio.ensure_future(ctx.session.execute(text(LOCK)))
        await eventually(lambda: bench.sql(WAITS) == 1)
        await eventually(lambda: driver._watched is not None)
        if close == "close":
            driver.close()
        else:
            await connection.invalidate()
        with pytest.raises(Exception, match="closed"):
            await waiting
        bench.runs.append(ctx.task_id)

    @bench.handler("next")
    async def following(ctx: Any) -> None:
        await executed(ctx)

    ids = [bench.create("waits"), *(bench.create("next") for _ in range(3))]
    with bench.engine.begin() as connection:
        connection.execute(text(LOCK))
        bench.execute(ids, async_concurrency=1, async_connections=1)

    assert bench.runs == ids[:1]
    assert bench.states(ids) == ["FAILED", *["SUCCEEDED"] * 3]
    assert "closed ctx.connection" in bench.error(ids[0])


def test_who_gives_up_a_statement_and_sends_another_is_charged(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    async def h(ctx: Any) -> None:
        driver = await driver_of(ctx)
        waiting = asyncio.ensure_future(greenlet_spawn(driver.execute, LOCK))
        await eventually(lambda: bench.sql(WAITS) == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await executed(ctx)

    task_id = bench.create()
    with bench.engine.begin() as connection:
        connection.execute(text(LOCK))
        bench.execute([task_id])

    assert (bench.state(task_id), bench.task(task_id).failures) == ("FAILED", 1)


def test_what_a_run_left_waiting_for_a_connection_gets_none(bench: Bench) -> None:
    left: list[asyncio.Future[Any]] = []

    @bench.handler("holds")
    async def holds(ctx: Any) -> None:
        await executed(ctx)
        await eventually(lambda: bool(left))
        await eventually(lambda: bench.state(ids[1]) != "RUNNING")

    @bench.handler("leaves", max_attempts=1)
    async def leaves(ctx: Any) -> None:
        left.append(asyncio.ensure_future(ctx.session.execute(text(LOCK))))
        await asyncio.sleep(0)
        raise ValueError

    @bench.handler("next")
    async def following(ctx: Any) -> None:
        await asyncio.wait(left)
        await executed(ctx)

    ids = [bench.create(name) for name in ("holds", "leaves", "next")]
    bench.execute(ids, async_concurrency=3, async_connections=1)

    assert bench.states(ids) == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert isinstance(left[0].exception(), Exception)


@pytest.mark.usefixtures("cold_connections")
def test_who_leaves_a_wait_for_notifications_keeps_no_answer_from_others(bench: Bench) -> None:
    """The next connection has the number of its socket."""
    left: list[asyncio.Future[Any]] = []
    sockets: list[int] = []

    @bench.handler("leaves", max_attempts=1)
    async def leaves(ctx: Any) -> None:
        driver = await driver_of(ctx)
        sockets.append(driver.pgconn.socket)

        def listen() -> None:  # as psycopg's notifies(), for longer
            with driver.lock:
                driver.wait(notifies(driver.pgconn), interval=60.0)

        left.append(asyncio.ensure_future(greenlet_spawn(listen)))
        await asyncio.sleep(0)

    @bench.handler("next")
    async def following(ctx: Any) -> None:
        driver = await driver_of(ctx)
        sockets.append(driver.pgconn.socket)
        waiting = asyncio.ensure_future(ctx.session.execute(text(LOCK)))
        await eventually(lambda: bench.sql(WAITS) == 1)
        holder.rollback()
        await waiting

    ids = [bench.create("leaves"), bench.create("next")]
    with bench.engine.connect() as holder:
        holder.execute(text(LOCK))
        bench.execute(ids, async_concurrency=1, async_connections=1)

    assert sockets[0] == sockets[1]
    assert bench.states(ids) == ["FAILED", "SUCCEEDED"]
    with pytest.raises(psycopg.OperationalError):
        left[0].result()


def test_a_wait_for_notices_rests_the_loop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    @bench.handler()
    async def h(ctx: Any) -> int:
        driver, watched = await driver_of(ctx), list[int]()
        loop = asyncio.get_running_loop()
        known = loop.add_reader
        monkeypatch.setattr(
            loop, "add_reader", lambda *told: (watched.append(1), known(*told))[1], raising=False
        )
        waits = asyncio.ensure_future(greenlet_spawn(lambda: list(driver.notifies())))
        for _ in range(100):
            await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        return len(watched)

    task_id = bench.execute_one()

    assert int(bench.task(task_id).result or 0) < 10


def test_threads_that_handlers_keep_busy_hold_up_no_connection(bench: Bench) -> None:
    over = threading.Event()

    @bench.handler("busy")
    async def busy(ctx: Any) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(None, over.wait, 10) for _ in range(40)))

    @bench.handler("next")
    async def following(ctx: Any) -> None:
        await executed(ctx)
        over.set()

    ids = [bench.create("busy"), bench.create("next")]
    bench.execute(ids)

    assert bench.states(ids) == ["SUCCEEDED"] * 2


def test_its_session_names_its_engine(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any) -> None:
        assert isinstance(ctx.session.bind, AsyncEngine)
        assert ctx.session.get_bind() is ctx.session.bind.sync_engine

    task_id = bench.execute_one()
    assert bench.state(task_id) == "SUCCEEDED"
