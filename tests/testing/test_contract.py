"""A run in the transaction of a test ends as a worker's does, whatever its handler does there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.error_text import cause_of
from tasks_app.runtime.api.producer import NewTask, create_task, create_tasks
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.testing import adrain, arun, drain, run
from tests.runtime import test_odd_handlers as odd
from tests.runtime.handler_db.twins import twin
from tests.runtime.hints.ear import Ear, ear, told  # noqa: F401  a fixture
from tests.runtime.test_odd_handlers import Odd, Run
from tests.testing.conftest import in_async_session
from tests.testing.test_drain import Remark
from tests.tiers import few

TEST = "INSERT INTO effect VALUES (0, 'of the test')"
ROWS = text("SELECT task_id, count(*) FROM effect GROUP BY 1")
Ended = dict[str, tuple[str, int | None]]
"""By handler: its error, and the rows that it wrote and that stand."""


def own_block(run: Run) -> None:
    with run.ctx.session.begin():
        odd.write(run)


def own_session(run: Run) -> None:
    with Session(run.ctx.connection) as session:
        session.execute(text(odd.WRITE), run.values)
        session.commit()


def quoted_commit(run: Run) -> None:
    run.ctx.session.execute(text("SELECT 'x'; COMMIT"))


def words_in_texts(run: Run) -> None:
    run.ctx.session.execute(text("DO $$ BEGIN PERFORM 1; END $$"))
    run.ctx.session.execute(text("SELECT 'done; end of it', $a$ ; COMMIT $a$"))


def commit_by_connection(run: Run) -> None:
    run.ctx.connection.commit()


def commit_by_proxy(run: Run) -> None:
    run.ctx.connection.connection.commit()


def commit_by_driver(run: Run) -> None:
    run.driver.commit()


def roll_back_by_connection(run: Run) -> None:
    run.ctx.connection.rollback()


def close_session(run: Run) -> None:
    odd.write(run)
    run.ctx.session.close()


def session_block(run: Run) -> None:
    with run.ctx.session:
        odd.write(run)


def hide_tables(run: Run) -> None:
    run.ctx.session.execute(text("SET search_path TO pg_catalog"))


def serializable(run: Run) -> None:
    run.ctx.connection.execution_options(isolation_level="SERIALIZABLE")


def open_stream(run: Run) -> None:
    rows = run.driver.cursor().stream("SELECT generate_series(1, 5)")
    next(rows)
    run.kept.append((rows, lambda: None))


def open_copy(run: Run) -> None:
    odd.write(run)
    run.driver.pgconn.exec_(b"COPY effect FROM STDIN")


LEFT_OPEN = [open_stream, open_copy]
LASTING = {"prepare", "temp_table", "hold_cursor", "advisory_lock"}
OTHERWISE = {"use_kept", "deferred_row", "broken_deferred_rows", *LASTING}
"""Those of which the page says that they end otherwise, or that need a run before."""
ODD: list[Odd] = [
    *(
        each
        for each in [*odd.HARMLESS, *odd.FAILING, *odd.ENDING]
        if each.__name__ not in OTHERWISE
    ),
    *(own_block, own_session, quoted_commit, words_in_texts, commit_by_connection),
    commit_by_proxy,
    *(commit_by_driver, roll_back_by_connection, close_session, session_block, hide_tables),
    *(serializable, *LEFT_OPEN),
]


async def forgets_await(ctx: AsyncTaskContext) -> None:
    ctx.session.execute(text(odd.WRITE), {"id": ctx.task_id})  # type: ignore[unused-coroutine]


async def async_block(ctx: AsyncTaskContext) -> None:
    async with ctx.session.begin():
        await ctx.session.execute(text(odd.WRITE), {"id": ctx.task_id})


async def async_roll_back(ctx: AsyncTaskContext) -> None:
    for _ in range(2):
        await ctx.session.rollback()
        await ctx.session.execute(text(odd.WRITE), {"id": ctx.task_id})


async def streams(ctx: AsyncTaskContext) -> int:
    rows = await ctx.session.stream(text("SELECT generate_series(1, 5)"))
    return len([row async for row in rows])


def handlers(lane: str) -> Registry:
    """Return each odd act alone, and each between writes."""
    registry, kept = Registry(), list[Any]()

    def declare(name: str, function: Callable[..., Any]) -> None:
        handler(name, registry=registry, max_attempts=1)(function)

    def acting(*acts: Odd) -> Callable[[Any], None]:
        def act(ctx: Any) -> None:
            run = Run(ctx, kept)
            for each in acts:
                each(run)

        return twin(act, is_async=lane == "async")

    for each in ODD:
        if each is not odd.close_driver:  # which a worker does not notice
            declare(each.__name__, acting(each))
        if each not in LEFT_OPEN:  # what comes behind would wait for it
            declare(f"{each.__name__}:between", acting(odd.write, each, odd.write))
    for native in (forgets_await, async_block, async_roll_back, streams) * (lane == "async"):
        declare(native.__name__, native)
    return registry


@pytest.fixture
def outside(engine: Engine) -> Engine:
    """What others see of the table that the handlers write to."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effect (task_id bigint, note text)"))
        connection.execute(text("DELETE FROM effect"))
    return engine


def ended(names: list[str], errors: dict[str, str | None], rows: dict[int, int]) -> Ended:
    """Return how each ended; what a hidden COMMIT has written stands in production only."""
    found: Ended = {}
    for number, name in enumerate(names):
        hides = name.split(":")[0] in {each.__name__ for each in odd.ENDING}
        error = re.sub(r"\d+", "N", errors[name] or "").split("\n")[0]
        error = error.removesuffix(" at character N")  # of a statement that is prepared
        found[name] = error, None if hides else rows.get(number, 0)
    return found


def by_number(rows: Any, ids: list[int]) -> dict[int, int]:
    """Return the rows of each task by its place."""
    return {ids.index(task_id): count for task_id, count in rows if task_id in ids}


def in_production(outside: Engine, url: str, registry: Registry) -> Ended:
    names = [spec.name for spec in registry]
    with outside.begin() as connection:
        ids = [int(each) for each in create_tasks(connection, [NewTask(name) for name in names])]
    drained = drain(Settings(database_url=url), registry=registry)
    with outside.begin() as connection:
        rows = by_number(connection.execute(ROWS).all(), ids)
        connection.execute(text("DELETE FROM effect"))
    return ended(names, {each.name: each.error for each in drained}, rows)


def drained_in(session: Session, registry: Registry) -> Ended:
    names = [spec.name for spec in registry]
    ids = [int(each) for each in create_tasks(session, [NewTask(name) for name in names])]
    drained = drain(session, registry=registry)
    rows = by_number(session.execute(ROWS).all(), ids)
    return ended(names, {each.name: each.error for each in drained}, rows)


async def adrained_in(session: AsyncSession, registry: Registry) -> Ended:
    names = [spec.name for spec in registry]
    new = [NewTask(name) for name in names]
    ids = [int(each) for each in await session.run_sync(create_tasks, new)]
    drained = await adrain(session, registry=registry)
    rows = by_number((await session.execute(ROWS)).all(), ids)
    return ended(names, {each.name: each.error for each in drained}, rows)


@contextmanager
def noting(errors: dict[str, str | None], name: str) -> Iterator[None]:
    errors[name] = None
    try:
        yield
    except Exception as error:
        cause = cause_of(error)
        errors[name] = f"{cause.kind}: {cause.message}".removesuffix(": ")


def run_in(session: Session, registry: Registry) -> Ended:
    names, errors = [spec.name for spec in registry], dict[str, str | None]()
    for number, name in enumerate(names, 1):
        with noting(errors, name):
            run(name, session=session, registry=registry, task_id=number)
    rows = by_number(session.execute(ROWS).all(), list(range(1, len(names) + 1)))
    return ended(names, errors, rows)


async def arun_in(session: AsyncSession, registry: Registry) -> Ended:
    names, errors = [spec.name for spec in registry], dict[str, str | None]()
    for number, name in enumerate(names, 1):
        with noting(errors, name):
            await arun(name, session=session, registry=registry, task_id=number)
    rows = by_number((await session.execute(ROWS)).all(), list(range(1, len(names) + 1)))
    return ended(names, errors, rows)


def differences(found: Ended, expected: Ended) -> list[str]:
    return [
        f"{name}: {found[name]}, not {expected[name]}"
        for name in expected
        if found[name] != expected[name]
    ]


@pytest.mark.parametrize("lane", ["plain", "async"])
def test_a_run_ends_as_in_production(outside: Engine, database_url: str, lane: str) -> None:
    registry = handlers(lane)
    expected = in_production(outside, database_url, registry)

    for way in (drained_in, run_in):
        with outside.connect() as connection, connection.begin(), Session(connection) as session:
            session.execute(text(TEST))
            found = way(session, registry)
            assert session.execute(ROWS).all().count((0, 1)) == 1, way
            assert session.scalar(text("SHOW search_path")) == '"$user", public'
            connection.rollback()
        assert differences(found, expected) == []
    with outside.connect() as connection:
        assert connection.execute(ROWS).all() == []


@pytest.mark.parametrize("lane", few(1, ["async", "plain"]))
def test_an_async_tests_run_ends_as_in_production(
    outside: Engine, database_url: str, lane: str
) -> None:
    registry = handlers(lane)
    expected = in_production(outside, database_url, registry)
    for way in (adrained_in, arun_in):

        async def scene(session: AsyncSession, way: Any = way) -> Ended:
            await session.execute(text(TEST))
            found: Ended = await way(session, registry)
            assert (await session.execute(ROWS)).all().count((0, 1)) == 1
            return found

        assert differences(in_async_session(database_url, scene), expected) == []
    with outside.connect() as connection:
        assert connection.execute(ROWS).all() == []


def test_what_a_run_creates_is_hinted_to_nobody(
    session: Session,
    ear: Ear,  # noqa: F811  the fixture
) -> None:
    registry = Registry()

    @handler("child", registry=registry)
    def child(ctx: TaskContext) -> None: ...
    @handler("parent", registry=registry)
    def parent(ctx: TaskContext) -> None:
        create_task(ctx.session, child)
        ctx.commit()

    create_task(session, parent)
    assert len(drain(session, registry=registry).assert_succeeded()) == 2
    assert told(ear) == []


def test_objects_of_an_async_test_show_what_a_run_wrote(engine: Engine, database_url: str) -> None:
    @handler("change", registry=Registry())
    def change(ctx: TaskContext) -> None:
        ctx.session.execute(text("UPDATE remark SET body = 'new'"))

    async def scene(session: AsyncSession) -> None:
        await session.execute(text("CREATE TABLE remark (id integer, body text)"))
        remark = Remark(id=1, body="old")
        session.add(remark)
        await arun(change, session=session)
        assert remark.body == "new"

    in_async_session(database_url, scene)
