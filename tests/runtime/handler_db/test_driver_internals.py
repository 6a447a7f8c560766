"""A psycopg whose insides are not as we know them: slower, and as safe; or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg._preparing import PrepareManager
from sqlalchemy import Engine, text

from tasks_app import create_task, get_task
from tasks_app.domain.finding import Level
from tasks_app.runtime.handler_db import driver_internals
from tasks_app.runtime.handler_db.driver_internals import SHARED_SESSIONS
from tests.environment import in_all_processes, rename
from tests.factory import do
from tests.runtime.bench import EFFECT, Bench, effect

# The same promises, kept without what is missing.
from tests.runtime.effects import (  # noqa: F401
    test_effect_outcome_and_move_carry_one_transaction_id,
    test_effects_roll_back_when_the_handler_raises,
    test_effects_roll_back_when_the_lease_was_lost_meanwhile,
)
from tests.runtime.handler_db.kept_connections import (  # noqa: F401
    test_an_end_past_our_cursors_is_seen,
    test_what_a_run_kept_writes_into_no_later_run,
)

pytestmark = [pytest.mark.timeout(90, method="thread"), pytest.mark.usefixtures("cold_connections")]

NOTICE = "has no psycopg:Connection._deallocate as we know it: each run that writes opens a session"
HANDLERS = """
from sqlalchemy import text
from tasks_app import handler

@handler("write")
def write(ctx):
    ctx.session.execute(text("INSERT INTO effect VALUES (:id, '')"), {"id": ctx.task_id})
"""


@pytest.fixture(autouse=True)
def renamed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a psycopg that forgets what was prepared by another name."""
    rename("_deallocate", psycopg.BaseConnection, PrepareManager, patch=monkeypatch)
    _look_again()
    yield
    _look_again()


def _look_again() -> None:
    for known in ("missing", "works"):
        vars(SHARED_SESSIONS).pop(known, None)


def test_each_run_has_a_session_of_its_own(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any) -> int:
        effect(ctx)
        return ctx.session.scalar(text("SELECT pg_backend_pid()"))

    ids = [bench.create() for _ in range(4)]
    bench.execute(ids)
    assert bench.states(ids) == ["SUCCEEDED"] * 4
    assert len({bench.task(i).result for i in ids}) == 4


def test_async_runs_write_with_their_outcome(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    async def h(ctx: Any, payload: dict[str, int]) -> None:
        await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
        if payload["n"] % 2:
            raise ValueError

    ids = [bench.create(payload={"n": n}) for n in range(4)]
    bench.drain()
    assert bench.states(ids) == ["SUCCEEDED", "FAILED"] * 2
    assert [bench.effects(i) for i in ids] == [1, 0] * 2


def test_a_check_up_names_what_is_missing() -> None:
    (found,) = driver_internals.examine()
    assert found.level is Level.WARN
    assert NOTICE in found.fact
    assert found.advice == "Install psycopg<3.4,>=3.2.13."


@pytest.mark.test_all
@pytest.mark.test_all
def test_a_worker_says_so_and_works(engine: Engine, database_url: str, tmp_path: Path) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effect (task_id bigint, note text)"))
        task_id = create_task(connection, "write")

    done = _work(
        database_url,
        tmp_path,
        "import psycopg, psycopg._preparing",
        "rename('_deallocate', psycopg.BaseConnection, psycopg._preparing.PrepareManager)",
    )

    assert done.returncode == 0, done.stderr
    assert NOTICE in done.stderr
    with engine.connect() as connection:
        assert get_task(connection, task_id).state == "SUCCEEDED"
        rows = connection.execute(
            text("SELECT count(*) FROM effect WHERE task_id = :id"), {"id": task_id}
        )
        assert rows.scalar_one() == 1


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("rename('wait', psycopg.Connection)", "psycopg:Connection.wait"),
        ("rename('_start_query', psycopg.BaseConnection)", "psycopg:Connection._start_query"),
        (
            "sys.modules['psycopg.generators'] = None; del psycopg.generators",
            "psycopg.generators:execute",
        ),
    ],
)
def test_a_psycopg_that_cannot_be_seen_through_is_refused_in_one_sentence(
    engine: Engine, database_url: str, tmp_path: Path, line: str, missing: str
) -> None:
    task_id = do(engine, create_task, "write")
    done = _work(database_url, tmp_path, "import sys, psycopg", line)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"has no {missing} as we know it" in done.stderr
    assert "Install psycopg<3.4,>=3.2.13." in done.stderr
    assert do(engine, get_task, task_id).state == "PENDING"


def _work(url: str, folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    environment = in_all_processes(folder / "site", *lines)
    (folder / "site" / "writing.py").write_text(HANDLERS)
    return subprocess.run(
        [sys.executable, "-m", "tasks_app", "work", "--drain"],
        cwd=folder,
        env={
            **os.environ,
            **environment,
            "TASKS_APP_DATABASE_URL": url,
            "TASKS_APP_IMPORTS": "writing",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
