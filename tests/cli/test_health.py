"""``doctor``, ``config`` and ``healthz`` as operators and probes call them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tasks_app.embedded.servers import Valkey
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.health_files import Liveness
from tests.environment import run_program

pytestmark = pytest.mark.test_all

SECRET = "hunter2"
BIN = Path(sys.executable).parent


class Shell:
    """Runs our commands in processes of their own: Celery's app reads its settings once."""

    def __init__(self, folder: Path, **environment: str) -> None:
        ours = ("TASKS_APP_", "CELERY_", "COLUMNS")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        self.environment = {**kept, **environment}
        self.folder = folder

    def __call__(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_program(
            [BIN / "tasks-app", *arguments],
            cwd=self.folder,
            env={**self.environment, **more},
            timeout=120,
        )


@pytest.fixture
def shell(engine: Engine, database_url: str, broker: Valkey, tmp_path: Path) -> Shell:
    (tmp_path / "celeryconfig.py").write_text("worker_concurrency = 5\ntask_acks_latte = 1\n")
    return Shell(
        tmp_path,
        TASKS_APP_DATABASE_URL=database_url,
        TASKS_APP_BROKER_URL=broker.url,
        PYTHONPATH=str(tmp_path),
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {finding["subject"]: finding for finding in json.loads(done.stdout)}


@pytest.mark.usefixtures("healthy")
def test_warnings_exit_with_0_and_say_what_to_do(shell: Shell, engine: Engine) -> None:
    done = shell("doctor", TASKS_APP_LEAS="5s")

    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    warnings = [line for line in lines if line.startswith("warn")]
    assert [line.split()[1] for line in warnings] == ["settings", "workers", "scan", "celery"]
    assert (
        "TASKS_APP_LEAS is unknown; perhaps TASKS_APP_LEASE is meant. No setting has this name"
        in warnings[0]
    )
    assert "Start one: celery -A tasks_app worker" in warnings[1]
    assert "task_acks_latte, which Celery ignores. Write task_acks_late." in warnings[3]
    assert all(line.startswith(("ok ", "warn ")) for line in lines)


def test_a_failure_exits_with_1_and_a_silent_end_with_3(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        heartbeats.write_heartbeat(
            connection, owner="w", node="n", queues=["default"], handlers=["t"]
        )
    shell("create", "stranger")
    failing = shell("doctor", "--json")
    away = shell("doctor", "--json", TASKS_APP_BROKER_URL=f"redis://:{SECRET}@127.0.0.1:1/0")
    assert (failing.returncode, away.returncode) == (1, 3)
    assert findings(failing)["handlers"]["level"] == "fail"
    assert findings(away)["broker"]["away"]
    assert SECRET not in away.stdout + away.stderr


def test_a_wrong_setting_or_module_is_a_finding(shell: Shell) -> None:
    wrong = shell("doctor", TASKS_APP_LEASE=SECRET)
    broken = shell("doctor", TASKS_APP_IMPORTS="no_such_module")
    (shell.folder / "cli_wrong.py").write_text("def send(:\n")
    syntax = findings(shell("doctor", "--json", TASKS_APP_IMPORTS="cli_wrong"))["handlers"]
    assert (wrong.returncode, broken.returncode) == (1, 1)
    assert "cli_wrong.py:1 (SyntaxError: " in syntax["fact"]
    assert wrong.stdout.startswith("fail  settings      TASKS_APP_LEASE is wrong")
    assert wrong.stdout.endswith(" or 10m. See docs/reference/settings.md.\n")
    assert "no_such_module" in broken.stdout
    assert SECRET not in wrong.stdout
    assert "Traceback" not in wrong.stderr + broken.stderr


def test_config_shows_what_holds_and_from_where_without_secrets(shell: Shell) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:1/0"
    database = f"postgresql+psycopg://u:{SECRET}@127.0.0.1/x"

    done = shell(
        *("config", "--json"),
        TASKS_APP_LEASE="5s",
        TASKS_APP_BROKER_URL=url,
        TASKS_APP_DATABASE_URL=database,
    )
    shown = json.loads(done.stdout)
    table = shell("config", TASKS_APP_BROKER_URL=url)

    assert done.returncode == 0
    assert SECRET not in done.stdout + table.stdout
    assert shown["tasks_app"]["TASKS_APP_LEASE"] == {"value": "5s", "source": "environment"}
    assert shown["tasks_app"]["TASKS_APP_SCAN_INTERVAL"]["source"] == "default"
    assert ":***@" in shown["tasks_app"]["TASKS_APP_DATABASE_URL"]["value"]
    assert shown["celery"]["worker_concurrency"] == {"value": 5, "source": "celeryconfig"}
    assert "TASKS_APP_BROKER_URL" in table.stdout


BIN = Path(sys.executable).parent
FORMS = (
    (str(BIN / "tasks-app"), "healthz"),
    (sys.executable, "-m", "tasks_app", "healthz"),
    (str(BIN / "celery"), "-A", "tasks_app", "pool", "healthz"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TASKS_APP_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("TASKS_APP_LEASE", "nonsense")  # a probe needs no settings
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return run_program(command)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("form", FORMS[:2], ids=["script", "module"])
def test_healthz_exits_with_0_or_1_and_says_why(form: Sequence[str]) -> None:
    Liveness("worker", "a@host", good_for_s=60).beat()
    good = run(*form, "--role", "worker")
    named = run(*form, "--role", "worker", "--node", "b@host")
    bad = run(*form, "--role", "beat")
    assert (good.returncode, good.stdout.startswith("worker a@host: alive")) == (0, True)
    assert (named.returncode, bad.returncode) == (1, 1)
    assert bad.stdout.startswith("beat: no sign of life")


@pytest.mark.usefixtures("folder")
def test_healthz_is_a_command_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKS_APP_LEASE")
    Liveness("db", good_for_s=60).beat()
    wrong, helped = run(*FORMS[0], "--role", "x"), run(*FORMS[0], "--help")
    in_celery = run(*FORMS[2], "--role=db")
    assert (wrong.returncode, helped.returncode, in_celery.returncode) == (2, 0, 0)
    assert "'worker', 'beat', 'db'" in wrong.stderr
    assert "--node" in helped.stdout
    assert in_celery.stdout.startswith("db: alive")


@pytest.mark.usefixtures("folder")
def test_healthz_costs_hardly_more_than_the_start_of_python() -> None:
    """In CPU time, interleaved, so that the load of the machine meets both alike."""
    Liveness("worker", "a@host", good_for_s=60).beat()
    commands = ([sys.executable, "-c", "pass"], [*FORMS[0], "--role", "worker"])
    rounds = [[cpu_s(command) for command in commands] for _ in range(9)]
    bare, healthz = (statistics.median(spans) for spans in zip(*rounds, strict=True))
    assert healthz - bare <= max(0.030, 1.5 * bare), (bare, healthz)


def cpu_s(command: Sequence[str]) -> float:
    """How much CPU time a process takes that ends well."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


@pytest.mark.usefixtures("folder")
def test_healthz_imports_nothing_that_costs() -> None:
    code = (
        "import sys; sys.argv = ['x', 'healthz', '--role', 'worker']; from tasks_app.cli.main"
        " import main\ntry: main()\nfinally: print(*sys.modules)"
    )
    modules = set(run(sys.executable, "-c", code).stdout.split())
    assert "tasks_app.runtime.health_files" in modules
    assert not modules & {"click", "sqlalchemy", "pydantic", "celery", "re", "pathlib", "typing"}
    assert os.environ["TASKS_APP_LEASE"] == "nonsense"
