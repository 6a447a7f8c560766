"""`healthz` as a probe calls it: quick, and with an exit code."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tasks_app.runtime.health_files import Liveness

pytestmark = pytest.mark.test_all

BIN = Path(sys.executable).parent
FORMS = (
    (str(BIN / "tasks-app"), "healthz"),
    (sys.executable, "-m", "tasks_app", "healthz"),
    (str(BIN / "celery"), "-A", "tasks_app", "pool", "healthz"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TASKS_APP_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("TASKS_APP_LEASE", "nonsense")  # a probe needs no settings
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("form", FORMS[:2], ids=["script", "module"])
def test_it_exits_with_0_or_1_and_says_why(form: Sequence[str]) -> None:
    Liveness("worker", "a@host", good_for_s=60).beat()
    good = run(*form, "--role", "worker")
    named = run(*form, "--role", "worker", "--node", "b@host")
    bad = run(*form, "--role", "beat")
    assert (good.returncode, good.stdout.startswith("worker a@host: alive")) == (0, True)
    assert (named.returncode, bad.returncode) == (1, 1)
    assert bad.stdout.startswith("beat: no sign of life")


def test_it_is_a_command_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKS_APP_LEASE")
    Liveness("db", good_for_s=60).beat()
    wrong, helped = run(*FORMS[0], "--role", "x"), run(*FORMS[0], "--help")
    in_celery = run(*FORMS[2], "--role=db")
    assert (wrong.returncode, helped.returncode, in_celery.returncode) == (2, 0, 0)
    assert "'worker', 'beat', 'db'" in wrong.stderr
    assert "--node" in helped.stdout
    assert in_celery.stdout.startswith("db: alive")


def test_it_costs_hardly_more_than_the_start_of_python() -> None:
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


def test_it_imports_nothing_that_costs() -> None:
    code = (
        "import sys; sys.argv = ['x', 'healthz', '--role', 'worker']; from tasks_app.cli.main"
        " import main\ntry: main()\nfinally: print(*sys.modules)"
    )
    modules = set(run(sys.executable, "-c", code).stdout.split())
    assert "tasks_app.runtime.health_files" in modules
    assert not modules & {"click", "sqlalchemy", "pydantic", "celery", "re", "pathlib", "typing"}
    assert os.environ["TASKS_APP_LEASE"] == "nonsense"
