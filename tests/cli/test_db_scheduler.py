"""``db-scheduler``: without pg_cron here; with it in ``tests/edge/test_database.py``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tasks_app import create_schedule
from tasks_app.pool.db_scheduler import functions
from tests.cli.shell import Shell

CALLS = """\
To be called:
  * * * * *  SELECT public.task_rescue_expired()
  * * * * *  SELECT public.task_sweep()
  * * * * *  SELECT public.task_maintain_partitions()
"""
NIGHTLY = (
    "SELECT public.task_fire_schedule('nightly', '@daily', 'UTC', minutes => '{0}', hours => '{0}')"
)


@pytest.fixture(autouse=True)
def _tidy(engine: Engine) -> Iterator[None]:
    yield
    with engine.begin() as connection:
        functions.drop(connection)


def test_functions_are_made_shown_and_removed(shell: Shell, engine: Engine) -> None:
    nothing = shell("db-scheduler", "status")
    assert (nothing.returncode, nothing.stdout) == (
        1,
        "functions: not installed; no pg_cron in the database of the tasks; 0 jobs\n",
    )

    with engine.begin() as connection:
        create_schedule(connection, "nightly", "report", cron="@daily")
    made = shell("db-scheduler", "install", "--functions-only")
    assert (made.returncode, made.stdout) == (0, f"{CALLS}  0 0 * * *  {NIGHTLY}\n")
    with engine.begin() as connection:
        for line in made.stdout.splitlines()[1:]:
            connection.exec_driver_sql(line.split("  ")[-1])
    state = shell("db-scheduler", "status", "--json")
    assert state.returncode == 0
    assert json.loads(state.stdout)["functions"] == "installed"

    gone = shell("db-scheduler", "remove")
    assert gone.stdout == "0 jobs and 5 functions removed\n"
    with engine.begin() as connection:
        assert functions.drop(connection) == 0


def test_nobody_else_may_call_them(shell: Shell, engine: Engine) -> None:
    shell("db-scheduler", "install", "--functions-only")
    with engine.begin() as connection:
        open_to_all = connection.execute(
            text("""SELECT proname FROM pg_proc, aclexplode(proacl) AS g
                WHERE proname LIKE 'task%' AND obj_description(oid, 'pg_proc') LIKE 'tasks_app %'
                  AND g.grantee = 0""")
        ).all()
    assert open_to_all == []


def test_a_schedule_that_the_database_cannot_fire_is_named_and_nothing_is_changed(
    shell: Shell, engine: Engine
) -> None:
    with engine.begin() as connection:
        create_schedule(connection, "often", "report", every="10s")

    refused = shell("db-scheduler", "install", "--functions-only")
    assert refused.returncode == 2
    assert refused.stderr.strip().endswith(
        "pg_cron cannot fire often: it has no cron expression. "
        "Change or disable them, or leave them to beat or a worker by --leave-unfit."
    )
    assert "not installed" in shell("db-scheduler", "status").stdout

    assert shell("db-scheduler", "install", "--functions-only", "--leave-unfit").returncode == 0
    assert "often is left to beat or a worker: it has no cron expression" in (
        shell("db-scheduler", "status").stdout
    )


def test_without_pg_cron_it_says_what_to_do(shell: Shell) -> None:
    refused = shell("db-scheduler", "install")
    assert refused.returncode == 2
    assert "pg_cron is not installed in the database" in refused.stderr
    assert "--functions-only" in refused.stderr
    elsewhere = shell("db-scheduler", "status", "--cron-database", "nowhere")
    assert elsewhere.returncode == 2
    assert elsewhere.stderr == "The server has no database nowhere. Correct --cron-database.\n"


@pytest.mark.test_all
def test_tasks_in_sql_are_registered_on_request(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = ("db-scheduler", "install", "--functions-only", "--sql-tasks")
    declared = 'import tasks_app\ntasks_app.sql_handler("one", "SELECT :n::int")\n'
    module = Path("sql_declared.py")  # in the folder of the shell
    module.write_text(declared)
    monkeypatch.setenv("TASKS_APP_IMPORTS", "sql_declared")
    assert shell.process(*install).stdout == f"{CALLS}  * * * * *  CALL public.task_run_sql()\n"
    assert "functions: installed;" in shell.process("db-scheduler", "status").stdout

    limited = 'tasks_app.sql_handler("two", "SELECT 2", timeout="1s")\n'
    module.write_text(declared.replace("int", "bigint") + limited)
    other = shell.process("db-scheduler", "status")
    assert "installed by other code" in other.stdout
    assert "two is left to workers: it has a timeout, " in other.stdout
    again = "Run again: tasks-app db-scheduler install --sql-tasks --functions-only --leave-unfit\n"
    assert other.stderr.endswith(again)
    module.write_text("")
    assert "Set TASKS_APP_IMPORTS as where it" in shell.process("db-scheduler", "status").stderr
    assert "There are no tasks in SQL" in shell.process(*install).stderr
