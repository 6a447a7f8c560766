"""Connections of handlers: alive, shared, watched."""

from __future__ import annotations

import secrets
import threading
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import BigInteger, Column, MetaData, String, Table, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import registry

from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tasks_app.runtime.handler_db.lending import IDLE_S
from tasks_app.runtime.handler_db.statements import ends_transaction, stays_in_session
from tasks_app.runtime.worker.child import Child
from tests.clock import until
from tests.runtime.bench import EFFECT, Bench, effect
from tests.runtime.handler_db.twins import twin

PID = text("SELECT pg_backend_pid()")
LARGE = 60_000
"""Bytes of a payload that is fetched on its own."""


def kill(bench: Bench, *pids: int) -> None:
    """End backends, and wait until they are gone."""
    for pid in pids:
        assert bench.sql("SELECT pg_terminate_backend(:pid, 5000)", pid=pid)


def kill_all(bench: Bench) -> None:
    """End all backends but the one that asks, and wait until they are gone."""
    bench.engine.dispose()
    bench.sql(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def write_through(bench: Bench, through: str) -> None:
    """Declare ``t``, whose first statement writes, and ``once``, which does the same once."""

    async def aside(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)
        await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})

    def plain(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)
        getattr(ctx, through).execute(text(EFFECT), {"id": ctx.task_id, "note": ""})

    for name in ("t", "once"):
        function = aside if through == "async" else plain
        bench.handler(name, at_most_once=name == "once")(function)


def carry_out(child: Child, bench: Bench, name: str) -> int:
    """Let the child run one new task, and wait for its end."""
    task_id = bench.create(name)
    child.execute([task_id])
    until(lambda: child.inflight.empty)
    return task_id


THROUGH = pytest.mark.parametrize("through", ["connection", "session", "async"])


@pytest.mark.usefixtures("cold_connections")
@THROUGH
@pytest.mark.parametrize("name", ["t", "once"])
def test_connections_that_die_while_idle_cost_none(bench: Bench, through: str, name: str) -> None:
    write_through(bench, through)
    child = bench.child()
    first = carry_out(child, bench, name)
    kill_all(bench)
    second = carry_out(child, bench, name)
    task = bench.task(second)
    assert (task.state, task.attempt, task.crashes, task.error) == ("SUCCEEDED", 1, 0, None)
    assert bench.runs == [first, second]
    assert bench.effects(second) == 1


@pytest.mark.usefixtures("cold_connections")
@pytest.mark.test_all
@THROUGH
def test_a_connection_idle_for_long_is_asked_before_its_use(bench: Bench, through: str) -> None:
    """As behind a firewall that has forgotten it: until then the socket looks sound."""
    write_through(bench, through)
    with bench.proxy(only=b"INSERT INTO effect") as (proxy, url):
        child = bench.child(url=url)
        carry_out(child, bench, "once")
        idle_since = time.monotonic()
        until(lambda: time.monotonic() > idle_since + IDLE_S)
        proxy.lose_request(b"")

        second = carry_out(child, bench, "once")

        assert proxy.lost == 1
        assert bench.task(second).error is None
        assert (bench.state(second), bench.effects(second)) == ("SUCCEEDED", 1)
        child.stop()


@pytest.mark.usefixtures("cold_connections")
def test_a_scan_at_its_usual_interval_finds_its_connection_not_idle_for_long(bench: Bench) -> None:
    """Else each scan of an idle system would be two transactions."""
    late = timedelta(milliseconds=250)
    assert bench.settings().scan_interval + late < timedelta(seconds=IDLE_S)


@pytest.mark.usefixtures("cold_connections")
class TestTheFirstStatement:
    """On a connection that dies between the look at it and its use."""

    def dies(self, bench: Bench, *, always: bool = False, is_async: bool = False) -> Child:
        """Declare ``t`` and ``once``, which from their second call on find it so."""

        def h(ctx: Any) -> None:
            connection = ctx.connection
            bench.runs.append(ctx.task_id)
            if len(bench.runs) == 2 or (always and len(bench.runs) > 1):
                kill(bench, connection.connection.driver_connection.info.backend_pid)
            connection.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})

        for name in ("t", "once"):
            bench.handler(name, at_most_once=name == "once")(twin(h, is_async=is_async))
        return bench.child(async_connections=1)

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_run_that_did_nothing_runs_again(self, bench: Bench, *, is_async: bool) -> None:
        child = self.dies(bench, is_async=is_async)
        first, second = (carry_out(child, bench, "t") for _ in range(2))
        task = bench.task(second)
        assert (task.state, task.attempt, task.crashes) == ("SUCCEEDED", 1, 0)
        assert bench.runs == [first, second, second]
        assert (bench.effects(second), bench.attempts(second)) == (1, [])

    def test_at_most_once_is_not_run_again_and_names_no_commit(self, bench: Bench) -> None:
        child = self.dies(bench)
        first, second = (carry_out(child, bench, "once") for _ in range(2))
        assert bench.runs == [first, second]
        error = bench.error(second)
        assert error.startswith("connection lost: ")
        assert "before a COMMIT was sent" in error

    def test_one_that_ends_each_of_its_connections_is_suspected(self, bench: Bench) -> None:
        """It is run again once, and then as any other."""
        child = self.dies(bench, always=True)
        first, second = (carry_out(child, bench, "t") for _ in range(2))
        assert bench.runs == [first, second, second]
        assert (bench.state(second), bench.task(second).crashes) == ("PENDING", 1)


@pytest.mark.usefixtures("cold_connections")
def test_a_payload_that_could_not_be_fetched_is_no_run(bench: Bench) -> None:
    """Not even of a task that may run once: its handler was not called."""

    bench.handler("once", at_most_once=True)(lambda ctx, payload: bench.runs.append(ctx.attempt))
    child = bench.child()
    task_id = bench.create("once", {"text": secrets.token_hex(LARGE // 2)})
    killed = threading.Event()

    @event.listens_for(child.database.engine, "before_cursor_execute")
    def _(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().startswith("SELECT p.payload") and not killed.is_set():
            killed.set()
            kill(bench, connection.connection.driver_connection.info.backend_pid)

    child.execute([task_id])
    until(lambda: child.inflight.empty)

    task = bench.task(task_id)
    assert killed.is_set()
    assert (bench.runs, task.state, task.crashes, task.failures) == ([], "PENDING", 0, 0)


@pytest.mark.usefixtures("cold_connections")
@pytest.mark.test_all
@pytest.mark.parametrize("all_die", [True, False])
def test_losing_a_connection_as_idle_ones_die_is_no_guilt(bench: Bench, all_die: bool) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        pid = ctx.connection.execute(PID).scalar_one()
        if all_die:
            kill_all(bench)
        else:
            kill(bench, pid)

    child = bench.child(start=False)
    child.housekeeper.round()  # so that it has a connection, which is idle then
    task_id = bench.create()
    child.execute([task_id])
    child.housekeeper.round()

    task = bench.task(task_id)
    assert (task.state, task.failures, task.crashes) == ("PENDING", 0, 0 if all_die else 1)


@pytest.mark.usefixtures("cold_connections")
def test_who_gets_no_connection_is_not_charged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many are open, and the housekeeper still has its own."""

    def refuse(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError("FATAL: too many connections for role")

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        ctx.connection.execute(PID)

    monkeypatch.setattr(HandlerConnection, "connect", refuse)
    child = bench.child(start=False)
    task_id = bench.create()
    child.execute([task_id])
    child.housekeeper.last_round()

    task = bench.task(task_id)
    assert (task.state, task.failures, task.crashes) == ("PENDING", 0, 0)


@pytest.mark.usefixtures("cold_connections")
@THROUGH
def test_the_outcome_of_an_unanswered_commit_is_unknown(bench: Bench, through: str) -> None:
    write_through(bench, through)
    with bench.proxy(only=b"INSERT INTO effect") as (proxy, url):
        child = bench.child(url=url)
        proxy.lose_request(b"COMMIT\x00")
        task_id = carry_out(child, bench, "once")
        assert proxy.lost == 1
        child.stop()
    assert bench.effects(task_id) == 0
    assert bench.task(task_id).error == ("outcome unknown: The database did not answer the COMMIT.")


@pytest.mark.usefixtures("cold_connections")
def test_whoever_loses_a_connection_spares_the_others_that_were_idle(bench: Bench) -> None:
    """A failover: one error for all engines of a child, not one for each connection."""
    database = bench.database()

    def pids() -> set[int]:
        with database.single() as one, database.begin() as other:
            return {each.execute(PID).scalar_one() for each in (one, other)}

    idle = pids()
    with database.handler_engine.connect() as connection:
        kill(bench, connection.execute(PID).scalar_one())
        with pytest.raises(DBAPIError):
            connection.execute(PID)

    assert pids().isdisjoint(idle)


class Written:
    """A row of ``effect``, mapped by a test."""

    def __init__(self, task_id: int, note: str) -> None:
        self.task_id, self.note = task_id, note


def run(bench: Bench, number: int = 3, **options: Any) -> None:
    """Run so many tasks in one child, then look: all its connections are closed."""
    before = _sessions(bench)
    bench.execute([bench.create() for _ in range(number)], **options)
    until(lambda: _sessions(bench) == before)


def _sessions(bench: Bench) -> int:
    """Of clients: an autovacuum comes and goes as it likes."""
    return bench.sql(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend'"
    )


@pytest.mark.usefixtures("cold_connections")
def test_runs_of_one_thread_follow_each_other_on_one_connection(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        through = ctx.session if ctx.task_id % 2 else ctx.connection
        bench.runs.append(through.execute(PID).scalar())

    run(bench, 6)
    assert len(set(bench.runs)) == 1


@pytest.mark.usefixtures("cold_connections")
def test_a_session_has_its_engine_and_works_on_its_threads_connection(bench: Bench) -> None:
    columns = [Column("task_id", BigInteger, primary_key=True), Column("note", String)]
    registry().map_imperatively(Written, Table("effect", MetaData(), *columns))

    @bench.handler()
    def h(ctx: Any) -> None:
        assert ctx.session.get_bind() is child.database.handler_engine
        ctx.session.add(Written(task_id=ctx.task_id, note="of the ORM"))
        ctx.session.flush()
        bench.runs.append(child.database.handler_engine.pool.checkedout())
        ctx.connection.execute(PID)

    child = bench.child()
    ids = [bench.create() for _ in range(3)]

    child.execute(ids)

    assert bench.runs == [1, 1, 1]
    assert [bench.effects(i) for i in ids] == [1, 1, 1]


@pytest.mark.usefixtures("cold_connections")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda ctx: ctx.connection.execution_options(isolation_level="SERIALIZABLE"),
        lambda ctx: ctx.connection.execute(text("SET statement_timeout = '7s'")),
        lambda ctx: ctx.connection.execute(text("SET LOCAL statement_timeout = '7s'")),
        lambda ctx: ctx.connection.invalidate(),
        lambda ctx: ctx.connection.close(),
        lambda ctx: ctx.session.connection(execution_options={"yield_per": 7}),
    ],
)
def test_what_one_run_sets_no_other_meets(bench: Bench, spoil: Any) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        look = text("SELECT current_setting('statement_timeout')")
        isolation = text("SELECT current_setting('transaction_isolation')")
        seen = [ctx.connection.execute(s).scalar() for s in (look, isolation)]
        bench.runs.append((seen, dict(ctx.connection.get_execution_options())))
        ctx.connection.rollback()
        spoil(ctx)

    run(bench)
    assert bench.runs == [(["0", "read committed"], {})] * 3


@pytest.mark.usefixtures("cold_connections")
def test_a_transaction_that_a_run_left_open_ends_with_it(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.connection.in_transaction())
        effect(ctx)
        raise ValueError

    run(bench)
    assert bench.runs == [False] * 3
    assert bench.sql("SELECT count(*) FROM effect") == 0


@pytest.mark.usefixtures("cold_connections")
def test_threads_have_connections_of_their_own(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.connection.execute(PID).scalar())
        ctx.connection.execute(text("SELECT pg_sleep(0.1)"))
        effect(ctx)

    run(bench, 12, extra_threads=3)
    assert 2 <= len(set(bench.runs)) <= 4
    assert bench.sql("SELECT count(*) FROM effect") == 12


BACKEND = text("SELECT pg_backend_pid()")


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        " commit work",
        "END",
        "/* now */ COMMIT AND CHAIN",
        "-- now\nCOMMIT",
        "ROLLBACK",
        "abort",
        "PREPARE TRANSACTION 'x'",
        "SELECT 1; COMMIT",
        "SELECT 1; -- now\n ROLLBACK; SELECT 2",
    ],
)
def test_the_end_of_the_transaction_is_recognised(statement: str) -> None:
    assert ends_transaction(statement)


@pytest.mark.parametrize(
    "statement",
    ["LOAD 'auto_explain'", "/* why */ load 'x'", "SELECT dblink_connect('x', 'dbname=y')"],
)
def test_what_neither_a_look_finds_nor_a_reset_takes_back_is_recognised(statement: str) -> None:
    assert stays_in_session(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "SAVEPOINT a",
        "RELEASE SAVEPOINT a",
        "ROLLBACK TO SAVEPOINT a",
        "rollback work to a",
        "SELECT 1; ROLLBACK TO a",
        "INSERT INTO settings (key) VALUES ('set')",
        "INSERT INTO notes VALUES ('first; commit')",
        "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN NULL; END $$",
        "UPDATE commits SET n = 1",
        "SELECT ended FROM ends",
        "SELECT load FROM machines",
    ],
)
def test_everyday_statements_say_nothing_of_the_kind(statement: str) -> None:
    assert not ends_transaction(statement)
    assert not stays_in_session(statement)


@pytest.mark.usefixtures("cold_connections")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("statement", "stays"),
    [
        ("SELECT 1", True),
        ("SET LOCAL lock_timeout = 7", True),
        ("SET lock_timeout = 7", True),
        ("CREATE TEMP TABLE left_behind ()", False),
        ("LOAD 'plpgsql'", False),
        ("SELECT 1 AS dblink_connect", False),
    ],
)
def test_a_connection_is_lent_again_only_as_it_was(
    bench: Bench, statement: str, *, stays: bool, is_async: bool
) -> None:
    """Settings are taken back; what cannot be costs the connection."""

    def h(ctx: Any) -> int:
        ctx.session.execute(text(statement))
        return int(ctx.session.scalar(BACKEND))

    bench.handler()(twin(h, is_async=is_async))
    ids = [bench.create() for _ in range(2)]
    bench.drain(async_connections=1)
    first, second = (bench.task(task_id).result for task_id in ids)
    assert bench.states(ids) == ["SUCCEEDED"] * 2
    assert (first == second) is stays


def test_a_thread_gets_no_session_when_the_task_is_over(bench: Bench) -> None:
    kept: list[Any] = []

    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)
        kept.extend([ctx, ctx.session])

    task_id = bench.run_one()
    context, session = kept

    with pytest.raises(RuntimeError, match="The run is over"):
        _ = context.session
    with pytest.raises(Exception, match="permanently closed"):
        session.execute(text("SELECT 1"))
    assert bench.effects(task_id) == 1
