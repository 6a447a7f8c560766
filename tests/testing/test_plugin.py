"""The fixtures, as a project has them that has installed the package and pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text

from tests.tiers import starts_processes

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
