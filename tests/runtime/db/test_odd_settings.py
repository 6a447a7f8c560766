"""Roles and databases with odd settings: a task walks its whole way under each of them.

What we rely on we ask for ourselves, or our statements do not depend on it. Where a setting makes
the work impossible one sentence says so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from tasks_app import (
    Flow,
    NewTask,
    acreate_task,
    cancel_task,
    create_flow,
    create_group,
    create_schedule,
    create_task,
    create_tasks,
    event,
    explain_task,
    get_flow,
    get_group,
    get_queue,
    get_schedule,
    get_task,
    list_queues,
    list_schedules,
    locks,
    pause_queue,
    requeue_task,
    rerun_flow,
    resume_queue,
    send_event,
    set_limit,
    unblock_task,
    undo_flow,
)
from tasks_app.cli.group import group
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.errors import TasksError
from tasks_app.domain.finding import Level
from tasks_app.monitor.checks.checkup import examine
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.schema import migrate
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.leader import Leader
from tasks_app.runtime.leader.maintainer import Maintainer
from tests.batch.yard import Yard
from tests.conftest import TABLES
from tests.runtime.bench import Bench
from tests.runtime.memory import Memory
from tests.servers import Databases, named, not_of_a_given_server

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

ROLE, PASSWORD = named("odd"), "odd"
HARMLESS = {
    "IntervalStyle": ("iso_8601", "sql_standard", "postgres_verbose"),
    "DateStyle": ("German, DMY", "SQL, DMY", "Postgres, MDY", "ISO, YMD"),
    "client_encoding": ("LATIN1", "SQL_ASCII", "EUC_JP"),
    "TimeZone": ("Pacific/Chatham", "America/Sao_Paulo", "<-0030>+00:30"),
    "extra_float_digits": ("-15", "0"),
    "bytea_output": ("escape",),
    "standard_conforming_strings": ("off",),
    "escape_string_warning": ("off",),
    "backslash_quote": ("off",),
    "default_transaction_isolation": ("serializable", "repeatable read"),
    "default_transaction_deferrable": ("on",),
    "statement_timeout": ("15s",),
    "lock_timeout": ("10s",),
    "idle_in_transaction_session_timeout": ("9s",),
    "idle_session_timeout": ("3s",),
    "row_security": ("off",),
    "transform_null_equals": ("on",),
    "array_nulls": ("off",),
    "lc_messages": ("C",),
    "lc_numeric": ("C",),
    "quote_all_identifiers": ("on",),
    "synchronous_commit": ("off",),
    "enable_indexscan": ("off",),
    "enable_nestloop": ("off",),
    "enable_seqscan": ("off",),
    "jit": ("on",),
    "jit_above_cost": ("0",),
    "work_mem": ("64kB",),
    "plan_cache_mode": ("force_custom_plan",),
    "xmloption": ("document",),
    "session_replication_role": ("replica", "local"),
    "check_function_bodies": ("off",),
    "default_tablespace": ("pg_default",),
    "exit_on_error": ("off",),
    "search_path": ("pg_catalog, public",),
}
EACH = [(name, value) for name, values in HARMLESS.items() for value in values]
ROWS = [
    {name: of[number % len(of)] for name, of in HARMLESS.items() if not name.startswith("jit")}
    for number in range(max(map(len, HARMLESS.values())))
]
"""Each value in one of them; where each statement is compiled others' time-outs are too short."""
TEXT = "naïve 注文 'it\\'s' 😀"
DRAWN = st.lists(st.sampled_from(list(HARMLESS)), min_size=2, max_size=8, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: st.sampled_from(HARMLESS[name]) for name in names})
)


class Odd:
    """A role with settings of its own, and what is done as it."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench = bench
        self.owner = self.theirs = bench.engine
        url = make_url(bench.url).set(username=ROLE, password=PASSWORD)
        self.url = url.render_as_string(hide_password=False)
        self.yard = Yard(bench.engine, bench)
        self.folder = folder

    def set(self, given: dict[str, str]) -> None:
        """Give the role these settings and no others."""
        with self.owner.begin() as connection:
            connection.execute(text(f"ALTER ROLE {ROLE} RESET ALL"))
            for name, value in given.items():
                many = name in ("search_path", "DateStyle")
                written = value if many else f"'{value}'"
                connection.execute(text(f"ALTER ROLE {ROLE} SET {name} = {written}"))

    def walk(self, *, prepare: bool = True) -> None:
        """Let everything happen that happens to tasks, as the role; check what came of it."""
        bench = self.bench
        bench.sql(f"TRUNCATE {TABLES}, effect")
        bench.url = self.url
        # Its own session has the role's settings, but for those under which it could not say what
        # it wants to: psycopg sends text in the one, and nulls in the other.
        own = {"client_encoding": "utf8", "options": "-c array_nulls=on"}
        self.theirs = create_engine(
            self.url, hide_parameters=True, pool_pre_ping=True, connect_args=own
        )
        try:
            self._tasks(prepare=prepare)
            self._flows(prepare=prepare)
            self._published(prepare=prepare)
            self._operated()
            self._batch(prepare=prepare)
            self._looked_at(prepare=prepare)
        except (NotImplementedError, UnicodeError, TypeError, SQLAlchemyError) as error:
            raise AssertionError(f"a setting is in the way: {error}") from error
        finally:
            self.theirs.dispose()
            bench.url = self.owner.url.render_as_string(hide_password=False)

    def _tasks(self, *, prepare: bool) -> None:
        bench = self.bench
        bench.registry.__init__()  # type: ignore[misc]
        tried: list[int] = []

        bench.handler("ok")(lambda ctx, payload: payload)

        @bench.handler("writes")
        def writes(ctx: Any) -> Any:
            ctx.connection.execute(text("INSERT INTO effect VALUES (:i, 'x')"), {"i": ctx.task_id})
            return {"said": TEXT}

        @bench.handler("reads")
        def reads(ctx: Any) -> Any:
            row = ctx.session.execute(text("SELECT now() - INTERVAL '1 h', INTERVAL '1 h'")).one()
            return str(row[1])

        @bench.handler("fails", retry="0s,0s")
        def fails(ctx: Any) -> None:
            tried.append(ctx.task_id)
            raise ValueError(TEXT)

        @bench.handler("waits")
        async def waits(ctx: Any) -> Any:
            await ctx.session.execute(
                text("INSERT INTO effect VALUES (:i, 'x')"), {"i": ctx.task_id}
            )
            return {"said": TEXT}

        with Session(self.theirs) as session, session.begin():
            one = create_task(session, "ok", {"text": TEXT, "x": 1e17}, biz_key="b", delay="1ms")
            many = create_tasks(
                session,
                [
                    NewTask("ok", {"text": TEXT}),
                    NewTask("writes", None, {"biz_key": "k", "unique_key": "u"}),
                    NewTask("writes", None, {"unique_key": "v"}),
                    NewTask("waits", None, {"order_key": "o", "unique_key": "w"}),
                    NewTask("fails"),
                    NewTask("reads"),
                ],
            )
            once = create_task(session, "ok", unique_key="z", unique_scope="for_period 1h")
            again = create_task(session, "ok", unique_key="z", unique_scope="for_period 1h")
            members = create_group(session, [NewTask("ok"), NewTask("ok")], then=NewTask("ok"))
            schedule = create_schedule(session, "s", "ok", every="1h", jitter="10s")
        assert again == once

        async def make() -> int:
            engine = create_async_engine(self.url, connect_args={"client_encoding": "utf8"})
            async with engine.begin() as connection:
                made = await acreate_task(connection, "writes", unique_key="async")
            await engine.dispose()
            return made

        many.append(asyncio.run(make()))
        bench.sql("UPDATE task_schedule SET next_run_at = now() - interval '59 s', look_at = now()")
        bench.drain(prepare=prepare, async_concurrency=2)
        failed = many[4]
        states = bench.states([one, *many, once])
        assert states == ["SUCCEEDED"] * 5 + ["FAILED"] + ["SUCCEEDED"] * 3
        assert tried == [failed] * 3
        assert bench.task(one).result == {"text": TEXT, "x": 1e17}
        assert [bench.task(each).biz_key for each in many[:3]] == [None, "k", None]
        assert bench.task(many[1]).result == {"said": TEXT}
        assert {bench.effects(each) for each in many[1:4]} == {1}
        assert bench.attempts(failed)[0].message == TEXT
        with Session(self.theirs) as session, session.begin():
            assert get_group(session, members.id).left == 0  # type: ignore[union-attr]
            assert str(requeue_task(session, failed)) == "requeued"
            assert get_schedule(session, "s").last_run_at is not None  # type: ignore[union-attr]
            assert list_schedules(session)
        bench.drain(prepare=prepare)
        assert bench.state(failed) == "FAILED"
        assert schedule

    def _flows(self, *, prepare: bool) -> None:
        bench = self.bench

        bench.handler("lists")(lambda ctx: [{"x": 1}, {"x": 2}])

        @bench.handler("keeps")
        def keeps(ctx: Any) -> Any:
            ctx.wait_event("last", "1h")
            return ctx.step("said", lambda: TEXT)

        flow = Flow("f")
        items = flow.step("items", "lists", needs=event("go"), delay="1ms")
        each = flow.map("each", "ok", over=items)
        needs = [each, event("late", timeout="1ms")]
        flow.step("end", "keeps", needs=needs, undo="ok")
        with Session(self.theirs) as session, session.begin():
            made = create_flow(session, flow)
        for key in ("go", "last"):
            with self.theirs.connect() as connection:
                connection.execution_options(isolation_level="READ COMMITTED")
                assert send_event(connection, key, {"text": TEXT})
                connection.commit()
            bench.drain(prepare=prepare)
        with Session(self.theirs) as session, session.begin():
            assert rerun_flow(session, made.id, "end") == ["end"]
        bench.drain(prepare=prepare)
        with Session(self.theirs) as session, session.begin():
            assert get_flow(session, made.id).steps[2].result == TEXT  # type: ignore[union-attr]
            assert undo_flow(session, made.id) == ["end"]
        bench.drain(prepare=prepare)
        with Session(self.theirs) as session, session.begin():
            state = get_flow(session, made.id).state  # type: ignore[union-attr]
        assert state == "succeeded"

    def _published(self, *, prepare: bool) -> None:
        bench, memory = self.bench, Memory()
        database = Database(bench.url, prepare=prepare)
        with database.begin() as connection:
            heartbeats.write_heartbeat(
                connection, owner="w", node="n", queues=["default"], handlers=["ok"]
            )
        task_id = bench.create("ok")
        leader = Leader(bench.settings(), database, memory, "one")
        try:
            assert leader.hold()
            assert leader.scan().published >= 1
            leader.maintain()
        finally:
            leader.lead.release()
            database.dispose()
        bench.execute([task_id], prepare=prepare)
        assert bench.state(task_id) == "SUCCEEDED"

    def _operated(self) -> None:
        bench = self.bench
        waiting = bench.create("ok", delay="1h", limit_key="t:1", order_key="x")
        with Session(self.theirs) as session, session.begin():
            assert explain_task(session, waiting).known
            assert get_task(session, waiting) is not None
            pause_queue(session, "mail", "é", resume_in="1h")
            assert get_queue(session, "mail").resume_at is not None  # type: ignore[union-attr]
            assert list_queues(session)
            resume_queue(session, "mail")
            set_limit(session, "key", "t:*", most=1, rate="100/1m")
            unblock_task(session, waiting)
            assert str(cancel_task(session, waiting)) == "cancelled"
        with locks.hold(self.theirs, exclusive="a", counted={"b": 2}) as lock:
            lock.renew()
        assert lock.ended

    def _batch(self, *, prepare: bool) -> None:
        yard = self.yard
        yard.engine = self.theirs
        try:
            self.bench.sql("TRUNCATE done")
            yard.rows(40)
            job = yard.job(yard.step(cuts=(21,)))
            view = yard.run(
                job, {"day": str(self.bench.sql("SELECT txid_current()"))}, prepare=prepare
            )
        finally:
            yard.engine = self.owner
        assert view.batch.status is BatchStatus.COMPLETED
        yard_done = self.bench.sql("SELECT array_agg(id ORDER BY id) FROM done")
        assert yard_done == list(range(1, 41))

    def _looked_at(self, *, prepare: bool) -> None:
        found = not_of_a_given_server(examine(self.bench.settings(prepare=prepare)))
        assert [each for each in found if each.level is Level.FAIL] == []
        newest = self.bench.sql("SELECT max(id) FROM task_all")
        for command in ("list", "stats", f"show {newest}", f"explain {newest}", "schedules list",
                        "queues list", "limits list", "locks list", "groups list", "batch list",
                        "audit", "breakers list"):  # fmt: skip
            with pytest.raises(SystemExit) as end:
                group(command.split(), prog_name="tasks-app")
            assert end.value.code == 0, command


@pytest.fixture
def odd(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Odd]:
    bench.sql(f"DROP ROLE IF EXISTS {ROLE}")
    bench.sql(f"CREATE ROLE {ROLE} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    odd = Odd(bench, tmp_path)
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", odd.url)
    yield odd
    odd.yard.close()
    bench.sql(f"DROP OWNED BY {ROLE}")
    bench.sql(f"DROP ROLE {ROLE}")


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_a_task_walks_its_way_under_all_odd_settings_at_once(odd: Odd, number: int) -> None:
    odd.set(ROWS[number])
    odd.walk()


@pytest.mark.parametrize(("name", "value"), EACH, ids=[f"{n}={v}" for n, v in EACH])
def test_a_task_walks_its_way_under_each_odd_setting(odd: Odd, name: str, value: str) -> None:
    odd.set({name: value})
    odd.walk()


def test_a_task_walks_its_way_for_who_becomes_another_role_as_he_connects(odd: Odd) -> None:
    odd.set({"role": odd.owner.url.username or ""})
    odd.walk()


@pytest.fixture
def plain(databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Odd]:
    """A role without rights, in a database where all that it may do is in a schema of its name."""
    administrator = create_engine(databases.create("plain"))
    url = administrator.url.set(username=ROLE, password=PASSWORD)
    with administrator.begin() as connection:
        connection.execute(text(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'"))
        connection.execute(text(f"CREATE SCHEMA {ROLE} AUTHORIZATION {ROLE}"))
        connection.execute(text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
    engine = create_engine(url)
    with engine.begin() as connection:
        migrate(connection)
        connection.execute(text("CREATE TABLE effect (task_id bigint, note text)"))
    database = Database(url.render_as_string(hide_password=False))
    Maintainer(database).run_if_due()
    database.dispose()
    bench = Bench(engine, url.render_as_string(hide_password=False), tmp_path)
    odd = Odd(bench, tmp_path)
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", odd.url)
    yield odd
    odd.yard.close()
    bench.close()
    engine.dispose()
    with administrator.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {ROLE}"))
        connection.execute(text(f"DROP ROLE {ROLE}"))
    administrator.dispose()
    databases.drop("plain")


def test_a_task_walks_its_way_where_its_role_owns_no_more_than_a_schema(plain: Odd) -> None:
    plain.walk()


@pytest.mark.parametrize("name", ["client_encoding", "DateStyle", "IntervalStyle"])
def test_a_task_walks_its_way_behind_a_pooler_that_takes_no_options(odd: Odd, name: str) -> None:
    odd.set({name: HARMLESS[name][0]})
    odd.walk(prepare=False)


@settings(
    max_examples=int(os.environ.get("STATEFUL_EXAMPLES", "400")) // 200,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(drawn=DRAWN)
def test_a_task_walks_its_way_under_odd_settings_together(odd: Odd, drawn: dict[str, str]) -> None:
    odd.set(drawn)
    odd.walk()


def test_what_others_set_in_their_sessions_stays_but_for_how_instants_are_written(odd: Odd) -> None:
    odd.set({"DateStyle": "SQL, DMY", "IntervalStyle": "iso_8601"})
    engine = create_engine(odd.url)
    shown = text("SELECT CAST(DATE '2026-03-02' AS text), CAST(INTERVAL '90 s' AS text)")
    with engine.connect() as connection:
        create_tasks(connection, [NewTask("t"), NewTask("t", None, {"unique_key": "k"})])
        assert connection.execute(shown).one() == ("02/03/2026", "PT1M30S")
        assert list_schedules(connection) == []
        assert connection.execute(text("SELECT DATE '03/02/2026' = DATE '2026-02-03'")).scalar()
        connection.rollback()
        assert connection.execute(shown).one() == ("02/03/2026", "PT1M30S")
    engine.dispose()


def test_a_connection_whose_encoding_lacks_a_character_is_told_in_a_sentence(odd: Odd) -> None:
    odd.set({"client_encoding": "LATIN1"})
    engine = create_engine(odd.url)
    with engine.connect() as connection:
        with pytest.raises(TasksError) as told:
            create_task(connection, "t", {"secret": TEXT})
        assert create_task(connection, "t", {"text": "naïve"}).created
    engine.dispose()
    assert "client_encoding=utf8" in str(told.value)
    assert told.value.__suppress_context__


def test_a_read_only_role_is_told_in_a_sentence(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    (odd.folder / "only_here.py").write_text(
        "from tasks_app import handler\nhandler('only.here')(lambda ctx: None)\n"
    )
    monkeypatch.syspath_prepend(odd.folder)
    monkeypatch.setenv("TASKS_APP_IMPORTS", "only_here")
    odd.set({"default_transaction_read_only": "on"})
    try:
        runner = {
            command: CliRunner().invoke(group, command.split())
            for command in ("doctor", "create t", "pause mail", "work --drain", "list")
        }
    finally:
        odd.set({})

    assert {command: done.exit_code for command, done in runner.items()} == {
        "doctor": 1,
        "create t": 1,
        "pause mail": 1,
        "work --drain": 1,
        "list": 0,
    }
    for command in ("doctor", "create t", "pause mail", "work --drain"):
        assert "This role can only read" in runner[command].output, command
