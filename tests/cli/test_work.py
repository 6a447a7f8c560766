"""Commands that run workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest
from sqlalchemy import Engine, make_url, text

from tasks_app import create_task
from tasks_app.broker.checks import RefusedStart, check_database
from tasks_app.cli.group import COMMANDS, group, pool
from tasks_app.cli.work import print_drained, unrunnable_tasks
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.config.unreachable import PERMISSION_ADVICE
from tasks_app.embedded.servers import Valkey
from tasks_app.pool.connection.row_by_row import Refusal
from tasks_app.pool.dispatch.set_aside import park_tasks
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.tables import database_now
from tasks_app.runtime.worker.supervisor import WorkerEnd
from tests.broker.celery_process import CeleryProcess
from tests.cli.conftest import ShellWith
from tests.cli.shell import Shell
from tests.clock import until
from tests.environment import run_program
from tests.factory import claimed_task, pending_task, unknown
from tests.servers import named

READS = (
    "The database role {0} may not run tasks: it lacks UPDATE on task_pending and 6 more. As "
    "the owner of the tables, run: tasks-app grants worker --role {0} --apply"
)
HANDLERS_OF_ROLE = """
from tasks_app import handler

@handler("runs")
def runs(ctx):
    pass
"""


@pytest.fixture
def role(engine: Engine) -> Iterator[str]:
    role = named("creates")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'its'")
    yield role
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
        connection.exec_driver_sql(f"DROP ROLE {role}")


@pytest.fixture
def shell_of_role(role: str, database_url: str, shell_with: ShellWith) -> Shell:
    url = make_url(database_url).set(username=role, password="its")
    return shell_with("role_handlers", HANDLERS_OF_ROLE, url.render_as_string(False))


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        (RoleKind.PRODUCER, "work -c 2", PERMISSION_ADVICE),
        (RoleKind.READER, "work", READS),
        (RoleKind.READER, "work --drain", READS),
        (RoleKind.WORKER, "work --drain", None),
    ],
)
def test_a_role_that_may_not_run_tasks_is_refused_once(
    engine: Engine,
    role: str,
    shell_of_role: Shell,
    kind: RoleKind,
    arguments: str,
    words: str | None,
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(grants_sql(kind, role))
    done = shell_of_role.process(*arguments.split())
    assert done.returncode == (0 if words is None else 1)
    assert words is None or done.stderr.splitlines() == [words.format(role)]


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_so_does_the_worker_of_celery(
    engine: Engine, role: str, shell_of_role: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(grants_sql(RoleKind.READER, role))
    with pytest.raises(RefusedStart) as refused:
        check_database(load_settings())
    assert (refused.value.code, str(refused.value)) == (1, READS.format(role))


UNKNOWN = "no live worker of this queue has a handler named"
HANDLERS_OF_DRAINED = """
import os, signal
from tasks_app import Snooze, handler

@handler("runs")
def runs(ctx):
    pass

@handler("writes")
def writes(ctx):
    ctx.session.connection().exec_driver_sql("SELECT 1")

@handler("shares")
def shares(ctx):
    ctx.write("SELECT 1")

@handler("once", at_most_once=True)
def once(ctx):
    pass

@handler("later")
def later(ctx):
    raise Snooze("1h")

@handler("fails", max_attempts=1)
def fails(ctx):
    raise ValueError("no")

@handler("kills", max_attempts=1)
def kills(ctx):
    os.kill(os.getpid(), signal.SIGKILL)

@handler("mail", queue="mail")
def mail(ctx):
    pass
"""


@pytest.fixture
def shell_of_drained(shell_with: ShellWith) -> Shell:
    return shell_with("drain_handlers", HANDLERS_OF_DRAINED)


@pytest.mark.test_all
@pytest.mark.timeout(300)
def test_it_counts_what_ran_in_every_way_also_before_a_death(
    shell_of_drained: Shell, engine: Engine
) -> None:
    numbers = {"runs": 3, "writes": 2, "shares": 2, "once": 1, "later": 1, "fails": 1, "kills": 1}
    with engine.begin() as connection:
        for name, number in numbers.items():
            for _ in range(number):
                pending_task(connection, name)
        nobodys = pending_task(connection, "nobody")

    done = shell_of_drained.process("work", "--drain")

    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            "11 runs ended: 2 failed, 1 to run again, 8 succeeded.",
            "1 due task left:",
            f"  1 nobody in default: {UNKNOWN} nobody. More: tasks-app explain {nobodys}",
        ],
    )


@pytest.mark.test_all
@pytest.mark.timeout(120)
def test_a_process_may_use_more_memory_than_it_starts_with(shell_of_drained: Shell) -> None:
    done = shell_of_drained("work", "--max-memory", "1MB")
    assert done.returncode == 2
    assert "MB of a process that has run nothing. Give more." in done.stderr


@pytest.mark.test_all
def test_several_queues_may_be_given_in_one_text(shell_of_drained: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        for queue, name in (("default", "runs"), ("mail", "mail")):
            pending_task(connection, name=name, queue=queue)
    done = shell_of_drained.process("work", "--drain", "-c", "1", "-q", "default, mail")
    assert (done.returncode, done.stdout) == (0, "2 runs ended: 2 succeeded.\n")


@pytest.fixture
def now(engine: Engine) -> datetime:
    with engine.begin() as connection:
        return database_now(connection)


def found(engine: Engine, since: datetime) -> list[tuple[str, int, int, str]]:
    with engine.begin() as connection:
        left = unrunnable_tasks(connection, ["default", "mail"], since, WorkerEnd(0, None))
    return [(each["name"], each["number"], each["first"], each["why"]) for each in left]


def test_what_is_due_and_stays_is_told_with_its_reason(engine: Engine, now: datetime) -> None:
    before = now - timedelta(hours=1)
    with engine.begin() as connection:
        parked = [pending_task(connection, "nobody", now=before) for _ in range(2)]
        park_tasks(connection, parked, unknown("nobody"), timedelta(seconds=30))
        held = pending_task(connection, "mail", queue="mail", now=before)
        pause(connection, "mail", "the provider is down")
        pending_task(connection, "nobody", delay="1h")
        pending_task(connection, "runs", queue="elsewhere", now=before)
        claimed_task(connection)

    (first, second) = found(engine, now)

    assert first == ("nobody", 2, parked[0], f"{UNKNOWN} nobody")
    assert second[:3] == ("mail", 1, held)
    assert second[3].startswith("the queue is paused since ")
    assert second[3].endswith(": the provider is down")


def test_what_becomes_due_while_it_ends_does_not_count_unless_it_is_parked(
    engine: Engine, now: datetime
) -> None:
    with engine.begin() as connection:
        late, known = pending_task(connection, "late"), pending_task(connection, "known")
        park_tasks(connection, [known], unknown("known"), timedelta(seconds=30))
    assert found(engine, now - timedelta(hours=1)) == [("known", 1, known, f"{UNKNOWN} known")]
    assert [name for name, *_ in found(engine, now + timedelta(hours=1))] == ["late", "known"]
    assert found(engine, now + timedelta(hours=1))[0][2:] == (late, "the reason is unknown")


def test_it_says_nothing_ran(capsys: pytest.CaptureFixture[str]) -> None:
    print_drained({}, [], [], json_=False)
    assert capsys.readouterr().out == "Nothing ran.\n"


def test_it_says_what_the_database_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refused = Refusal("rescue of tasks", "7", "UniqueViolation 23505", datetime.now(UTC))
    print_drained({}, [], [refused], json_=False)
    assert capsys.readouterr().out == (
        "Nothing ran.\nrescue of tasks refused: 7 (UniqueViolation 23505).\n"
    )


BIN = Path(sys.executable).parent
TWO_WAYS = ([str(BIN / "tasks-app")], [str(BIN / "celery"), "-A", "tasks_app", "pool"])


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return run_program(command, timeout=120)


@pytest.mark.test_all
def test_celery_finds_the_same_commands_under_the_name_pool() -> None:
    (found,) = entry_points(group="celery.commands", name="pool")
    plugin = found.load()
    context = click.Context(plugin)
    assert plugin is pool
    assert plugin.name == "pool"
    assert plugin.list_commands(context) == group.list_commands(context) == list(COMMANDS)
    assert plugin.get_command(context, "list") is group.get_command(context, "list")


@pytest.mark.test_all
def test_the_plugin_imports_click_and_nothing_else_that_costs() -> None:
    """Every `celery` of this environment loads it, whatever it is about to do."""
    code = "import click, sys; a = set(sys.modules); import tasks_app.cli.group; "
    said = run(sys.executable, "-c", code + "print(*sorted(set(sys.modules) - a))").stdout
    names = [name for name in said.split() if name.split(".")[0] not in sys.stdlib_module_names]
    assert set(names) == {
        "tasks_app",
        "tasks_app.cli",
        "tasks_app.cli.group",
        "tasks_app.domain",
        "tasks_app.domain.errors",
        "tasks_app.runtime",
        "tasks_app.runtime.startup",  # the other imports go faster with it
    }


@pytest.mark.test_all
def test_what_goes_wrong_ends_the_same_both_ways(
    broker: Valkey, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKS_APP_BROKER_URL", broker.url)
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    unknown = [run(*way, "show", "999999999") for way in TWO_WAYS]
    misused = [run(*way, "cancel") for way in TWO_WAYS]
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", "postgresql+psycopg://u:secret@127.0.0.1:1/x")
    away = [run(*way, "list") for way in TWO_WAYS]

    for done, status in ((unknown, 1), (misused, 2), (away, 3)):
        assert [each.returncode for each in done] == [status, status], done
        assert done[0].stderr.splitlines()[-1] == done[1].stderr.splitlines()[-1]
        assert "Traceback" not in done[1].stderr
    assert "There is no task" in unknown[1].stderr
    assert "does not answer" in away[1].stderr


CANARY = "4111-canary"
HANDLERS_OF_JSON_LOG = """
from tasks_app import handler

@handler("log.charge", retry="0s")
def charge(ctx, payload):
    ctx.log.info("charging", extra={"payload": payload})
    raise ValueError(f"refused {payload['card']}")
"""


def json_lines(said: str) -> list[dict[str, Any]]:
    """Every line that begins as an object is one; the banner and the like are left out."""
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def about(lines: list[dict[str, Any]], logger: str) -> dict[str, Any]:
    return next(each for each in lines if each["logger"] == logger and "task_id" in each)


def make_task(engine: Engine) -> int:
    with engine.begin() as connection:
        return create_task(connection, "log.charge", {"card": CANARY}, biz_key="order:7")


def check(lines: list[dict[str, Any]], task_id: int, owner: str, said: str) -> None:
    run = {"task_id": task_id, "name": "log.charge", "queue": "default", "biz_key": "order:7"}
    for logger in ("tasks_app.handlers", "tasks_app.attempts"):
        found = about(lines, logger)
        assert {**found, **run} == found
        assert found["attempt"] >= 1
    assert about(lines, "tasks_app.handlers")["message"] == "charging"
    assert owner in {each["worker"] for each in lines}
    assert CANARY not in said


def owner_of(engine: Engine, task_id: int) -> str:
    with engine.connect() as connection:
        asked = text("SELECT owner FROM task_error WHERE id = :id")
        return str(connection.execute(asked, {"id": task_id}).scalar())


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_work_writes_json_alone(
    shell: Shell, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log_handlers.py").write_text(HANDLERS_OF_JSON_LOG)
    monkeypatch.setenv("TASKS_APP_IMPORTS", "log_handlers")
    monkeypatch.setenv("TASKS_APP_LOG_FORMAT", "json")
    task_id = make_task(engine)
    done = shell.process("work", "--drain", "-c", "1")
    assert done.returncode == 0
    assert all(line.startswith("{") for line in done.stderr.splitlines()), done.stderr
    check(json_lines(done.stderr), task_id, owner_of(engine, task_id), done.stderr)


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_celery_worker_and_beat_write_json(
    engine: Engine, database_url: str, broker: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "log_handlers.py").write_text(HANDLERS_OF_JSON_LOG)
    environment = {
        "TASKS_APP_DATABASE_URL": database_url,
        "TASKS_APP_BROKER_URL": broker.url,
        "TASKS_APP_IMPORTS": "log_handlers",
        "TASKS_APP_LOG_FORMAT": "json",
        "PYTHONPATH": str(tmp_path),
    }
    started = [
        CeleryProcess(tmp_path / "worker", environment, "-q", "worker", "-c", "1", "-l", "info"),
        CeleryProcess(tmp_path / "beat", environment, "-q", "beat", "-l", "info"),
    ]
    worker, beat = started
    try:
        task_id = make_task(engine)
        worker.says("and it is over", 60)
        until(lambda: bool(json_lines(beat.log())), 30)
    finally:
        for process in started:
            process.end()

    check(json_lines(worker.log()), task_id, owner_of(engine, task_id), worker.log())
    logged = worker.log()[worker.log().index("{") :]  # Celery warns of root before it logs
    assert all(line.startswith("{") for line in logged.splitlines())


CROWDED = "the processes got no connection: the database has none left"
STOPPED = "the drain was stopped before it reached them"
ROLE = named("drains")
HANDLERS_OF_STOPPED = """
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
def stopped_shell(shell_with: ShellWith) -> Shell:
    return shell_with("drain_limits", HANDLERS_OF_STOPPED)


@pytest.fixture
def few(engine: Engine) -> Iterator[str]:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP ROLE IF EXISTS {ROLE}")
        connection.exec_driver_sql(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'few' CONNECTION LIMIT 1")
        owner = connection.execute(text("SELECT quote_ident(current_user)")).scalar_one()
        connection.exec_driver_sql(f"GRANT {owner} TO {ROLE}")
    yield ROLE
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {ROLE}")
        connection.exec_driver_sql(f"DROP ROLE {ROLE}")


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_drain_whose_children_get_no_connection_says_so(
    stopped_shell: Shell,
    engine: Engine,
    database_url: str,
    few: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = make_url(database_url).set(username=few, password="few")
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", url.render_as_string(hide_password=False))
    with engine.begin() as connection:
        first, *_ = [pending_task(connection, "writes") for _ in range(3)]

    monkeypatch.setenv("TASKS_APP_LEASE", "3s")

    done = stopped_shell.process("work", "--drain", "-c", "1")

    assert "has no connection left" in done.stderr
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            "Nothing ran.",
            "3 due tasks left:",
            f"  3 writes in default: {CROWDED}. More: tasks-app explain {first}",
        ],
    )


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_a_drain_that_is_stopped_says_so_and_what_is_left(
    stopped_shell: Shell, engine: Engine
) -> None:
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
