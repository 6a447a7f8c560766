"""``erase``, ``export``, ``import``, ``maintain``, ``notify`` and ``db-scheduler`` at the shell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tasks_app import create_schedule, create_task
from tasks_app.domain.errors import SchemaError
from tasks_app.pool.db_scheduler import functions
from tasks_app.pool.dispatch import notifications
from tasks_app.pool.operations.erase import check_may_erase
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tests.cli.shell import Shell
from tests.pool.test_statistics import left_no_row
from tests.runtime.api.acts import make


@pytest.fixture
def task_id(engine: Engine) -> int:
    with engine.begin() as connection:
        return create_task(connection, "t", {"card": "canary"}, biz_key="customer:7")


def test_erase_prints_a_receipt(shell: Shell, task_id: int) -> None:
    assert (
        "0 tasks would be erased" in shell("erase", "--biz-key", "customer:7", "--dry-run").stdout
    )
    left = shell("erase", "--biz-key", "customer:7")
    assert left.returncode == 1
    assert "1 task left, still to run: --cancel" in left.stderr

    done = shell("erase", "--biz-key", "customer:7", "--cancel", "--why", "asked for", "--json")

    receipt = json.loads(done.stdout)
    assert done.returncode == 0
    assert (receipt["tasks"], receipt["cancelled"], receipt["complete"]) == (1, 1, True)
    assert receipt["rows"]["task_completed"] == 1
    assert receipt["why"] == "asked for"
    assert "canary" not in done.stdout + shell("show", str(task_id)).stdout
    assert "1 task erased" in shell("erase", "--biz-key", "customer:7").stdout


def test_only_the_owner_may_erase(engine: Engine, task_id: int) -> None:
    role = "eraser_of_test"
    with engine.connect() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        connection.execute(text(grants_sql(RoleKind.ADMIN, role)))
        connection.execute(text(f"SET LOCAL ROLE {role}"))
        with pytest.raises(SchemaError, match="Run this as the owner of the tables"):
            check_may_erase(connection)
        connection.rollback()
        check_may_erase(connection)
    assert task_id


def test_a_move_at_the_shell(shell: Shell, engine: Engine, tmp_path: Path) -> None:
    ids = make(engine, 2)
    shell("hold", *map(str, ids))
    exported = shell("export", "tasks.jsonl", "--held")
    with engine.begin() as connection:  # as another database, which lacks them
        kept = connection.execute(text("DELETE FROM task_pending RETURNING idempotency_key")).all()
    imported = shell("import", "tasks.jsonl")
    again = shell("import", "tasks.jsonl", "--receipt", "again", "--json")
    refused = shell("import", "tasks.jsonl")
    left = shell("cancel-moved", "tasks.jsonl.moved")

    assert exported.stdout == "2 tasks exported to tasks.jsonl\n"
    assert imported.stdout == "2 tasks of tasks.jsonl here: tasks.jsonl.moved says which\n"
    receipt = (tmp_path / "tasks.jsonl.moved").read_text()
    lines = [json.loads(line) for line in receipt.splitlines()]
    assert [line["id"] for line in lines] == ids
    assert len(kept) == 2
    assert json.loads(again.stdout) == {"tasks": 2, "left_out": []}
    assert (tmp_path / "again").read_text() == receipt
    assert "tasks.jsonl.moved exists already" in refused.stderr
    assert (left.returncode, left.stdout) == (1, "0 tasks cancelled\n")
    assert f"2 left alone, not held here or gone: {ids[0]} {ids[1]}" in left.stderr


def test_tables_and_indexes_are_listed_with_what_they_waste(shell: Shell) -> None:
    shown = shell("maintain", "--all")
    all_of_them = json.loads(shell("maintain", "--all", "--json").stdout)
    assert shown.stdout.splitlines()[0].split()[:3] == ["name", "table", "kind"]
    assert {"task_pending", "task_pending_pkey"} <= {each["name"] for each in all_of_them}
    assert {each["kind"] for each in all_of_them} == {"table", "index"}


def test_where_little_is_wasted_it_lists_nothing_and_rewrites_nothing(shell: Shell) -> None:
    nothing = "Nothing wastes a megabyte. To list all: tasks-app maintain --all\n"
    assert shell("maintain").stdout == nothing
    assert json.loads(shell("maintain", "--json").stdout) == []
    assert shell("maintain", "--reindex").stdout == (
        "0 indexes rebuilt. None wastes more than half and 10 MB.\n"
    )


def test_a_named_index_is_written_anew(shell: Shell) -> None:
    done = shell("maintain", "--reindex", "--index", "task_limit_pkey")
    assert done.returncode == 0
    assert done.stdout.startswith("task_limit_pkey: ")
    assert done.stdout.endswith("1 index rebuilt.\n")


@pytest.fixture
def no_trigger(engine: Engine) -> Iterator[None]:
    yield
    with engine.begin() as connection:
        notifications.remove_trigger(connection)


@pytest.mark.usefixtures("no_trigger")
def test_the_trigger_is_installed_and_removed_and_notify_says_so(shell: Shell) -> None:
    said = [
        shell("notify", verb).stdout.strip()
        for verb in ("status", "install", "install", "status", "remove", "remove")
    ]
    assert said == [
        *("not installed", "installed", "was installed already"),
        *("installed", "removed", "was not installed"),
    ]
    assert shell.json("notify", "install") == {"installed": True, "changed": True}
    assert shell.json("notify", "status") == {"installed": True}


@pytest.mark.usefixtures("no_trigger")
@pytest.mark.test_all
def test_notify_does_not_wait_long_for_those_who_create_tasks(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("LOCK task_pending IN ROW EXCLUSIVE MODE")
        done = shell("notify", "install")
    assert done.returncode == 3
    assert "LockNotAvailable" in done.stderr
    assert "Try again." in done.stderr
    assert shell("notify", "status").stdout.strip() == "not installed"


CALLS = """\
To be called:
  * * * * *  SELECT public.task_rescue_expired()
  * * * * *  SELECT public.task_sweep()
  * * * * *  SELECT public.task_maintain_partitions()
"""
NIGHTLY = (
    "SELECT public.task_fire_schedule('nightly', '@daily', 'UTC', minutes => '{0}', hours => '{0}')"
)


@pytest.fixture
def no_functions(engine: Engine) -> Iterator[None]:
    yield
    with engine.begin() as connection:
        functions.drop(connection)


@pytest.mark.usefixtures("no_functions")
def test_functions_of_the_db_scheduler_are_made_shown_and_removed(
    shell: Shell, engine: Engine
) -> None:
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


@pytest.mark.usefixtures("no_functions")
def test_only_the_owner_may_call_these_functions(shell: Shell, engine: Engine) -> None:
    shell("db-scheduler", "install", "--functions-only")
    with engine.begin() as connection:
        open_to_all = connection.execute(
            text("""SELECT proname FROM pg_proc, aclexplode(proacl) AS g
                WHERE proname LIKE 'task%' AND obj_description(oid, 'pg_proc') LIKE 'tasks_app %'
                  AND g.grantee = 0""")
        ).all()
    assert open_to_all == []


@pytest.mark.usefixtures("no_functions")
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


@pytest.mark.usefixtures("no_functions")
def test_without_pg_cron_it_says_what_to_do(shell: Shell) -> None:
    refused = shell("db-scheduler", "install")
    assert refused.returncode == 2
    assert "pg_cron is not installed in the database" in refused.stderr
    assert "--functions-only" in refused.stderr
    elsewhere = shell("db-scheduler", "status", "--cron-database", "nowhere")
    assert elsewhere.returncode == 2
    assert elsewhere.stderr == "The server has no database nowhere. Correct --cron-database.\n"


@pytest.mark.usefixtures("no_functions")
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


WORDS = (
    "1,200 tasks of sync.price, mail succeeded in the last 30 days and left no row, as their "
    "history setting says; the counters include them."
)


def test_commands_tell_of_successes_that_left_no_row(engine: Engine, shell: Shell) -> None:
    with engine.begin() as connection:
        left_no_row(connection, 1_190)
        left_no_row(connection, 10, "mail")
    for words in (
        ["list"],
        ["list", "--json"],
        ["list", "--state", "succeeded"],
        ["list", "--pool", "completed"],
        ["stats"],
        ["stats", "--json"],
    ):
        assert WORDS in shell(*words).stderr
    assert "1,190 tasks of sync.price succeeded" in shell("list", "--name", "sync.price").stderr
    assert shell("list", "--state", "failed").stderr == ""
    for words in (["show", "7"], ["show", "7", "--trail"]):
        assert "There is no task 7. 1,200 tasks of" in shell(*words).stderr
    assert "It may have left no row. 1,200 tasks of" in shell("explain", "7").stdout
