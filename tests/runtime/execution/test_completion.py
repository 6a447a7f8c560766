"""The end of a short run: resets, outcome and COMMIT in one round trip."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.pq import PipelineStatus
from psycopg.waiting import Ready, wait_select
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from tasks_app import create_tasks
from tasks_app.domain.creation.new_task import NewTask
from tasks_app.domain.tasks.records import TaskId
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs import settle_success
from tasks_app.runtime.api.groups import create_group
from tasks_app.runtime.handler_db.ends import RunEnd
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tests.runtime.bench import EFFECT, Bench
from tests.runtime.execution.warm_child import carry_out, warm
from tests.waiting import until
from torture.fault_proxy import FaultProxy

pytestmark = pytest.mark.timeout(60, method="thread")
INSERT = text(EFFECT)
FENCE_LOST = "UPDATE task_pending SET lease_token = gen_random_uuid() WHERE id = :id"


def write(ctx: Any, through: str = "connection") -> None:
    getattr(ctx, through).execute(INSERT, {"id": ctx.task_id, "note": ""})


@pytest.fixture(autouse=True)
def _slow_machine(bench: Bench) -> None:
    bench.tuning["run_times.fast_s"] = 10.0


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was waited for on handlers' connections: each is a round trip."""
    seen: list[str] = []
    plain = psycopg.Connection.wait

    def noted(connection: psycopg.Connection[Any], generator: Any, *more: Any) -> Any:
        if isinstance(connection, HandlerConnection):
            seen.append(getattr(generator, "__name__", ""))
        return plain(connection, generator, *more)

    monkeypatch.setattr(psycopg.Connection, "wait", noted)
    return seen


@pytest.mark.parametrize("through", ["connection", "session"])
def test_a_run_of_one_statement_waits_for_its_begin_for_it_and_for_its_end(
    bench: Bench, waits: list[str], through: str
) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append(len(waits))
        write(ctx, through)

    ids = [bench.create() for _ in range(6)]

    carry_out(bench, ids)

    begin, statement, end = 1, 1, 1
    waited = [b - a for a, b in zip(bench.runs[2:], bench.runs[3:], strict=False)]
    assert waited == [begin + statement + end] * 3
    assert [bench.effects(i) for i in ids] == [1] * 6
    assert bench.states(ids) == ["SUCCEEDED"] * 6


@pytest.mark.parametrize("through", ["connection", "session"])
def test_a_connection_that_was_lent_and_not_used_is_lent_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    made: list[object] = []
    known = HandlerConnection.be_template
    monkeypatch.setattr(
        HandlerConnection, "be_template", lambda driver: (made.append(driver), known(driver))
    )

    @bench.handler()
    def h(ctx: Any) -> None:
        getattr(ctx, through)

    ids = [bench.create() for _ in range(6)]

    carry_out(bench, ids)

    assert bench.states(ids) == ["SUCCEEDED"] * 6
    assert len(made) <= 1


@pytest.mark.parametrize("through", ["connection", "session"])
@pytest.mark.parametrize("wrote", ["connection", "session"])
def test_what_a_run_wrote_the_next_one_sees(bench: Bench, wrote: str, through: str) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        count = getattr(ctx, through).execute(text("SELECT count(*) FROM effect"))
        bench.runs.append(count.scalar_one())
        write(ctx, wrote)

    carry_out(bench, [bench.create() for _ in range(12)])

    assert bench.runs == list(range(12))


def test_nothing_is_written_outside_of_a_transaction_behind_a_commit_that_fails(
    bench: Bench,
) -> None:
    bench.sql("CREATE TABLE late (i bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    bench.at_end(lambda: bench.sql("DROP TABLE late"))

    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        write(ctx)  # behind a COMMIT that failed it must not stand by itself
        ctx.connection.execute(text("INSERT INTO late VALUES (:i)"), {"i": payload["n"] // 2})
        if payload["n"] in {8, 10}:
            raise ValueError

    ids = [bench.create(payload={"n": n}) for n in range(13)]

    carry_out(bench, ids)

    fine = [0, 2, 4, 6, 9, 11, 12]
    assert [n for n, i in enumerate(ids) if bench.effects(i)] == fine
    assert [n for n, state in enumerate(bench.states(ids)) if state == "SUCCEEDED"] == fine


def _stream(connection: Any, values: dict[str, Any]) -> None:
    driver = connection.connection.driver_connection
    assert list(driver.cursor().stream("SELECT 1")) == [(1,)]
    connection.execute(INSERT, values)


def _copy(connection: Any, values: dict[str, Any]) -> None:
    driver = connection.connection.driver_connection
    with driver.cursor().copy("COPY effect FROM STDIN") as copy:
        copy.write_row([*values.values()])
    connection.execute(text("SELECT 1"))


def _pipeline(connection: Any, values: dict[str, Any]) -> None:
    driver = connection.connection.driver_connection
    with driver.pipeline():
        driver.execute("SELECT 1")
        assert driver.execute("SELECT 2").fetchone() == (2,)
    connection.execute(INSERT, values)


def _named(connection: Any, values: dict[str, Any]) -> None:
    with connection.connection.driver_connection.cursor("rows") as cursor:
        assert cursor.execute("SELECT 1").fetchall() == [(1,)]
    connection.execute(INSERT, values)


def _select(connection: Any, values: dict[str, Any]) -> None:
    assert connection.execute(text("SELECT :id + 1"), values).scalar_one() == values["id"] + 1
    connection.execute(INSERT, values)


def _savepoint(connection: Any, values: dict[str, Any]) -> None:
    savepoint = connection.begin_nested()
    connection.execute(INSERT, values)
    savepoint.rollback()
    connection.execute(INSERT, values)


def _mistake(connection: Any, values: dict[str, Any]) -> None:
    with pytest.raises(DBAPIError, match="division by zero"):
        connection.execute(text("SELECT 1 / :zero"), {"zero": 0})
    connection.rollback()
    connection.execute(INSERT, values)


@pytest.mark.parametrize(
    "first",
    [
        lambda connection, values: connection.execute(INSERT, [values]),
        lambda connection, values: connection.exec_driver_sql(
            "INSERT INTO effect VALUES (%(id)s, %(note)s)", [values]
        ),
        _stream,
        _named,
        _copy,
        _pipeline,
        _select,
        _savepoint,
        _mistake,
    ],
)
def test_whatever_comes_first_is_in_the_runs_own_transaction(bench: Bench, first: Any) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        first(ctx.connection, {"id": ctx.task_id, "note": ""})

    ids = [bench.create() for _ in range(12)]

    carry_out(bench, ids)

    assert bench.states(ids) == ["SUCCEEDED"] * 12
    assert [bench.effects(i) for i in ids] == [1] * 12


def test_many_tasks_are_created_by_copy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    copy = psycopg.Cursor.copy
    monkeypatch.setattr(
        psycopg.Cursor, "copy", lambda self, sql: (copied.append(sql), copy(self, sql))[1]
    )

    @bench.handler()
    def h(ctx: Any) -> None:
        create_tasks(ctx.connection, [NewTask("other") for _ in range(100)])

    ids = [bench.create() for _ in range(4)]

    carry_out(bench, ids)

    assert bench.states(ids) == ["SUCCEEDED"] * 4
    assert len(copied) == 4


@pytest.mark.parametrize("through", ["connection", "session"])
def test_in_a_row_who_lost_his_claim_rolls_back_alone(
    bench: Bench, through: str, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.handler()
    def h(ctx: Any, payload: dict[str, int]) -> str:
        write(ctx, through)
        if payload["n"] == 1:
            bench.sql(FENCE_LOST, id=ctx.task_id)
        return "nobody's business"

    ids = [bench.create(payload={"n": n}) for n in range(4)]

    carry_out(bench, ids)

    assert [bench.effects(i) for i in ids] == [1, 0, 1, 1]
    assert bench.states(ids) == ["SUCCEEDED", "RUNNING", "SUCCEEDED", "SUCCEEDED"]
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [
        f"task {ids[1]}: the lease was lost, its effects roll back"
    ]


@pytest.mark.parametrize("through", ["connection", "session"])
def test_members_of_a_group_are_counted_in_a_row_too(bench: Bench, through: str) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        write(ctx, through)

    bench.succeeding("then")
    with bench.engine.begin() as connection:
        group = create_group(connection, [NewTask("t") for _ in range(3)], then=NewTask("then"))
    others = [bench.create() for _ in range(2)]
    ids = [*group.task_ids, *others]

    carry_out(bench, ids)
    bench.drain()

    assert [bench.effects(i) for i in ids] == [1] * 5
    assert len(bench.runs) == 1


@pytest.mark.parametrize("name", ["sync", "async"])
def test_a_member_that_lost_his_claim_rolls_back(bench: Bench, name: str) -> None:
    @bench.handler("sync")
    def sync(ctx: Any) -> None:
        write(ctx)
        bench.sql(FENCE_LOST, id=ctx.task_id)

    @bench.handler("async")
    async def asynchronous(ctx: Any) -> None:
        await ctx.session.execute(INSERT, {"id": ctx.task_id, "note": ""})
        bench.sql(FENCE_LOST, id=ctx.task_id)

    with bench.engine.begin() as connection:
        (task_id,) = create_group(connection, [NewTask(name)], then=NewTask("then")).task_ids

    carry_out(bench, [task_id])

    assert bench.effects(task_id) == 0
    assert bench.state(task_id) == "RUNNING"


def test_the_same_error_of_a_trigger_is_its_handlers_failure_and_no_lost_lease(
    bench: Bench,
) -> None:
    """It fails as the settle does whose lease is lost, yet in a statement before it."""

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        write(ctx)

    first, task_id = bench.create(), bench.create()
    bench.sql(f"""
        CREATE FUNCTION want() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM task_fence_lost(0); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER wants AFTER INSERT ON effect
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.task_id = {task_id})
            EXECUTE FUNCTION want()
    """)
    bench.at_end(lambda: bench.sql("DROP TRIGGER wants ON effect; DROP FUNCTION want"))

    carry_out(bench, [first, task_id])  # the first end in a session fires them beforehand

    assert bench.state(first) == "SUCCEEDED"
    assert (bench.state(task_id), bench.effects(task_id)) == ("FAILED", 0)
    assert "task 0: another attempt owns it" in (bench.task(task_id).error or "")


def test_an_outcome_that_is_refused_is_its_handlers_failure_and_no_lost_lease(
    bench: Bench,
) -> None:
    bench.sql("ALTER TABLE task_completed ADD CONSTRAINT refuse CHECK (result IS NULL) NOT VALID")
    bench.at_end(lambda: bench.sql("ALTER TABLE task_completed DROP CONSTRAINT refuse"))

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> str:
        write(ctx)
        return "x"

    task_id = bench.create()

    carry_out(bench, [task_id])

    assert (bench.state(task_id), bench.effects(task_id)) == ("FAILED", 0)


def test_of_an_end_that_is_broken_off_nobody_reads_the_rest(bench: Bench) -> None:
    """Answers of one run would be taken for those of the next."""
    conninfo = make_url(bench.url).set(drivername="postgresql")
    settlement = Settlement(Fence(TaskId(1), 1, uuid4()), Event.SUCCEED, 0, 0)
    with HandlerConnection.connect(conninfo.render_as_string(hide_password=False)) as connection:
        connection.names = set()
        connection.execute("SELECT 1")
        steps = connection.end(RunEnd(settlement))
        waits = next(steps)
        while connection.pgconn.pipeline_status == PipelineStatus.OFF:
            waits = steps.send(_is_there(connection, waits))
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt())

        assert connection.closed


def _is_there(connection: HandlerConnection, waits: Any) -> Ready:
    """Wait as psycopg does."""

    def once() -> Generator[Any, Ready, Ready]:
        return (yield waits)

    return wait_select(once(), connection.fileno())


def test_a_rollback_takes_what_is_prepared_and_the_next_run_does_not_miss_it(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        bench.runs.append(ctx.task_id)
        write(ctx)
        if payload["n"] in {7, 9}:  # psycopg has prepared the statement by then
            raise ValueError

    ids = [bench.create(payload={"n": n}) for n in range(12)]

    carry_out(bench, ids)

    assert [n for n, i in enumerate(ids) if not bench.effects(i)] == [7, 9]
    assert bench.runs == ids


def test_who_drops_what_is_prepared_behind_our_back_harms_nobody(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        write(ctx)
        if payload["n"] == 2:
            ctx.connection.connection.driver_connection.execute("DEALLOCATE ALL", prepare=False)

    ids = [bench.create(payload={"n": n}) for n in range(5)]

    carry_out(bench, ids)

    assert [bench.effects(i) for i in ids] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("lose", ["lose_request", "lose_reply_to"])
def test_in_a_row_a_commit_without_an_answer_is_not_sent_again(bench: Bench, lose: str) -> None:
    """The runs behind it have another connection."""

    @bench.handler()
    def h(ctx: Any, payload: dict[str, int]) -> None:
        write(ctx)
        if payload["n"] == 1 and ctx.attempt == 1:
            getattr(proxy, lose)(b"\0tasks_app COMMIT\0")

    ids = [bench.create(payload={"n": n}) for n in range(4)]
    url = make_url(bench.url)
    with FaultProxy((url.host or "", url.port or 0), only=b"INSERT INTO effect") as proxy:
        through = url.set(port=proxy.port).render_as_string(hide_password=False)
        child = warm(bench.child(url=through))
        child.execute(None, ids)
        until(lambda: child.inflight.empty)
        child.stop()
        assert proxy.lost == 1
    took_place = lose == "lose_reply_to"
    assert [bench.effects(i) for i in ids] == [1, int(took_place), 1, 1]
    second = "SUCCEEDED" if took_place else "PENDING"
    assert bench.states(ids) == ["SUCCEEDED", second, "SUCCEEDED", "SUCCEEDED"]
    assert [bench.task(i).failures for i in ids] == [0] * 4
    assert [bench.task(i).crashes for i in ids] == [0, int(not took_place), 0, 0]


def test_a_result_is_kept_as_it_is_in_whatever_encoding_the_client_speaks(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> str:
        write(ctx)
        return "grün"

    ids = [bench.create() for _ in range(2)]
    url = make_url(bench.url).update_query_dict({"client_encoding": "latin1"})

    carry_out(bench, ids, url=url.render_as_string(hide_password=False))

    assert [bench.task(i).result for i in ids] == ["grün"] * 2


def test_locks_that_a_run_in_a_row_left_are_given_back(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        ctx.locks(exclusive=f"of:{ctx.task_id}").take()
        write(ctx)

    child = warm(bench.child())
    child.execute(None, ids := [bench.create() for _ in range(3)])

    until(lambda: bench.sql("SELECT count(*) FROM task_locks") == 0)
    assert bench.states(ids) == ["SUCCEEDED"] * 3


def test_a_lost_claim_is_one_readable_line_in_the_servers_log(bench: Bench) -> None:
    url = make_url(bench.url).set(drivername="postgresql")
    values = [b"17", b"1", uuid4().hex.encode(), b'"secret"', b"1", None]
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        for _, statement in settle_success._WORDS.values():
            answer = connection.pgconn.exec_params(statement, values, settle_success._TYPES)
            error = errors.error_from_result(answer)

            assert "task 17: another attempt owns it" in str(error)
            assert settle_success.is_fence_lost(error)
            assert "secret" not in str(error)
