"""The guide to PgBouncer: its settings, in a PgBouncer that is started where one is installed."""

from __future__ import annotations

import configparser
import logging
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.orm import Session

from dev.torture.pgbouncer import pgbouncer_program
from tasks_app import Settings, create_task, get_task, handler
from tasks_app.embedded.process import HOST, choose_port
from tasks_app.monitor.checks.database import wake_ups
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.notify import Listener, NotifyHints
from tasks_app.testing import drain
from tests.clock import until
from tests.docs.reading import blocks
from tests.how_to.conftest import Load
from tests.how_to.pages import page
from tests.servers import GIVEN, NO_PGBOUNCER, NOT_OURS
from tests.tiers import starts_processes

(INI,) = blocks(page("pgbouncer"), "ini")
USED = text("SELECT count(*) FROM pg_prepared_statements")


@pytest.fixture
def database(load: Load) -> Callable[[str], Any]:
    """The module of the guide, on this URL; every test has its own."""

    def on(url: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SHOP_DATABASE_URL", url)
            return load("pgbouncer/database.py")

    return on


def prepared(engine: Engine) -> int:
    with engine.connect() as connection:
        for number in range(20):
            connection.execute(text("SELECT CAST(:number AS int)"), {"number": number})
        return int(connection.execute(USED).scalar_one())


@pytest.fixture
@starts_processes
def pooled(database_url: str, open_folder: Path) -> Iterator[str]:
    """URL of the test's database behind a PgBouncer with the guide's settings."""
    program = pgbouncer_program()
    if program is None:
        pytest.skip(NO_PGBOUNCER)
    if GIVEN:
        pytest.skip(NOT_OURS)  # nobody knows how it lets PgBouncer in
    url, port = make_url(database_url), choose_port(None)
    (open_folder / "userlist.txt").write_text(f'"{url.username}" "{url.password}"\n')
    ini = configparser.ConfigParser()
    ini.read_string(INI)
    ini["databases"] = {str(url.database): f"host={url.host} port={url.port}"}
    here = {"listen_port": str(port), "auth_file": str(open_folder / "userlist.txt")}
    ini["pgbouncer"].update(here | {"unix_socket_dir": "", "default_pool_size": "2"})
    with (open_folder / "pgbouncer.ini").open("w") as file:
        ini.write(file)
    command = [program, str(open_folder / "pgbouncer.ini")]
    if os.geteuid() == 0:  # it refuses root
        command = [shutil.which("setpriv") or "setpriv", *NOBODY, *command]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: process.poll() is not None or _listens(port), 10, "PgBouncer listens")
        yield url.set(port=port).render_as_string(hide_password=False)
        process.terminate()
        assert process.stderr is not None
        assert "ERROR" not in process.stderr.read()


NOBODY = [f"--reuid={pwd.getpwnam('nobody').pw_uid}", "--clear-groups"]


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex((HOST, port)) == 0


def test_the_guides_engine_prepares_nothing(
    database: Callable[[str], Any], database_url: str
) -> None:
    plain = create_engine(database_url)
    engine = database(database_url).engine
    assert prepared(plain) > 0
    assert prepared(engine) == 0
    plain.dispose()
    engine.dispose()


def test_tasks_run_behind_it(engine: Engine, pooled: str, database: Callable[[str], Any]) -> None:
    registry = Registry()
    handler("behind", registry=registry)(lambda ctx: ctx.session.scalar(text("SELECT 7")))
    shop = database(pooled).engine
    tasks = []
    for _ in range(20):
        with Session(shop) as session, session.begin():
            tasks.append(create_task(session, "behind"))

    drained = drain(Settings(database_url=pooled, prepare=False), registry=registry)

    assert drained.assert_succeeded().counts == {"SUCCEEDED": 20}
    with engine.connect() as connection:
        assert {get_task(connection, task).result for task in tasks} == {7}
    shop.dispose()


def test_nobody_listens_behind_it(
    engine: Engine, pooled: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    heard: list[set[str]] = []
    behind = Database(pooled, prepare=False)
    settings = Settings(database_url=pooled, prepare=False)
    with Listener(behind, heard.append):
        until(lambda: any("through the pooler" in said for said in caplog.messages), 20)

    with behind.begin() as connection:
        (finding,) = wake_ups(connection, settings)
    behind.dispose()
    assert heard == []
    assert finding.fact == (
        "LISTEN does not pass the pooler before the database: tasks-app work polls every 1s"
    )
    with engine.connect() as connection:
        listens = text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        assert connection.scalar(listens) == 0
    assert len([said for said in caplog.messages if "pooler" in said]) == 1


def test_hints_pass_through_it(engine: Engine, database_url: str, pooled: str) -> None:
    """Who sends them may stand behind it, if who listens does not."""
    heard: list[set[str]] = []
    hints = NotifyHints(Settings(database_url=pooled, prepare=False))
    with Listener(Database(database_url), heard.append):
        until(lambda: heard)
        hints.publish("mail", [1])
        until(lambda: heard[1:] == [{"mail"}])
    hints._database.dispose()
