"""A drain that is stopped, or whose children get no connection: it says so, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url, text

from tests.cli.shell import Shell
from tests.clock import until
from tests.factory import pending_task
from tests.servers import named

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

CROWDED = "the processes got no connection: the database has none left"
STOPPED = "the drain was stopped before it reached them"
ROLE = named("drains")
HANDLERS = """
import time
from pathlib import Path
from tasks_app import handler

@handler("waits")
def waits(ctx):
    Path("begun").touch()
    while not ctx.stopping:
        time.sleep(0.01)

@handler("writes")
def writes(ctx):
    ctx.session.connection().exec_driver_sql("SELECT 1")
"""


@pytest.fixture
def shell(
    engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    (tmp_path / "drain_limits.py").write_text(HANDLERS)
    return Shell(
        monkeypatch,
        tmp_path,
        TASKS_APP_DATABASE_URL=database_url,
        TASKS_APP_IMPORTS="drain_limits",
    )


@pytest.fixture
def few(engine: Engine) -> Iterator[str]:
    """A role that may have one connection."""
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP ROLE IF EXISTS {ROLE}")
        connection.exec_driver_sql(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'few' CONNECTION LIMIT 1")
        owner = connection.execute(text("SELECT quote_ident(current_user)")).scalar_one()
        connection.exec_driver_sql(f"GRANT {owner} TO {ROLE}")
    yield ROLE
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {ROLE}")
        connection.exec_driver_sql(f"DROP ROLE {ROLE}")


def test_one_whose_children_get_no_connection_says_so(
    shell: Shell, engine: Engine, database_url: str, few: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(database_url).set(username=few, password="few")
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", url.render_as_string(hide_password=False))
    with engine.begin() as connection:
        first, *_ = [pending_task(connection, "writes") for _ in range(3)]

    monkeypatch.setenv("TASKS_APP_LEASE", "3s")

    done = shell.process("work", "--drain", "-c", "1")

    assert "has no connection left" in done.stderr
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            "Nothing ran.",
            "3 due tasks left:",
            f"  3 writes in default: {CROWDED}. More: tasks-app explain {first}",
        ],
    )


def test_one_that_is_stopped_says_so_and_what_is_left(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        ids = [pending_task(connection, "waits") for _ in range(2)]
    command = [sys.executable, "-m", "tasks_app", "work", "--drain", "-c", "1"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as drain:
        until(Path("begun").exists, 30)
        os.kill(drain.pid, signal.SIGTERM)
        said, _ = drain.communicate(timeout=60)

    assert (drain.returncode, said.splitlines()) == (
        1,
        [
            "1 run ended: 1 succeeded.",
            "It was stopped by SIGTERM.",
            "1 due task left:",
            f"  1 waits in default: {STOPPED}. More: tasks-app explain {ids[1]}",
        ],
    )
