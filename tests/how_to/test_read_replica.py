"""The guide to replicas, on one that streams from the session's server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from tasks_app import Settings, create_task
from tasks_app.embedded.servers import Postgres
from tasks_app.testing import drain, travel
from tests.cli.shell import Shell
from tests.how_to.conftest import Load
from tests.how_to.standby import Standby
from tests.tiers import starts_processes

pytestmark = pytest.mark.test_all


@pytest.fixture(scope="module")
@starts_processes
def standby(
    postgres: Postgres, database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("standby")
    with Standby(folder, make_url(database_url)) as server:
        yield server.url


@pytest.fixture(scope="module")
def guide(load: Load, standby: str) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICA_URL", standby)
        guide = load("read-replica/replica.py")
        yield guide
        guide.replica().dispose()


@pytest.fixture
def shop(engine: Engine) -> Iterator[Engine]:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE purchase (cents int)"))
        connection.execute(text("CREATE TABLE shop_total (task bigint, orders int, cents int)"))
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE purchase, shop_total"))


def order(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO purchase VALUES (100)"))
        create_task(connection, "total.make")


def totals(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return [*connection.scalars(text("SELECT orders FROM shop_total ORDER BY task"))]


def test_a_report_has_the_order_that_asked_for_it(
    guide: Any, shop: Engine, database_url: str
) -> None:
    for number in range(1, 4):
        order(shop)
        drain(Settings(database_url=database_url)).assert_succeeded()
        assert totals(shop)[-1] == number


def test_a_replica_that_stands_still_is_waited_for_uncharged(
    guide: Any, shop: Engine, standby: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide.wait_for, "__defaults__", (0.2,))
    settings = Settings(database_url=database_url)
    there = create_engine(standby, isolation_level="AUTOCOMMIT")
    with there.connect() as replica:
        replica.execute(text("SELECT pg_wal_replay_pause()"))
        order(shop)
        (run,) = drain(settings).waiting
        assert "the replica is behind" in str(run.error)
        replica.execute(text("SELECT pg_wal_replay_resume()"))
    there.dispose()

    with shop.begin() as connection:
        travel("30s", connection)
    drain(settings).assert_succeeded()
    assert totals(shop) == [1]


def test_commands_that_read_work_there_and_others_say_why_not(
    standby: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Shell(monkeypatch, tmp_path, TASKS_APP_DATABASE_URL=standby)
    for command in (["list"], ["stats"], ["metrics", "--once"]):
        assert run(*command).returncode == 0, command
    assert "tasks_app_up 1" in run("metrics", "--once").stdout
    refused = run("create", "total.make", "{}")
    assert refused.returncode != 0
    assert "the database is a standby" in refused.stderr
