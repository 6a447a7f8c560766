"""The demo as a newcomer runs it: real servers, workers, beat, Flower and mails."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from sqlalchemy import Engine, NullPool, create_engine, text

from tasks_app.embedded.stack import temporary
from tests.factory import pending_task
from tests.servers import Databases

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One folder for all runs here: the second day must not stumble over the first."""
    with temporary() as stack:
        stack.down()
        yield stack.folder


def run_demo(folder: Path, examples: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Without a terminal: it ends by itself."""
    command = [sys.executable, "-m", "shop", "--no-ui", "--orders=15"]
    return subprocess.run(
        [*command, f"--folder={folder}", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(examples), "TASKS_APP_DATABASE_URL": "nowhere"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def test_a_day_passes_every_check_and_leaves_no_process(folder: Path, examples: Path) -> None:
    ended = run_demo(folder, examples)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("✔") >= 16
    assert [word in ended.stdout for word in ("⚡ kill -9", "⚡ FLUSHALL")] == [True, True]
    assert "Traceback" not in ended.stdout + ended.stderr
    assert left_running(folder) == []
    assert "earlier runs" not in ended.stdout
    assert "Everything is still running" not in ended.stdout
    assert re.search(r"✔ dashboard +ready in .* http://127.0.0.1:\d+/", ended.stdout)


def test_with_a_terminal_it_names_the_dashboard_and_stays(folder: Path, examples: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "shop", "--no-ui", "--orders=15", f"--folder={folder}"]
    environment = {**os.environ, "PYTHONPATH": str(examples)}
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(command, cwd=folder, env=environment, **streams)
    os.close(theirs)
    said = read_until(ours, "Ctrl-C stops everything")
    (address,) = re.findall(r"open (http://\S+) +the dashboard", said)
    with urllib.request.urlopen(f"{address}api/tasks?name=points.grant") as answer:
        shown = json.load(answer)
    process.send_signal(signal.SIGINT)
    rest = read_until(ours, "the data stays")

    assert process.wait(30) == 0, said + rest
    os.close(ours)
    assert shown["number"] >= 10
    assert left_running(folder) == []


def read_until(terminal: int, words: str) -> str:
    """Return what a terminal shows, to these words; it keeps reading, or the writer would wait."""
    said = ""
    while words not in said:
        if not select.select([terminal], [], [], 120)[0]:
            raise AssertionError(f"{words!r} did not come after {said}")
        said += os.read(terminal, 4096).decode(errors="replace")
    return said


def test_a_spoiled_row_fails_the_next_day_in_the_same_folder(folder: Path, examples: Path) -> None:
    ended = run_demo(folder, examples, "--sabotage")

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "✘ Every order has its points exactly once" in ended.stdout
    assert "worker.log" in ended.stdout
    assert re.search(r"! \d+ tasks of earlier runs stay in the pool, ids up to \d+;", ended.stdout)
    assert f"To begin anew, later: tasks-app down; rm -r {folder}" in ended.stdout


def test_a_day_in_a_database_of_the_readers_own(
    folder: Path, examples: Path, databases: Databases
) -> None:
    """Its own server need not run, and there are no tasks but the demo's."""
    url = databases.create("day")
    ended = run_demo(folder, examples, f"--database-url={url}")
    with create_engine(url, poolclass=NullPool).begin() as connection:
        names = set(connection.scalars(text("SELECT name FROM task_completed")))
        connection.execute(text("UPDATE task_completed SET name = 'ours' WHERE name ~ 'mail'"))
    again = run_demo(folder, examples, f"--database-url={url}")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {"points.grant", "payslip.mail"} <= names
    assert re.search(r"✔ PostgreSQL \d+\S*\s+ready .* yours", ended.stdout)
    assert again.returncode == 1
    assert "tasks that are not the demo's, such as 'ours'. Name a database" in again.stdout


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("sqlite://", 2, "sqlite is not PostgreSQL"),
        ("postgres://me@127.0.0.1:1/x", 1, "does not answer: Connection refused. Look at --data"),
    ],
)
def test_a_database_that_cannot_be_had_is_a_sentence(
    folder: Path, examples: Path, url: str, status: int, said: str
) -> None:
    ended = run_demo(folder, examples, f"--database-url={url}")

    assert ended.returncode == status
    assert said in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def left_running(folder: Path) -> list[str]:
    """Return what still runs in the folder: our processes have it as their working directory."""
    here = str(folder.resolve())
    processes = psutil.process_iter(["cwd", "cmdline"])
    return [" ".join(p.info["cmdline"] or []) for p in processes if p.info["cwd"] == here]


def test_it_says_how_to_look_around_from_a_shell_that_knows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shop.closing import _activation

    (tmp_path / ".venv/bin").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    without = _activation()
    (tmp_path / ".venv/bin/activate").touch()

    assert (without, _activation()) == ("", ". .venv/bin/activate && ")


def test_it_stays_only_where_there_is_a_terminal_on_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from shop.demo import _somebody_watches

    ours, theirs = pty.openpty()
    answers = {}
    with os.fdopen(theirs, "r+b", buffering=0) as terminal, Path(os.devnull).open() as nothing:
        for ends in ((terminal, terminal), (nothing, terminal), (terminal, nothing)):
            monkeypatch.setattr(sys, "stdin", ends[0])
            monkeypatch.setattr(sys, "stdout", ends[1])
            answers[ends[0] is terminal, ends[1] is terminal] = _somebody_watches()
            monkeypatch.undo()
    os.close(ours)

    assert answers == {(True, True): True, (False, True): False, (True, False): False}


def test_a_later_day_says_what_the_pool_holds_already(engine: Engine, tmp_path: Path) -> None:
    from shop.stage import Stage

    said = io.StringIO()
    stage = Stage(tmp_path, Console(file=said), keep=False)
    stage.engine = engine
    stage.tell_of_earlier_runs()
    empty = said.getvalue()
    with engine.begin() as connection:
        newest = [pending_task(connection) for _ in range(3)][-1]
    stage.tell_of_earlier_runs()

    assert empty == ""
    assert f"! 3 tasks of earlier runs stay in the pool, ids up to {newest};" in said.getvalue()
    assert f"To begin anew, later: tasks-app down; rm -r {tmp_path}" in said.getvalue()
