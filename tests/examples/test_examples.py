"""The examples run."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import smtplib
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import psutil
import pytest
from rich.console import Console
from shop.mail import ADDRESS_VARIABLE, MailPutOffError, MailRefusedError, send_mail
from shop.mailserver import FAR_AWAY, NOBODY, PATIENCE, MailServer
from sqlalchemy import Engine, NullPool, create_engine, text

from tasks_app.embedded.stack import temporary
from tests.factory import pending_task
from tests.servers import Databases
from tests.testing.test_created import INSTALLED, MODULE


def slow(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.test_all(pytest.mark.timeout(200)(test))


ROWS = int(os.environ.get("EXAMPLES_ROWS", "3000"))
"""1,000,000 orders and 200,000 lines are for who has the time."""


@pytest.mark.test_all
def test_a_worker_carries_out_the_task_of_hello(
    engine: Engine, database_url: str, examples: Path
) -> None:
    given = {"TASKS_APP_DATABASE_URL": database_url, "TASKS_APP_IMPORTS": "hello"}
    said = succeeds(examples, [str(examples / "hello.py")], given)
    succeeds(examples, ["-m", "tasks_app", "work", "--drain"], given)
    with engine.connect() as connection:
        [(state, result)] = connection.execute(text("SELECT state, result FROM task_all"))
    assert "tasks-app show" in said
    assert state == "SUCCEEDED"
    assert result == {"said": "Hello, world! This is attempt 1."}


def run(
    examples: Path, arguments: list[str], environment: dict[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with the examples on the path, and without a terminal."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(examples), **environment},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600 if ROWS > 3000 else 170,
        check=False,
    )


def succeeds(
    examples: Path, arguments: list[str], environment: dict[str, str], folder: Path | None = None
) -> str:
    ended = run(examples, arguments, environment, folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    server = MailServer()
    server.up()
    monkeypatch.setenv(ADDRESS_VARIABLE, server.address)
    yield server
    server.down()


def send(to: str, key: UUID) -> None:
    send_mail(to, "Your order", about="order:1", key=key)


def test_an_accepted_mail_is_counted_under_its_key(server: MailServer) -> None:
    key = uuid4()
    for _ in range(2):
        send("ada@example.org", key)
    assert server.accepted == {("order:1", str(key)): 2}


def test_a_refused_address_is_final_and_not_named_in_the_message(server: MailServer) -> None:
    with pytest.raises(MailRefusedError) as caught:
        send(NOBODY, uuid4())
    assert str(caught.value) == "SMTP 550"
    assert not server.accepted


@pytest.mark.parametrize(
    ("to", "error", "words", "copies"),
    [
        (f"tony{PATIENCE}", MailPutOffError, "SMTP 451", 1),
        (f"frances{FAR_AWAY}", smtplib.SMTPServerDisconnected, ".", 2),
    ],
    ids=["one that is put off arrives once", "one whose line breaks late arrives twice"],
)
def test_a_second_try_has_the_same_key(
    server: MailServer, to: str, error: type[Exception], words: str, copies: int
) -> None:
    key = uuid4()
    with pytest.raises(error, match=words):
        send(to, key)
    send(to, key)
    assert server.accepted == {("order:1", str(key)): copies}


def test_a_server_that_was_down_comes_back_on_its_port_and_remembers(server: MailServer) -> None:
    key = uuid4()
    send("ada@example.org", key)
    server.down()
    with pytest.raises(OSError, match="refused"):
        send("ada@example.org", key)
    server.up()
    send("ada@example.org", key)
    assert server.accepted == {("order:1", str(key)): 2}


class Night:
    """Runs commands with the examples on the path."""

    def __init__(self, engine: Engine, url: str, examples: Path, folder: Path) -> None:
        self.engine, self._url, self._examples, self._folder = engine, url, examples, folder

    def __call__(self, job: str, *arguments: str) -> str:
        given = {"TASKS_APP_DATABASE_URL": self._url, "TASKS_APP_IMPORTS": f"batch.{job}"}
        return succeeds(self._examples, [*arguments], given, self._folder)

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        with self.engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []


@pytest.fixture
def night(engine: Engine, database_url: str, examples: Path, tmp_path: Path) -> Iterator[Night]:
    night = Night(engine, database_url, examples, tmp_path)
    yield night
    night.sql("DROP TABLE IF EXISTS orders, sales_of_day, payroll, payslip")
    night.sql("DROP TABLE IF EXISTS message, message_archive")


@pytest.mark.test_all
def test_statistics_of_a_day(night: Night, examples: Path) -> None:
    night("sales", str(examples / "batch" / "sales.py"), str(ROWS))
    night("sales", "-m", "tasks_app", "batch", "start", "sales", '{"day": "2026-11-21"}')
    night("sales", "-m", "tasks_app", "work", "--drain")
    counted = "SELECT city, count(*), sum(cents) FROM orders GROUP BY city ORDER BY city"
    assert night.sql("SELECT status FROM task_batch") == [("COMPLETED",)]
    found = night.sql("SELECT city, orders, cents FROM sales_of_day ORDER BY city")
    assert found == night.sql(counted)


@pytest.mark.test_all
def test_a_payroll_becomes_payslips(night: Night, examples: Path, tmp_path: Path) -> None:
    params = '{"path": "payroll.csv", "month": "2026-11"}'
    night("payroll", str(examples / "batch" / "payroll.py"), str(ROWS), "payroll.csv")
    damaged = (tmp_path / "payroll.csv").read_text().replace("\n7,", "\nseven,")
    (tmp_path / "payroll.csv").write_text(damaged)
    night("payroll", "-m", "tasks_app", "batch", "start", "payroll", params)
    night("payroll", "-m", "tasks_app", "work", "--drain")
    assert night.sql("SELECT status FROM task_batch") == [("COMPLETED",)]
    bad = 1 + ROWS // 50_000
    assert night.sql("SELECT count(*) FROM payroll") == [(ROWS - bad,)]
    assert night.sql("SELECT count(*) FROM payslip") == [(ROWS - bad,)]
    assert night.sql("SELECT count(*), min(reason) FROM task_batch_skip")[0][0] == bad


@pytest.mark.test_all
def test_old_rows_go_to_the_archive(night: Night, examples: Path) -> None:
    sys.path.insert(0, str(examples))
    try:
        from batch.archive import SCHEMA  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(examples))
    for statement in SCHEMA.split(";"):
        night.sql(statement)
    night.sql(
        "INSERT INTO message SELECT i, date '2024-12-01' + CAST(i % 60 AS int), 'text', i % 10 = 0"
        f" FROM generate_series(1, {ROWS}) AS i"
    )
    before = night.sql("SELECT count(*) FROM message WHERE sent < '2025-01-01' AND NOT pinned")
    night("archive", "-m", "tasks_app", "batch", "start", "archive", '{"before": "2025-01-01"}')

    night("archive", "-m", "tasks_app", "work", "--drain")

    left = "SELECT count(*) FROM message WHERE sent < '2025-01-01' AND NOT pinned"
    assert night.sql(left) == [(0,)]
    assert night.sql("SELECT count(*) FROM message_archive") == before
    both = "SELECT count(*) FROM message JOIN message_archive USING (id)"
    assert night.sql(both) == [(0,)]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One folder for all runs here: the second day must not stumble over the first."""
    with temporary() as stack:
        stack.down()
        yield stack.folder


def run_demo(folder: Path, examples: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Without a terminal it ends by itself."""
    command = ["-m", "shop", "--no-ui", "--orders=15", f"--folder={folder}", *options]
    return run(examples, command, {"TASKS_APP_DATABASE_URL": "nowhere"}, folder)


@slow
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


@slow
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


@slow
def test_a_spoiled_row_fails_the_next_day_in_the_same_folder(folder: Path, examples: Path) -> None:
    ended = run_demo(folder, examples, "--sabotage")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "✘ Every order has its points exactly once" in ended.stdout
    assert "worker.log" in ended.stdout
    assert re.search(r"! \d+ tasks of earlier runs stay in the pool, ids up to \d+;", ended.stdout)
    assert f"To begin anew, later: tasks-app down; rm -r {folder}" in ended.stdout


@slow
def test_a_day_in_the_readers_database(folder: Path, examples: Path, databases: Databases) -> None:
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


@slow
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


@slow
def test_it_says_how_to_look_around_from_a_shell_that_knows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shop.closing import _activation  # it declares handlers

    (tmp_path / ".venv/bin").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    without = _activation()
    (tmp_path / ".venv/bin/activate").touch()
    assert (without, _activation()) == ("", ". .venv/bin/activate && ")


@slow
def test_it_stays_only_with_a_terminal_on_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from shop.demo import _somebody_watches  # it declares handlers

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


@slow
def test_a_later_day_says_what_the_pool_holds_already(engine: Engine, tmp_path: Path) -> None:
    from shop.stage import Stage  # it declares handlers

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


@pytest.mark.test_all
def test_it_passes(project: Path, database_url: str, tmp_path: Path) -> None:
    ini = tmp_path / "pytest.ini"
    ini.write_text("[pytest]\nfilterwarnings = error\n")
    plugin = [] if INSTALLED else ["-p", MODULE]
    where = ["-c", str(ini), "--rootdir", ".", "--tasks-app-server", database_url]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *where, "."],
        cwd=project / "examples/testing",
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert "13 passed" in done.stdout, done.stdout + done.stderr
