"""Connections that callers hand in, and our own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.errors import InvalidSqlStatementName
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tasks_app import (
    InvalidTaskError,
    NewTask,
    acancel_task,
    acreate_group,
    acreate_task,
    acreate_tasks,
    aexplain_task,
    aget_task,
    arequeue_task,
    cancel_group,
    cancel_task,
    create_group,
    create_task,
    create_tasks,
    explain_task,
    get_group,
    get_task,
    requeue_task,
    unblock_task,
)
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_group
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import (
    Remedy,
    is_lock_limit,
    is_lost,
    is_stale_plan,
    is_unanswered,
    remedy_for,
)
from tests.factory import claimer, do, ending, pending_task, pool_of_task, some
from tests.runtime.bench import Bench
from tests.runtime.hints.ear import Ear, told
from tests.runtime.refusing import STATEMENTS, WITH_BROKER, Refusals, endure, get_over


@contextmanager
def session(bench: Bench) -> Iterator[Any]:
    with Session(bench.engine) as made, made.begin():
        yield made


@contextmanager
def connection(bench: Bench) -> Iterator[Any]:
    with bench.engine.begin() as made:
        yield made


@contextmanager
def scoped(bench: Bench) -> Iterator[Any]:
    """As Flask-SQLAlchemy's ``db.session``."""
    registry = scoped_session(sessionmaker(bench.engine))
    yield registry
    registry.commit()
    registry.remove()


@contextmanager
def raw(bench: Bench) -> Iterator[Any]:
    with psycopg.connect(bench.plain_url) as made:
        yield made


@contextmanager
def odd_raw(bench: Bench) -> Iterator[Any]:
    """Whose owner reads rows and types otherwise, as Django does, in odd styles."""
    styles = "-c intervalstyle=iso_8601 -c datestyle=SQL,DMY -c timezone=Asia/Kolkata"
    with psycopg.connect(bench.plain_url, row_factory=dict_row, options=styles) as made:
        for kind in ("jsonb", "timestamptz", "int8", "bool", "interval", "text"):
            made.adapters.register_loader(kind, TextLoader)
        set_json_loads(lambda _: 1 / 0, made)
        yield made


@contextmanager
def autocommit(bench: Bench) -> Iterator[Any]:
    with psycopg.connect(bench.plain_url, autocommit=True) as made:
        yield made


@contextmanager
def pipeline(bench: Bench) -> Iterator[Any]:
    with psycopg.connect(bench.plain_url) as made, made.pipeline():
        yield made


KINDS = [session, connection, scoped, raw, odd_raw, autocommit, pipeline]


@pytest.mark.parametrize("kind", KINDS)
def test_each_verb_takes_what_create_task_takes(bench: Bench, kind: Callable[[Bench], Any]) -> None:
    with kind(bench) as caller:
        task_id = create_task(caller, "t", {"n": [1]}, biz_key="order:1", unique_key="k")
        found = some(get_task(caller, task_id))
        answers = [
            get_task(caller, 2**62),
            explain_task(caller, task_id).known,
            cancel_task(caller, task_id, by="ann"),
            explain_task(caller, task_id).known,
            requeue_task(caller, task_id),
            requeue_task(caller, task_id),
            cancel_task(caller, 2**62),
        ]

    assert answers == [
        *(None, True, "cancelled", True),
        *("requeued", "still pending", "not found"),
    ]
    assert (found.payload, found.biz_key, found.due_at.utcoffset() is not None) == (
        {"n": [1]},
        "order:1",
        True,
    )
    assert bench.sql("SELECT array_agg(action ORDER BY id) FROM task_audit") == [
        "cancel",
        "requeue",
    ]
    assert bench.state(task_id) == "PENDING"


@asynccontextmanager
async def async_connection(bench: Bench) -> Any:
    async with bench.async_engine() as engine, engine.begin() as made:
        yield made


@asynccontextmanager
async def async_scoped(bench: Bench) -> Any:
    async with bench.async_engine() as engine:
        made = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        yield made
        await made.commit()
        await made.remove()


@asynccontextmanager
async def asyncpg_session(bench: Bench) -> Any:
    """As in an application that has SQLAlchemy on asyncpg."""
    engine = create_async_engine(make_url(bench.url).set(drivername="postgresql+asyncpg"))
    async with AsyncSession(engine) as made, made.begin():
        yield made
    await engine.dispose()


@asynccontextmanager
async def async_raw(bench: Bench) -> Any:
    async with await psycopg.AsyncConnection.connect(bench.plain_url) as made:
        for kind in ("jsonb", "timestamptz", "int8"):
            made.adapters.register_loader(kind, TextLoader)
        yield made


@asynccontextmanager
async def async_autocommit(bench: Bench) -> Any:
    url = bench.plain_url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as made:
        yield made


ASYNC_KINDS = [
    *(Bench.async_session, async_connection, async_scoped, asyncpg_session),
    *(async_raw, async_autocommit),
]


@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_each_verb_has_a_twin_for_async_callers(
    bench: Bench, kind: Callable[[Bench], AbstractAsyncContextManager[Any]]
) -> None:
    async def act() -> list[Any]:
        async with kind(bench) as caller:
            task_id = await acreate_task(caller, "t", {"n": [1]})
            found = some(await aget_task(caller, task_id))
            return [
                found.payload,
                (await aexplain_task(caller, task_id)).known,
                await acancel_task(caller, task_id),
                await acancel_task(caller, task_id),
                await arequeue_task(caller, task_id),
                await acancel_task(caller, 2**62),
            ]

    assert asyncio.run(act()) == [
        *({"n": [1]}, True, "cancelled", "already over", "requeued", "not found")
    ]
    assert bench.sql("SELECT count(*) FROM task_pending") == 1
    assert bench.sql("SELECT count(*) FROM task_audit") == 2


def test_what_a_transaction_of_psycopg_rolls_back_did_not_happen(bench: Bench) -> None:
    task_id = bench.create()
    with psycopg.connect(bench.plain_url) as caller:
        cancel_task(caller, task_id)
        caller.rollback()
    assert bench.state(task_id) == "PENDING"
    assert bench.sql("SELECT count(*) FROM task_audit") == 0


def test_with_autocommit_a_verb_is_one_transaction(bench: Bench) -> None:
    """A requeue, say, inserts and deletes, and writes a line into the audit."""
    task_id = bench.create()
    with autocommit(bench) as caller:
        cancel_task(caller, task_id)
        bench.sql("ALTER TABLE task_audit ADD CONSTRAINT no CHECK (action <> 'requeue')")
        try:
            with pytest.raises(psycopg.errors.CheckViolation):
                requeue_task(caller, task_id)
        finally:
            bench.sql("ALTER TABLE task_audit DROP CONSTRAINT no")

    assert bench.state(task_id) == "CANCELLED"


def test_a_scoped_session_hints_when_it_commits(bench: Bench, ear: Ear) -> None:
    with scoped(bench) as caller:
        task_id = create_task(caller, "t")
        group = create_group(caller, [NewTask("t")])
        assert told(ear) == []
    assert sorted(told(ear)) == [task_id, *group.task_ids]


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: get_task(s, "x"), "task_id is 'x'. Allowed: the integer that its creation"),
    (lambda s: get_task(s, 2**63), "task_id is 9223372036854775808. Allowed"),
    (lambda s: get_task(s, True), "task_id is True. Allowed"),
    (lambda s: explain_task(s, None), "task_id is of type NoneType. Allowed"),
    (lambda s: cancel_task(s, 1.5), "task_id is 1.5. Allowed"),
    (lambda s: requeue_task(s, "1"), "task_id is '1'. Allowed"),
    (lambda s: unblock_task(s, "1"), "task_id is '1'. Allowed"),
    (lambda s: get_group(s, "1"), "group_id is '1'. Allowed"),
    (lambda s: cancel_group(s, "1"), "group_id is '1'. Allowed"),
    (lambda s: create_tasks(s, NewTask("t")), "tasks is of type NewTask. Allowed: a list of NewTa"),
    (lambda s: create_tasks(s, [NewTask("t"), ("t", {})]), "tasks[1] is of type tuple. Allowed: a"),
    (lambda s: create_tasks(s, ["t"]), "tasks[0] is of type str. Allowed: a list of NewTask"),
    (lambda s: create_tasks(s, "t"), "tasks[0] is of type str. Allowed: a list of NewTask"),
    (lambda s: create_tasks(s, (NewTask("t") for _ in "a")), "tasks is of type generator. Allowed"),
    (lambda s: create_tasks(s, None), "tasks is of type NoneType. Allowed: a list of NewTask"),
    (lambda s: create_group(s, NewTask("t")), "tasks is of type NewTask. Allowed: a list of New"),
    (lambda s: create_group(s, [("t",)]), "tasks[0] is of type tuple. Allowed: a list of NewTask"),
    (lambda s: create_group(s, [NewTask("t")], then="t"), "then is of type str. Allowed: a NewT"),
    (lambda s: create_task(s, print), "task is a function that is no handler. Allowed: a task"),
    (lambda s: create_task(s, "t", 5), "payload is of type int. Allowed: a dict with string keys"),
]


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_wrong_arguments_are_refused_and_the_transaction_lives_on(
    bench: Bench, call: Callable[[Any], Any], said: str
) -> None:
    with session(bench) as caller:
        create_task(caller, "before")
        with pytest.raises(InvalidTaskError) as refused:
            call(caller)
        create_task(caller, "behind")
    assert str(refused.value).startswith(said)
    assert bench.sql("SELECT array_agg(name ORDER BY id) FROM task_pending") == ["before", "behind"]


ASYNC_WRONG: list[tuple[Callable[[Any], Awaitable[Any]], str]] = [
    (lambda s: aget_task(s, "x"), "task_id is 'x'"),
    (lambda s: aexplain_task(s, "x"), "task_id is 'x'"),
    (lambda s: acancel_task(s, "x"), "task_id is 'x'"),
    (lambda s: arequeue_task(s, "x"), "task_id is 'x'"),
    (lambda s: acreate_tasks(s, NewTask("t")), "tasks is of type NewTask"),
    (lambda s: acreate_group(s, NewTask("t")), "tasks is of type NewTask"),
]


@pytest.mark.parametrize(("call", "said"), ASYNC_WRONG, ids=range(6))
def test_so_are_those_of_async_calls(
    bench: Bench, call: Callable[[Any], Awaitable[Any]], said: str
) -> None:
    async def act() -> None:
        async with bench.async_session() as caller:
            with pytest.raises(InvalidTaskError, match=said):
                await call(caller)
            await acreate_task(caller, "behind")

    asyncio.run(act())
    assert bench.sql("SELECT count(*) FROM task_pending") == 1


def test_who_passes_another_kind_is_told_which_are_taken(bench: Bench) -> None:
    with pytest.raises(TypeError, match=r"An Engine isn't a Session.*acreate_task, aget_task"):
        get_task(bench.engine, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"A Session isn't an AsyncSession.*create_task, get_task"):
        asyncio.run(aget_task(Session(bench.engine), 1))  # type: ignore[arg-type]
    engine = create_engine(bench.url)
    with engine.connect() as caller, pytest.raises(TypeError, match="async session"):
        asyncio.run(acancel_task(caller, 1))  # type: ignore[arg-type]
    engine.dispose()


OFTEN = 12
"""More often than it takes psycopg to prepare a statement."""
OPTIONS = text("""
    SELECT current_setting('enable_seqscan'), current_setting('jit'),
        current_setting('lock_timeout')
""")
OURS, THE_SERVERS = ("off", "off", "1s"), ("on", "on", "0")


@pytest.fixture(params=[True, False], ids=["prepared", "for a pooler"])
def database(request: pytest.FixtureRequest, database_url: str) -> Iterator[Database]:
    """Both kinds."""
    database = Database(database_url, prepare=request.param)
    yield database
    database.dispose()


def work(database: Database, engine: Engine) -> None:
    """Claim and settle a task often; between two transactions everybody else uses the server."""
    for _ in range(OFTEN):
        task_id = do(engine, pending_task)
        with database.begin() as connection:
            (task,) = claim(connection, [task_id], claimer(), uuid4())
        with database.single() as connection:
            settle_group(connection, [ending(task)])
        with database.engine.connect() as connection:
            connection.connection.driver_connection.pgconn.exec_(b"DISCARD ALL")
        assert do(engine, pool_of_task, task_id) == "completed SUCCEEDED"


def test_behind_a_pooler_no_statement_hangs_on_its_connection(
    database: Database, engine: Engine, request: pytest.FixtureRequest
) -> None:
    if "prepared" in request.node.name:
        with pytest.raises(DBAPIError) as raised:
            work(database, engine)
        assert isinstance(raised.value.orig, InvalidSqlStatementName)
    else:
        work(database, engine)


@pytest.mark.parametrize("way", ["begin", "single"])
def test_our_settings_hold_in_all_that_we_do(database: Database, way: str) -> None:
    """Without its lock_timeout a housekeeper that waits for somebody's lock looks dead."""
    for _ in range(2):
        with getattr(database, way)() as connection:
            assert connection.execute(OPTIONS).one() == OURS


def test_our_settings_do_not_outlive_a_pooler(
    database: Database, request: pytest.FixtureRequest
) -> None:
    with database.begin() as connection:
        connection.execute(OPTIONS)
    with database.engine.connect() as connection:
        server = connection.connection.driver_connection
        found = server.execute(OPTIONS.text).fetchone()
    assert found == (OURS if "prepared" in request.node.name else THE_SERVERS)


def test_how_the_sql_of_handlers_is_planned_is_their_own_business(database: Database) -> None:
    with database.handler_engine.connect() as connection:
        assert connection.execute(OPTIONS).one() == THE_SERVERS


@pytest.mark.parametrize("way", ["begin", "single"])
def test_a_connection_that_dies_fails_once(database: Database, engine: Engine, way: str) -> None:
    def work() -> None:
        with getattr(database, way)() as connection:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
            connection.execute(OPTIONS)

    with pytest.raises(DBAPIError) as raised:
        work()

    assert is_unanswered(raised.value)
    assert is_lost(raised.value)
    with getattr(database, way)() as connection:
        assert connection.execute(OPTIONS).one() == OURS


def ask_pid(database: Database) -> int:
    with database.single() as connection:
        pid: int = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        return pid


def test_a_connection_for_single_statements_stays_at_hand(database_url: str) -> None:
    database, lent = Database(database_url), list[object]()
    event.listen(database.engine, "checkout", lambda *_: lent.append(_))
    assert len({ask_pid(database) for _ in range(3)}) == 1
    assert len(lent) == 1
    database.dispose()
    assert database.engine.pool.checkedout() == 0


def test_it_is_one_and_who_finds_it_taken_uses_the_pool(database_url: str) -> None:
    database = Database(database_url)
    with database.single() as first, database.single() as second:
        assert first.connection.driver_connection is not second.connection.driver_connection
    assert database.engine.pool.checkedout() == 1
    with suppress(DBAPIError), database.single() as connection:
        connection.execute(text("SELECT 1 / 0"))
    assert database.engine.pool.checkedout() == 0  # whatever state it is in
    database.dispose()


SET = text("SELECT current_setting('search_path'), current_setting('app.tenant')")


@pytest.mark.parametrize("how", ["URL", "environment"])
def test_options_of_the_url_and_of_the_environment_hold_on_every_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    options = "-c search_path=elsewhere -c app.tenant=7 -c enable_seqscan=on -c jit=on"
    url = make_url(database_url)
    if how == "URL":
        url = url.update_query_dict({"options": options})
    else:
        monkeypatch.setenv("PGOPTIONS", options)
    database = Database(url.render_as_string(hide_password=False))
    migrating = database.migration_engine()
    for engine in (database.engine, database.handler_engine, migrating):
        with engine.connect() as connection:
            assert connection.execute(SET).one() == ("elsewhere", "7")
    with database.engine.connect() as connection:
        assert connection.execute(OPTIONS).one() == OURS
    migrating.dispose()
    database.dispose()


KINDS_OF_REFUSALS = ("40P01", "42501", "53100", "57P01")
"""Of codes: what passes by itself, what an operator mends, a database that is unavailable to all
while the session lives, and one whose session is over."""


def test_errors_of_other_drivers_say_nothing_of_our_server() -> None:
    """asyncpg's have a SQLSTATE, and nothing that tells which function raised them."""

    class LockNotAvailableError(Exception):
        sqlstate = "55P03"

    assert not is_lock_limit(LockNotAvailableError())
    assert not is_stale_plan(LockNotAvailableError())


@pytest.mark.test_all
@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("code", ["40P01", "57P01"])
def test_twice(bench: Bench, refusals: Refusals, code: str, name: str) -> None:
    get_over(bench, refusals, code, name)


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("40P01", "settle successes"),
        ("42501", "claim"),
        ("53100", "heartbeat"),
        ("57P01", "claim next"),
    ],
)
def test_for_a_while(bench: Bench, refusals: Refusals, code: str, name: str) -> None:
    endure(bench, refusals, code, name)


@pytest.mark.test_all
@pytest.mark.parametrize("code", KINDS_OF_REFUSALS)
def test_all_are_refused_for_a_while(bench: Bench, refusals: Refusals, code: str) -> None:
    endure(bench, refusals, code, *WITH_BROKER)


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        (errors.DeadlockDetected, Remedy.REPEAT),
        (errors.InsufficientPrivilege, Remedy.REPEAT),
        (errors.InternalError_, Remedy.REPEAT),
        (errors.ReadOnlySqlTransaction, Remedy.SPARE),
        (errors.DiskFull, Remedy.SPARE),
        (errors.IdleInTransactionSessionTimeout, Remedy.SPARE),
        (errors.AdminShutdown, Remedy.SPARE),
        (psycopg.OperationalError, Remedy.SPARE),
        (psycopg.ProgrammingError, Remedy.REPEAT),
        (errors.UntranslatableCharacter, Remedy.REPLACE),
        (errors.CheckViolation, Remedy.REPLACE),
        (errors.ProgramLimitExceeded, Remedy.REPLACE),
    ],
)
def test_the_remedy_is_declared_by_sqlstate(state: type[psycopg.Error], remedy: Remedy) -> None:
    error = DBAPIError.instance("", None, state(""), psycopg.Error)
    assert remedy_for(error) is remedy
