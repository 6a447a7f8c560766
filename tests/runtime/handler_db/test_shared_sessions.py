"""Runs share sessions, one after the other, and nothing of one run meets the next."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, MetaData, String, Table, text
from sqlalchemy.orm import registry

from tests.runtime.bench import Bench, effect
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("cold_connections")

PID = text("SELECT pg_backend_pid()")


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


def test_runs_of_one_thread_follow_each_other_on_one_connection(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        through = ctx.session if ctx.task_id % 2 else ctx.connection
        bench.runs.append(through.execute(PID).scalar())

    run(bench, 6)

    assert len(set(bench.runs)) == 1


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


def test_a_transaction_that_a_run_left_open_ends_with_it(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.connection.in_transaction())
        effect(ctx)
        raise ValueError

    run(bench)

    assert bench.runs == [False] * 3
    assert bench.sql("SELECT count(*) FROM effect") == 0


def test_threads_have_connections_of_their_own(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.connection.execute(PID).scalar())
        ctx.connection.execute(text("SELECT pg_sleep(0.1)"))
        effect(ctx)

    run(bench, 12, extra_threads=3)

    assert 2 <= len(set(bench.runs)) <= 4
    assert bench.sql("SELECT count(*) FROM effect") == 12
