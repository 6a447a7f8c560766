"""The end of a short run: resets, outcome and COMMIT in one round trip."""

from __future__ import annotations

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

from tasks_app import create_tasks
from tasks_app.domain.creation import NewTask
from tasks_app.domain.tasks.records import TaskId
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs import settle_success
from tasks_app.runtime.handler_db import ends
from tasks_app.runtime.handler_db.ends import RunEnd
from tasks_app.runtime.handler_db.handler_connections import HandlerConnection
from tests.clock import until
from tests.runtime.bench import EFFECT, Bench, carry_out, run_many, warm

pytestmark = pytest.mark.timeout(60, method="thread")
INSERT = text(EFFECT)


def write(ctx: Any, through: str = "connection") -> None:
    getattr(ctx, through).execute(INSERT, {"id": ctx.task_id, "note": ""})


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_app.runtime.run_times.FAST_S", 10.0)


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
def test_a_run_of_one_statement_waits_thrice(bench: Bench, waits: list[str], through: str) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append(len(waits))
        write(ctx, through)

    ids = run_many(bench, 6)
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
    known = HandlerConnection.save_template
    monkeypatch.setattr(
        HandlerConnection, "save_template", lambda driver: (made.append(driver), known(driver))
    )

    @bench.handler()
    def h(ctx: Any) -> None:
        getattr(ctx, through)

    ids = run_many(bench, 6)

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


def test_many_tasks_are_created_by_copy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    copy = psycopg.Cursor.copy
    monkeypatch.setattr(
        psycopg.Cursor, "copy", lambda self, sql: (copied.append(sql), copy(self, sql))[1]
    )

    @bench.handler()
    def h(ctx: Any) -> None:
        create_tasks(ctx.connection, [NewTask("other") for _ in range(100)])

    ids = run_many(bench, 4)

    assert bench.states(ids) == ["SUCCEEDED"] * 4
    assert len(copied) == 4


def test_an_outcome_that_is_refused_is_its_handlers_failure_and_no_lost_lease(bench: Bench) -> None:
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
    settlement = Settlement(Fence(TaskId(1), 1, uuid4()), Event.SUCCEED, 0, 0)
    with HandlerConnection.connect(bench.plain_url) as connection:
        connection.names = set()
        connection.execute("SELECT 1")
        steps = connection.end(RunEnd([settlement]))
        waits = next(steps)
        while connection.pgconn.pipeline_status == PipelineStatus.OFF:
            waits = steps.send(_is_there(connection, waits))
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt())

        assert connection.closed


@pytest.mark.usefixtures("cold_connections")
def test_a_run_whose_check_fails_after_its_commit_has_succeeded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(ends._OURS, ends._CHECKS, b"SELECT 1 / 0")

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.connection.connection.driver_connection.info.backend_pid)
        write(ctx)

    ids = [bench.create() for _ in range(3)]

    carry_out(bench, ids)

    assert bench.states(ids) == ["SUCCEEDED"] * 3
    assert [bench.effects(i) for i in ids] == [1] * 3
    assert "outcome is not kept" not in caplog.text
    assert len(set(bench.runs)) == 3  # what is not known of a session reaches no other run


def _is_there(connection: HandlerConnection, waits: Any) -> Ready:
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

    ids = run_many(bench, 12)
    assert [n for n, i in enumerate(ids) if not bench.effects(i)] == [7, 9]
    assert bench.runs == ids


def test_who_drops_what_is_prepared_behind_our_back_harms_nobody(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any, payload: dict[str, int]) -> None:
        write(ctx)
        if payload["n"] == 2:
            ctx.connection.connection.driver_connection.execute("DEALLOCATE ALL", prepare=False)

    ids = run_many(bench, 5)
    assert [bench.effects(i) for i in ids] == [1, 1, 1, 1, 1]


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
    child.execute(ids := [bench.create() for _ in range(3)])
    until(lambda: bench.sql("SELECT count(*) FROM task_locks") == 0)
    assert bench.states(ids) == ["SUCCEEDED"] * 3


def test_a_lost_claim_is_one_readable_line_in_the_servers_log(bench: Bench) -> None:
    values = [b"17", b"1", uuid4().hex.encode(), b'"secret"', b"1", None]
    with psycopg.connect(bench.plain_url) as connection:
        for _, statement in settle_success._WORDS.values():
            answer = connection.pgconn.exec_params(statement, values, settle_success._TYPES)
            error = errors.error_from_result(answer)
            assert "task 17: another attempt owns it" in str(error)
            assert settle_success.is_fence_lost(error)
            assert "secret" not in str(error)
