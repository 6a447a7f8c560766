"""Hints by NOTIFY in one process: what is told, who hears it, and what a lost connection costs."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil
import psycopg
import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tasks_app import create_task, hint_tasks
from tasks_app.embedded.servers import Postgres
from tasks_app.pool.dispatch.notifications import install_trigger, notify, remove_trigger
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.notify import Listener
from tests.clock import until
from tests.runtime.bench import Bench
from tests.runtime.notify.conftest import LISTENERS, Listening, until_quiet
from tests.statements import watched


@pytest.mark.timeout(60, method="thread")
@pytest.mark.usefixtures("hinting")
class TestProducers:
    def test_a_commit_is_told_but_no_rollback(self, bench: Bench, listening: Listening) -> None:
        with Session(bench.engine) as session:
            create_task(session, "t", queue="undone")
            session.rollback()
            create_task(session, "t", queue="mail")
            HINTS.flush(20)
            assert listening.notices == []
            session.commit()

        until(lambda: listening.notices)
        HINTS.flush(20)
        assert listening.notices == [{"mail"}]
        assert HINTS.counts().sent == 1

    def test_the_scan_need_not_wait_for_a_notice(self, bench: Bench) -> None:
        for _ in range(2):  # of a broker that took a hint, the next is expected
            with Session(bench.engine) as session, session.begin():
                task_id = create_task(session, "t")
            HINTS.flush(20)
        assert HINTS.counts().sent == 2
        waits = bench.sql("SELECT scan_at - due_at FROM task_pending WHERE id = :id", id=task_id)
        assert waits.total_seconds() == 0

    def test_the_producers_transaction_sends_nothing_itself(self, bench: Bench) -> None:
        """NOTIFY would let it commit only after all others that notify."""
        engine = bench.engine.execution_options()
        with watched(engine) as seen, Session(engine) as session, session.begin():
            create_task(session, "t")
        HINTS.flush(20)
        assert HINTS.counts().sent == 1
        assert any("INSERT" in statement.sql for statement in seen)
        assert not any("notify" in statement.sql for statement in seen)

    def test_a_commit_of_psycopg_is_told_by_hand(self, bench: Bench, listening: Listening) -> None:
        hint_tasks([bench.create("t", queue="mail")], queue="mail")
        until(lambda: listening.notices == [{"mail"}])

    def test_a_database_that_is_away_is_said_once_and_fails_no_commit(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("TASKS_APP_DATABASE_URL", "postgresql+psycopg://me@127.0.0.1:1/x")
        with Session(bench.engine) as session:
            for _ in range(3):
                task_id = create_task(session, "t")
                session.commit()
                HINTS.flush(20)
        assert bench.state(task_id) == "PENDING"
        said = [r.getMessage() for r in caplog.records if "takes no hints" in r.getMessage()]
        assert len(said) == 1
        assert said[0].startswith("the database takes no hints (OperationalError): tasks start at")


@pytest.mark.timeout(60, method="thread")
class TestListener:
    @pytest.mark.test_all
    def test_it_listens_again_when_the_server_has_ended_its_connection(
        self, bench: Bench, listening: Listening, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        bench.sql(LISTENERS.replace("count(*)", "pg_terminate_backend(pid)"))
        until(lambda: len(listening.heard) == 2, 20)  # what came meanwhile may be there: look
        assert listening.heard == [set(), set()]
        tell(bench, "mail")
        until(lambda: listening.notices == [{"mail"}])
        told = [r.getMessage() for r in caplog.records if "this process" in r.getMessage()]
        assert len(told) == 2
        assert told[0].startswith("the database does not wake this process, so it polls for work")
        assert told[1] == "the database wakes this process again"

    @pytest.mark.test_all
    def test_a_server_that_is_away_is_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        tries: list[float] = []
        heard: list[set[str]] = []

        class Away(Database):
            @property
            def engine(self) -> Engine:
                tries.append(time.monotonic())
                return super().engine

        database = Away("postgresql+psycopg://me@127.0.0.1:1/x")
        with Listener(database, heard.append, lambda: 0.01):
            until(lambda: len(tries) > 4)

        assert len([r for r in caplog.records if "polls for work" in r.getMessage()]) == 1
        assert heard == []
        assert tries[4] - tries[3] > tries[2] - tries[1]

    @pytest.mark.test_all
    def test_it_ends_and_leaves_nothing(self, bench: Bench, listeners: Callable[[], int]) -> None:
        listening = Listening(Database(bench.url))
        with listening.listener:
            until(listeners)
            began = time.monotonic()
        assert time.monotonic() - began < 0.5
        until(lambda: not listeners())
        assert "tasks_app listener" not in [t.name for t in threading.enumerate()]

    def test_it_goes_on_while_a_restarting_server_refuses_others(self, bench: Bench) -> None:
        """Only a server with none left is given way to, for a minute."""
        database = Database(bench.url)
        listening = Listening(database)
        url = make_url(bench.url).set(drivername="postgresql")
        elsewhere = url.set(database="postgres").render_as_string(hide_password=False)
        allow = f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS"
        with listening.listener, psycopg.connect(elsewhere, autocommit=True) as server:
            until(lambda: listening.heard)
            server.execute(f"{allow} false")
            try:
                with pytest.raises(OperationalError, match="not currently accepting"):
                    database.handler_engine.connect()
            finally:
                server.execute(f"{allow} true")
            for queue in ("one", "two"):  # the first ends its wait: does it wait again?
                tell(bench, queue)
                until(lambda queue=queue: {queue} in listening.notices)
        database.dispose()

    def test_pools_do_not_hear_each_other(self, bench: Bench, listening: Listening) -> None:
        bench.sql("SELECT pg_notify('tasks_app_1', 'mail')")
        tell(bench, "own")
        until(lambda: listening.notices == [{"own"}])

    @pytest.mark.test_all
    def test_a_forked_process_does_not_end_it(self, bench: Bench, listening: Listening) -> None:
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        tell(bench, "mail")
        until(lambda: listening.notices == [{"mail"}])

    def test_it_is_idle_for_longer_than_sessions_may_be(self, bench: Bench) -> None:
        """Roles may have an idle_session_timeout."""
        database = Database(f"{bench.url}?options=-c%20idle_session_timeout%3D200")
        listening = Listening(database)
        with listening.listener:
            until(lambda: listening.heard)
            shown = bench.sql(LISTENERS)
            assert shown == 1
            with database.begin() as connection:
                own = connection.scalar(text("SHOW idle_session_timeout"))
            assert own == "200ms"
            until(
                lambda: bench.sql(
                    f"SELECT bool_or(state_change < clock_timestamp() "
                    f"- interval '0.6 s') {LISTENERS.partition('count(*)')[2]}"
                )
            )
            assert len(listening.heard) == 1
        database.dispose()


def tell(bench: Bench, queue: str) -> None:
    """Send a notice as another process would."""
    bench.do(notify, queue)


HOUSE = Path(__file__).parents[2] / "broker" / "house"
LATE_S, SOON_S = 60, 10
"""The scan's interval, and how soon a task starts that somebody told of."""
Work = Callable[..., subprocess.Popen]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def work(bench: Bench, log: Path) -> Work:
    """Starts one; it is killed when the test ends."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}
    ours = {
        "TASKS_APP_DATABASE_URL": bench.url,
        "TASKS_APP_IMPORTS": "house_handlers",
        "TASKS_APP_SCAN_INTERVAL": f"{LATE_S}s",
        "PYTHONPATH": str(HOUSE),
    }

    def start(*arguments: str, **variables: str) -> subprocess.Popen:
        with log.open("ab") as stderr:
            parent = _start(stderr, {**kept, **ours, **variables}, *arguments)
        bench.at_end(lambda: _end(parent))
        return parent

    return start


def _start(stderr: IO[bytes], environment: dict[str, str], *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tasks_app", "work", *arguments]
    return subprocess.Popen(command, env=environment, stderr=stderr)


def _end(parent: subprocess.Popen) -> None:
    with suppress(psutil.NoSuchProcess):
        for process in (*psutil.Process(parent.pid).children(), parent):
            process.kill()
    parent.wait()


def starts_soon(bench: Bench) -> None:
    """Create tasks on a session, each while all workers sleep."""
    for _ in range(3):
        until_quiet(bench)
        with Session(bench.engine) as session, session.begin():
            task_id = create_task(session, "plain")
        until(lambda task=task_id: bench.state(task) == "SUCCEEDED", SOON_S, "the run")


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
@pytest.mark.usefixtures("hinting")
def test_a_task_starts_before_the_scan(
    bench: Bench, work: Work, listeners: Callable[[], int]
) -> None:
    parent = work("-c", "2")
    until(lambda: listeners() == 2, 30, "LISTEN of both")
    starts_soon(bench)
    began = time.monotonic()
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0
    assert time.monotonic() - began < SOON_S
    assert listeners() == 0


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
@pytest.mark.usefixtures("hinting")
def test_it_listens_again_after_a_restart_of_the_database(
    bench: Bench, work: Work, listeners: Callable[[], int], postgres: Postgres, log: Path
) -> None:
    work("-c", "1")
    until(listeners, 30)

    bench.engine.dispose()
    postgres.stop()
    postgres.start()
    bench.engine.dispose()

    until(listeners, 60, "LISTEN")
    starts_soon(bench)
    said = log.read_text()
    assert said.count("does not wake this process") == 1
    assert said.count("wakes this process again") == 1


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_sql_wakes_by_the_trigger(bench: Bench, work: Work, listeners: Callable[[], int]) -> None:
    bench.do(install_trigger)
    try:
        work("-c", "1")
        until(listeners, 30)
        for _ in range(3):
            until_quiet(bench)
            task_id = bench.sql("SELECT task_create('plain')")
            until(lambda task=task_id: bench.state(task) == "SUCCEEDED", SOON_S, "the run")
    finally:
        bench.do(remove_trigger)


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
def test_without_hints_none_listens(bench: Bench, work: Work, listeners: Callable[[], int]) -> None:
    work("-c", "1", TASKS_APP_HINTS="off", TASKS_APP_SCAN_INTERVAL="100ms")
    task_id = bench.create("plain")
    until(lambda: bench.state(task_id) == "SUCCEEDED", 30)
    assert listeners() == 0
