"""What the kit asserts, and where it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.states import State
from tasks_app.pool import testing
from tasks_app.pool.tables import TABLES
from tasks_app.runtime.api.limits import set_limit
from tasks_app.runtime.api.producer import acreate_task, create_task
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.schedules.schedules import create_schedule
from tasks_app.testing import (
    TasksTestMixin,
    aassert_created,
    acreated,
    assert_created,
    created,
    drain,
    empty_pool,
)
from tasks_app.testing.draining import FAULTS
from tests.factory import count
from tests.runtime.api.test_django import in_django
from tests.runtime.bench import Bench
from tests.runtime.conftest import bench  # noqa: F401  a fixture
from tests.testing.conftest import Kit, in_async_session
from tests.tiers import starts_processes


class Points(BaseModel):
    order_id: int
    note: str = ""


@dataclass
class Mail:
    to: str


def test_what_was_created_is_seen_before_any_commit(session: Session, engine: Engine) -> None:
    task_id = create_task(session, "points.grant", {"order_id": 7})
    (task,) = created(session)
    assert (task.id, task.name, task.payload) == (task_id, "points.grant", {"order_id": 7})
    with engine.connect() as other:
        assert count(other) == 0


@pytest.mark.parametrize("place", ["connection", "raw"])
def test_on_a_connection(request: pytest.FixtureRequest, place: str) -> None:
    connection = request.getfixturevalue(place)
    create_task(connection, "a", {"n": 1})
    assert assert_created(connection, "a", {"n": 1})[0].state is State.PENDING
    assert [task.name for task in created(connection)] == ["a"]
    empty_pool(connection)
    assert created(connection) == []


def test_in_an_async_session(engine: Engine, database_url: str) -> None:
    async def scene(session: AsyncSession) -> None:
        for place in (session, await session.connection()):
            await acreate_task(place, "a", {"n": 1})
        assert len(await acreated(await session.connection(), "a")) == 2
        await aassert_created(session, "a", {"n": 1}, count=2)

    in_async_session(database_url, scene)


def test_the_oldest_comes_first(session: Session) -> None:
    for number in range(3):
        create_task(session, "a", {"n": number})
    assert [task.payload["n"] for task in created(session)] == [0, 1, 2]


def test_a_dict_need_not_be_the_whole_payload(session: Session) -> None:
    create_task(session, "a", {"order": {"id": 7, "sum": 1}, "note": "x"})
    assert created(session, "a", {"order": {"id": 7}})
    assert not created(session, "a", {"order": {"id": 8}})
    assert not created(session, "a", {"gift": None})


def test_models_and_others_are_compared_as_they_are_stored(kit: Kit) -> None:
    @kit.handler("points.grant")
    def grant(ctx: object, payload: Points) -> None: ...
    @kit.handler("sum")
    def add(ctx: object, payload: list[int]) -> None: ...

    session = kit.session
    create_task(session, add, [1, 2])
    assert_created(session, add, [1, 2], count=1)
    create_task(session, grant, Points(order_id=7))
    create_task(session, "mail.send", Mail("a@example.org"))
    assert_created(session, grant, Points(order_id=7), count=1)
    assert_created(session, "mail.send", Mail("a@example.org"), count=1)
    assert_created(session, "points.grant", Points(order_id=8), count=0)


@pytest.mark.parametrize(
    ("option", "value", "other"),
    [
        ("queue", "mails", "default"),
        ("priority", 1, 5),
        ("biz_key", "order:7", None),
        ("unique_key", "u", None),
        ("order_key", "o", None),
        ("limit_key", "l", ["l", "m"]),
        ("limit_key", ["l", "m"], "l"),
        ("weight", None, 7),
        ("delay", "1h", "2h"),
        ("run_at", datetime(2040, 1, 1, tzinfo=UTC), datetime(2040, 1, 2, tzinfo=UTC)),
        ("expires_at", datetime(2040, 1, 1, tzinfo=UTC), None),
        ("max_attempts", 7, None),
        ("enabled", False, True),
        ("headers", {"tenant": "x"}, {"tenant": "y"}),
    ],
)
def test_options_are_asserted(session: Session, option: str, value: object, other: object) -> None:
    create_task(session, "a", None, **{option: value})  # type: ignore[arg-type]
    assert_created(session, "a", **{option: value})  # type: ignore[arg-type]
    assert_created(session, "a", count=0, **{option: other})  # type: ignore[arg-type]


def test_a_function_may_decide(session: Session) -> None:
    create_task(session, "a", {"sum": 12})
    assert_created(session, "a", test=lambda task: task.payload["sum"] > 10)
    assert_created(session, "a", count=0, test=lambda task: task.payload["sum"] > 20)


def test_a_failing_assertion_says_what_was_created_instead(session: Session) -> None:
    create_task(session, "mail.send", {"to": "b"}, queue="mails", delay="1h", biz_key="order:7")
    create_task(session, "other")
    with pytest.raises(AssertionError) as failure:
        assert_created(session, "mail.send", {"to": "a"}, queue="mails")
    first, second, third = str(failure.value).splitlines()
    wanted = 'mail.send with payload {"to": "a"}, queue \'mails\''
    assert first == f"0 instead of at least 1 were created of {wanted}. Created were:"
    found = "payload {\"to\": \"b\"}, queue 'mails', biz_key 'order:7', delay 1h"
    assert second.endswith(f"PENDING): {found}")
    assert third.startswith("  other (")


def test_count_is_exact(session: Session) -> None:
    with pytest.raises(AssertionError, match=r"of a\. Nothing was created\."):
        assert_created(session, "a")
    create_task(session, "a")
    create_task(session, "a")
    assert len(assert_created(session, "a", count=2)) == 2
    with pytest.raises(AssertionError, match="2 instead of 1 were created of a"):
        assert_created(session, "a", count=1)


def test_a_misspelt_option_is_refused(session: Session) -> None:
    with pytest.raises(TypeError, match="has no bizkey"):
        created(session, "a", bizkey="order:7")  # type: ignore[call-arg]


def left(session: Session) -> dict[str, int]:
    counted = {
        name: session.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()
        for name in TABLES - {"tasks_app_version"}
    }
    return {name: number for name, number in counted.items() if number}


def test_it_leaves_nothing_but_the_version(session: Session, registry: Registry) -> None:
    @handler("a", registry=registry, max_attempts=1)
    def bad(ctx: TaskContext) -> None:
        raise ValueError

    create_task(session, bad)
    create_task(session, "b", order_key="o", unique_key="u", unique_scope="forever")
    create_schedule(session, "s", "b", every="1h")
    set_limit(session, "queue", "mail", most=5)
    drain(session, registry=registry)
    assert len(left(session)) > 5
    empty_pool(session)
    assert left(session) == {}
    assert session.execute(text("SELECT count(*) FROM tasks_app_version")).scalar() == 1


def test_large_tables_are_truncated(session: Session) -> None:
    number = 50 * testing.LARGE
    session.execute(
        text(
            "INSERT INTO task_pending (name, payload) SELECT 'a', jsonb_build_object('n',"
            f" repeat('x', 200)) FROM generate_series(1, {number})"
        )
    )
    empty_pool(session)
    assert left(session) == {}


OWN = Registry()
CALLS: list[Any] = []


@handler("points.grant", registry=OWN, retry="1h")
def grant(ctx: TaskContext, payload: dict[str, Any]) -> int:
    CALLS.append(payload)
    return int(payload["order_id"])


class ShopCase(TasksTestMixin, unittest.TestCase):
    __test__ = False
    given: ClassVar[Any] = None
    tasks_registry = OWN

    def setUp(self) -> None:
        CALLS.clear()
        self.tasks_session = self.given

    def test_points(self) -> None:
        create_task(self.given, grant, {"order_id": 7}, delay="1h")
        self.assert_created(grant, {"order_id": 7}, count=1)
        assert len(self.created("points.grant", delay="1h")) == 1
        assert self.run_task(grant, {"order_id": 7}) == 7
        assert len(self.drain()) == 0
        self.travel("1h")
        self.fail_next(grant, ValueError)
        assert len(self.drain().waiting) == 1
        self.travel("1h")
        self.drain().assert_succeeded()
        self.crash_next(grant)


class CommittedCase(TasksTestMixin, unittest.TestCase):
    __test__ = False
    tasks_registry = OWN

    def test_points(self) -> None:
        assert len(self.drain().succeeded) == 1
        with pytest.raises(RuntimeError, match="no tasks_session"):
            self.created()


def passes(case: type[unittest.TestCase]) -> None:
    result = unittest.TestResult()
    case("test_points").run(result)
    assert result.wasSuccessful(), result.failures + result.errors
    assert FAULTS == []


@pytest.mark.parametrize("place", ["session", "raw"])
def test_in_a_session_and_on_djangos_connection(request: pytest.FixtureRequest, place: str) -> None:
    ShopCase.given = request.getfixturevalue(place)
    passes(ShopCase)
    assert len(CALLS) == 3


def test_committed(engine: Engine, database_url: str) -> None:
    with engine.begin() as connection:
        create_task(connection, grant, {"order_id": 7})
    CommittedCase.tasks_settings = Settings(database_url=database_url)
    passes(CommittedCase)


CASE = """
import unittest
from django.test import TestCase
from tasks_app.testing import TasksTestMixin

def note(cursor, text):
    cursor.execute("INSERT INTO django_note VALUES (%s)", [text])

@handler("points.grant", retry="1h,1h")
def grant(ctx, payload):
    with connection.cursor() as cursor:
        note(cursor, payload["text"])
    ctx.session.connection().exec_driver_sql("INSERT INTO django_note VALUES ('ours')")
    if payload.get("bad"):
        raise ValueError("no")

def notes():
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM django_note ORDER BY text")
        return [text for text, in cursor.fetchall()]

class OrderTest(TasksTestMixin, TestCase):
    tasks_session = connection

    def test_points(self):
        with transaction.atomic():
            create_task(connection, "points.grant", {"text": "good"})
            create_task(connection, "points.grant", {"text": "bad", "bad": True})
        self.assert_created("points.grant", count=2)
        drained = self.drain()
        self.assertEqual(drained.counts, {"SUCCEEDED": 1, "PENDING": 1})
        self.assertEqual(notes(), ["good", "ours"])
        self.travel("1h")
        self.assertEqual(len(self.drain().waiting), 1)
        self.assertFalse(connection.needs_rollback)

with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE IF NOT EXISTS django_note (text text)")
tests = unittest.TestLoader().loadTestsFromTestCase(OrderTest)
result = unittest.TextTestRunner().run(tests)
assert result.wasSuccessful()
assert notes() == []
with connection.cursor() as cursor:
    cursor.execute("SELECT count(*) FROM task_pending")
    assert cursor.fetchall() == [(0,)]
    cursor.execute("DROP TABLE django_note")
"""


@pytest.mark.test_all
def test_a_test_case_creates_drains_and_rolls_back(bench: Bench) -> None:  # noqa: F811
    done = in_django(bench, CASE)
    assert done.returncode == 0, done.stderr


MODULE = "tasks_app.testing.plugin"
INSTALLED = any(each.value == MODULE for each in entry_points(group="pytest11"))
USERS = """
from sqlalchemy import Column, Integer, MetaData, Table, select, text
import pytest
from tasks_app import create_task, handler
from tasks_app.testing import assert_created, drain

METADATA = MetaData()
POINTS = Table("points", METADATA, Column("order_id", Integer))


@pytest.fixture(scope="session")
def tasks_app_tables():
    return METADATA.create_all


@handler("points.grant")
def grant(ctx, payload):
    ctx.session.execute(POINTS.insert(), {"order_id": payload["order_id"]})


@pytest.mark.parametrize("turn", [1, 2])
def test_rolled_back(tasks_app_session, turn):
    create_task(tasks_app_session, grant, {"order_id": 7})
    tasks_app_session.commit()
    assert_created(tasks_app_session, grant, count=1)
    drain(tasks_app_session).assert_succeeded()
    assert tasks_app_session.scalars(select(POINTS.c.order_id)).all() == [7]


@pytest.mark.parametrize("turn", [1, 2])
def test_committed(tasks_app_pool, tasks_app_engine, turn):
    with tasks_app_engine.begin() as connection:
        create_task(connection, grant, {"order_id": turn})
    assert len(drain().succeeded) == 1


def test_settings(tasks_app_settings, tasks_app_engine):
    with tasks_app_engine.begin() as connection:
        create_task(connection, grant, {"order_id": 3})
    assert len(drain(tasks_app_settings).succeeded) == 1


def test_a_database_of_its_own(tasks_app_database):
    from sqlalchemy import NullPool, create_engine
    with create_engine(tasks_app_database, poolclass=NullPool).begin() as connection:
        assert connection.execute(select(POINTS)).all() == []
        create_task(connection, grant, {"order_id": 4})
    assert len(drain().succeeded) == 1
"""
EMPTIED = """

@pytest.mark.parametrize("turn", range(40))
def test_emptied(tasks_app_pool, tasks_app_engine, turn):
    with tasks_app_engine.begin() as connection:
        create_task(connection, "a")
        assert connection.exec_driver_sql("SELECT count(*) FROM task_pending").scalar() == 1
"""


def users_tests(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_shop.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugin = [] if INSTALLED else ["-p", MODULE]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def databases_of_kits(url: str) -> int:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT count(*) FROM pg_database WHERE datname LIKE 'tasks\\_app\\_kit%'")
        )
        return int(found.scalar_one())


@pytest.fixture(scope="module")
@starts_processes
def given(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> str:
    """What pytest says of the tests of a project, on a server where a session was killed."""
    engine = create_engine(database_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE tasks_app_kit_00000000_0_ab")
    options = ("--tasks-app-server", database_url, "--durations=0", "--durations-min=0")
    done = users_tests(tmp_path_factory.mktemp("shop"), USERS + EMPTIED, *options)
    return done.stdout + done.stderr


def test_on_a_server_that_is_given(given: str) -> None:
    assert "46 passed in" in given, given


def test_databases_are_dropped_those_of_a_killed_session_too(given: str, database_url: str) -> None:
    assert databases_of_kits(database_url) == 0


def test_a_pool_is_empty_within_twenty_milliseconds(given: str) -> None:
    """Of 40 the fastest: others work on this machine, too."""
    took = [float(s) for s in re.findall(r"^([\d.]+)s setup .*test_emptied", given, re.M)]
    assert len(took) == 40
    assert min(took) <= 0.02


@pytest.mark.test_all
def test_on_an_embedded_server(tmp_path: Path) -> None:
    done = users_tests(tmp_path, USERS)
    assert "6 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.test_all
def test_it_costs_nothing_where_it_is_not_used() -> None:
    heavy = "{'sqlalchemy', 'psycopg', 'pydantic', 'celery'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"import pytest, sys, {MODULE}; print({heavy} or 'light')"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "light"
