"""Tasks in SQL that the database alone carries out: as a worker would, and never twice."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app import sql_handler
from tasks_app.domain.errors import TasksError
from tasks_app.pool.connection.sessions import PLANNER_SETTINGS
from tasks_app.pool.db_scheduler import functions
from tasks_app.pool.db_scheduler.running import UnfitStatementError
from tasks_app.pool.statistics.read import unkept
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.schedules.db_scheduler import sql_tasks_of
from tests.pool.db_scheduler.conftest import SETTINGS, create, effects, run
from tests.pool.interleave import Blocked, pid_of, two

pytestmark = pytest.mark.usefixtures("installed")
_LATER = text("SELECT task_rescue_expired(now() + interval '1 hour')")
_CLAIM = text("SELECT v_id, v_attempt, v_token FROM task_sql_claim()")
_CARRY_OUT = text("SELECT task_sql_carry_out(:v_id, :v_attempt, :v_token)")


def declare(connection: Connection, **statements: str) -> None:
    """Let the database have these statements and no others."""
    others = Registry()
    for name, statement in statements.items():
        sql_handler(name, statement, registry=others)
    functions.create(connection, SETTINGS, sql_tasks_of(others, SETTINGS, leave=False))


def test_statements_run_with_the_types_that_they_ask_for(engine: Engine, ends: Any) -> None:
    evil = "'); DROP TABLE sql_effect; -- $1 %"
    create(engine, "add", {"n": 4, "note": evil})
    create(engine, "call", {"day": "2026-03-01"})
    run(engine)
    assert effects(engine) == [(0, "01.03."), (4, evil)]
    assert ends() == {"add": ("SUCCEEDED", 1, 0, 0), "call": ("SUCCEEDED", 1, 0, 0)}
    with engine.connect() as connection:
        results = connection.execute(text("SELECT name, result FROM task_completed ORDER BY 1"))
        assert [tuple(row) for row in results] == [("add", {"rows": 1}), ("call", None)]


def test_a_success_leaves_its_history(engine: Engine, registry: Registry, ends: Any) -> None:
    insert = "INSERT INTO sql_effect VALUES (:n, :note)"
    sql_handler("none", insert, history="none", registry=registry)
    sql_handler("failures", insert, history="failures", registry=registry)
    sql_handler("quiet", insert, queue="bulk", registry=registry)
    settings = SETTINGS.model_copy(update={"history": "all,bulk=none"})
    with engine.begin() as connection:
        functions.create(connection, settings, sql_tasks_of(registry, settings, leave=False))
    for n, (name, queue) in enumerate(
        [("none", "default"), ("failures", "default"), ("quiet", "bulk"), ("add", "default")]
    ):
        create(engine, name, {"n": n, "note": ""}, queue=queue)
    create(engine, "divide", {"n": 0}, queue="bulk")

    run(engine)

    assert len(effects(engine)) == 4
    assert ends() == {"add": ("SUCCEEDED", 1, 0, 0), "divide": ("PENDING", 1, 1, 0)}
    with engine.connect() as connection:
        gone = unkept(connection)
    assert gone is not None
    assert (gone.number, gone.names) == (3, ("failures", "none", "quiet"))


def test_failures_wait_by_the_policy_and_end_in_the_error_pool(engine: Engine, ends: Any) -> None:
    create(engine, "divide", {"n": 0})
    run(engine)
    assert ends() == {"divide": ("PENDING", 1, 1, 0)}
    with engine.begin() as connection:
        wait = connection.execute(
            text("SELECT extract(epoch FROM due_at - now()), retry_level FROM task_pending")
        ).one()
        connection.execute(text("UPDATE task_pending SET due_at = now(), scan_at = now()"))
    assert 5 < wait[0] < 7.1
    assert wait[1] == 1

    run(engine)
    assert ends() == {"divide": ("FAILED", 2, 2, 0)}
    with engine.connect() as connection:
        error = connection.execute(text("SELECT error, fingerprint FROM task_error")).one()
        history = connection.execute(
            text("SELECT event, kind, fingerprint FROM task_attempt ORDER BY attempt")
        ).all()
    assert error[0] == "SQLSTATE 22012: division by zero"
    assert [tuple(row) for row in history] == [
        (event, "SQLSTATE 22012", error[1]) for event in ("retry", "fail")
    ]


def test_a_payload_without_a_parameter_fails_at_once(engine: Engine, ends: Any) -> None:
    create(engine, "add", {"n": 4})
    run(engine)
    assert ends() == {"add": ("FAILED", 1, 1, 0)}


def test_other_names_and_own_policies_are_left_alone(engine: Engine, ends: Any) -> None:
    create(engine, "unknown")
    create(engine, "call", {"day": "2026-03-01"}, timeout=5)
    create(engine, "add", {"n": 1, "note": "x"}, order_key="k")
    run(engine)
    assert {state[:2] for state in ends().values()} == {("PENDING", 0)}
    assert len(ends()) == 3


def test_two_at_once_take_different_tasks(engine: Engine) -> None:
    create(engine, "add", {"n": 1, "note": "x"})
    second = create(engine, "add", {"n": 2, "note": "x"})
    with two(engine) as (a, b):
        first = a.execute(_CLAIM).one()
        other = b.execute(_CLAIM).one()
        assert (first.v_id < other.v_id, other.v_id) == (True, second)
        a.commit()
        b.commit()
        for connection, claimed in ((a, first), (b, other)):
            assert connection.execute(_CARRY_OUT, dict(claimed._mapping)).scalar()
            connection.commit()
    assert [row[0] for row in effects(engine)] == [1, 2]


def test_who_was_rescued_before_it_began_leaves_no_effect(engine: Engine, ends: Any) -> None:
    create(engine, "add", {"n": 1, "note": "x"})
    with two(engine) as (a, b):
        claimed = dict(a.execute(_CLAIM).one()._mapping)
        a.commit()
        assert b.execute(_LATER).scalar() == 1
        b.execute(text("UPDATE task_pending SET due_at = now(), scan_at = now()"))
        b.commit()
        again = dict(b.execute(_CLAIM).one()._mapping)
        b.commit()
        a.execute(_CARRY_OUT, claimed)
        a.commit()
        assert effects(engine) == []
        b.execute(_CARRY_OUT, again)
        b.commit()
    assert effects(engine) == [(1, "x")]
    assert ends() == {"add": ("SUCCEEDED", 2, 0, 1)}


def _killed(waiter: Connection) -> None:
    with pytest.raises(Exception, match="terminat"):
        waiter.execute(text("CALL task_run_sql()"))
    waiter.invalidate()


def test_a_rescue_passes_a_run_by_until_its_backend_is_killed(engine: Engine, ends: Any) -> None:
    create(engine, "wait", {})
    free = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with two(engine) as (a, b), free as runner:
        a.execute(text("SELECT pg_advisory_lock(77)"))
        victim = pid_of(runner)
        blocked = Blocked(engine, runner, a, _killed)
        assert b.execute(_LATER).scalar() == 0  # its row is locked
        b.commit()
        b.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": victim})
        b.commit()
        blocked.result()
        a.execute(text("SELECT pg_advisory_unlock(77)"))
        assert b.execute(_LATER).scalar() == 1
        b.commit()
    assert effects(engine) == []
    assert ends() == {"wait": ("PENDING", 1, 0, 1)}


def test_what_the_database_cannot_do_is_refused(engine: Engine, registry: Registry) -> None:
    sql_handler("slow", "CALL put(:day)", registry=registry, timeout="10m")
    with pytest.raises(TasksError, match="slow: it has a timeout"):
        sql_tasks_of(registry, SETTINGS, leave=False)
    assert "slow" not in [t.name for t in sql_tasks_of(registry, SETTINGS, leave=True)]

    for name, statement, why in (
        ("lost", "CALL nowhere(:day)", "procedure nowhere"),
        ("ends", "SELECT '$tasks_app$'", "it contains"),
    ):
        others = Registry()
        sql_handler(name, statement, registry=others)
        tasks = sql_tasks_of(others, SETTINGS, leave=True)
        with (
            engine.connect() as connection,
            pytest.raises(UnfitStatementError, match=f"{name}: {why}"),
        ):
            functions.create(connection, SETTINGS, tasks)


def test_its_own_statements_are_planned_as_a_workers_are(engine: Engine) -> None:
    with engine.connect() as connection:
        named = connection.execute(
            text("SELECT proname FROM pg_proc WHERE proconfig @> CAST(:settings AS text[])"),
            {"settings": [f"{name}={value}" for name, value in PLANNER_SETTINGS.items()]},
        ).scalars()
        assert {
            *("task_fire_schedule", "task_rescue_expired", "task_sweep"),
            *("task_maintain_partitions", "task_sql_claim"),
        } <= set(named)


def test_a_statement_is_planned_as_the_role_says(engine: Engine) -> None:
    asked = "INSERT INTO sql_effect SELECT 1, current_setting('jit') || current_setting(:name)"
    with engine.begin() as connection:
        declare(connection, settings=asked)
        theirs = connection.execute(
            text("SELECT current_setting('jit') || current_setting('enable_hashjoin')")
        ).scalar()
    create(engine, "settings", {"name": "enable_hashjoin"})
    run(engine)
    assert effects(engine) == [(1, theirs)]


def test_a_task_that_lost_its_statement_waits_for_a_worker(engine: Engine, ends: Any) -> None:
    create(engine, "add", {"n": 1, "note": "x"})
    with two(engine) as (a, b):
        claimed = dict(a.execute(_CLAIM).one()._mapping)
        a.commit()
        declare(b, another="SELECT 1")
        b.commit()
        assert a.execute(_CARRY_OUT, claimed).scalar()
        a.commit()
        b.execute(_LATER)
        b.commit()
    assert ends() == {"add": ("PENDING", 1, 0, 1)}


def test_masked_tasks_are_left_to_workers(registry: Registry) -> None:
    masking = SETTINGS.model_copy(update={"masked_paths": "add:note,other:**"})
    with pytest.raises(TasksError, match="add: values are masked"):
        sql_tasks_of(registry, masking, leave=False)
    assert [t.name for t in sql_tasks_of(registry, masking, leave=True)] == [
        *("call", "divide", "wait")
    ]


def test_a_value_is_as_long_as_its_column(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE coded (code char(3), bits bit(3))"))
        declare(connection, code="INSERT INTO coded VALUES (:code, :bits)")
    create(engine, "code", {"code": "EUR", "bits": "101"})
    run(engine)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT * FROM coded")).all() == [("EUR", "101")]
        connection.execute(text("DROP TABLE coded"))


def test_what_a_deferred_trigger_refuses_is_charged_alone(engine: Engine, ends: Any) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("""CREATE TABLE parent (n int PRIMARY KEY);
                CREATE TABLE child (n int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)""")
        )
        free = "INSERT INTO sql_effect VALUES (1, 'x')"
        declare(connection, child="INSERT INTO child VALUES (:n)", free=free)
    create(engine, "child", {"n": 1})
    create(engine, "free")
    run(engine)
    with engine.begin() as connection:
        kinds = connection.execute(text("SELECT kind FROM task_attempt")).scalars().all()
        connection.execute(text("DROP TABLE child, parent"))
    assert ends() == {"child": ("PENDING", 1, 1, 0), "free": ("SUCCEEDED", 1, 0, 0)}
    assert kinds == ["SQLSTATE 23503"]


@pytest.mark.parametrize("sets", ["search_path TO pg_catalog", "ROLE pg_monitor", "jit TO off"])
def test_what_a_procedure_sets_is_taken_back(engine: Engine, ends: Any, sets: str) -> None:
    seen = "concat_ws(' ', current_user, current_setting('search_path'), current_setting('jit'))"
    with engine.begin() as connection:
        connection.execute(
            text(f"CREATE PROCEDURE sets() LANGUAGE plpgsql AS 'BEGIN SET {sets}; END'")
        )
        declare(connection, sets="CALL sets()", sees=f"INSERT INTO sql_effect VALUES (1, {seen})")
        as_before = connection.execute(text(f"SELECT {seen}")).scalar()
    create(engine, "sets")
    create(engine, "sees")
    run(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP PROCEDURE sets"))
    assert ends() == dict.fromkeys(("sets", "sees"), ("SUCCEEDED", 1, 0, 0))
    assert effects(engine) == [(1, as_before)]
