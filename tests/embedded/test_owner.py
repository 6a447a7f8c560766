"""One owner per folder: who it is, what happens when it is killed, and who may end it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil
import pytest

from tasks_app.embedded.folder import (
    AlreadyOwnedError,
    EmbeddedError,
    StackState,
    read_state,
    read_urls,
)
from tasks_app.embedded.servers import Postgres
from tasks_app.embedded.stack import Stack, down, up
from tests.embedded.conftest import broker, has_ended, pids, spoil, sql, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.test_all

IN_A_THREAD = """
import signal, sys, threading
from tasks_app.embedded.stack import Stack
stack = Stack(sys.argv[1])
thread = threading.Thread(target=stack.up)
thread.start()
thread.join()
print("up", flush=True)
signal.pause()
"""


def state_of(folder: Path) -> StackState:
    state = read_state(folder)
    assert state is not None
    return state


def test_nothing_runs_in_a_new_folder(new_folder: Path) -> None:
    assert read_urls(new_folder) is None
    assert read_urls(new_folder / "not-there") is None
    assert down(new_folder) is False
    assert down(new_folder / "not-there") is False
    assert not (new_folder / "not-there").exists()


def test_others_read_the_urls_while_it_runs_only(folder: Path) -> None:
    with Stack(folder) as stack:
        assert read_urls(folder) == stack.urls
    assert read_urls(folder) is None


def test_a_second_owner_is_refused_and_told_what_to_do(stack: Stack) -> None:
    refusal = rf"Process {os.getpid()} already runs .* `tasks-app down`, or name another"
    with pytest.raises(AlreadyOwnedError, match=refusal):
        Stack(stack.folder).up()
    with pytest.raises(EmbeddedError, match=refusal):
        up(stack.folder)
    assert stack.running
    assert read_urls(stack.folder) == stack.urls


def test_down_does_not_end_a_process_that_is_no_supervisor(stack: Stack) -> None:
    with pytest.raises(EmbeddedError, match=f"inside process {os.getpid()}"):
        down(stack.folder)
    assert stack.running


def test_a_detached_supervisor_serves_until_down(new_folder: Path) -> None:
    urls = up(new_folder)
    assert urls == read_urls(new_folder)
    assert urls is not None
    assert sql(urls.database, "SELECT 1") == 1
    state = state_of(new_folder)
    assert [started.name for started in state.started] == ["PostgreSQL", "Valkey"]
    assert down(new_folder) is True
    assert down(new_folder) is False
    assert read_urls(new_folder) is None
    assert all(has_ended(pid) for pid in pids(state))


def test_of_two_at_once_one_serves(folder: Path) -> None:
    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(up, folder) for _ in range(2)]
    failures = [error for error in (end.exception() for end in ends) if error]
    assert len(failures) == 1
    assert re.search(r"Process \d+ already runs the servers", str(failures[0]))
    urls = read_urls(folder)
    assert urls is not None
    assert sql(urls.database, "SELECT 1") == 1


def test_a_supervisor_that_cannot_start_says_why(folder: Path) -> None:
    spoil(folder / "valkey")
    with pytest.raises(EmbeddedError, match=r"Valkey did not start: .*AOF MANIFEST"):
        up(folder)
    assert read_urls(folder) is None
    assert down(folder) is False


def test_the_supervisor_restarts_servers_that_were_killed(folder: Path) -> None:
    before = up(folder)
    killed = pids(state_of(folder))
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not set(killed) & set(pids(state_of(folder))))
    assert read_urls(folder) == before
    assert before is not None
    assert sql(before.database, "SELECT 1") == 1
    assert broker(before.broker, "PING") in {True, "PONG"}


def test_the_supervisor_recovers_while_a_session_of_the_killed_postgres_is_busy(
    folder: Path,
) -> None:
    urls = up(folder)
    assert urls is not None
    busy = "import psycopg, sys; psycopg.connect(sys.argv[1]).execute('SELECT pg_sleep(60)')"
    address = urls.database.replace("+psycopg", "")
    with subprocess.Popen([sys.executable, "-c", busy, address], stderr=subprocess.PIPE) as client:
        sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        until(lambda: sql(urls.database, sleeping) == 1)
        killed = pids(state_of(folder))[0]

        os.kill(killed, signal.SIGKILL)

        until(lambda: pids(state_of(folder))[0] != killed)
        assert sql(urls.database, sleeping) == 0
        client.communicate()


@pytest.mark.parametrize("then", [down, read_urls])
def test_servers_do_not_outlive_a_killed_supervisor(
    folder: Path, then: Callable[[Path], object]
) -> None:
    up(folder)
    state = state_of(folder)
    os.kill(state.owner, signal.SIGKILL)
    then(folder)
    until(lambda: all(has_ended(pid) for pid in pids(state)))
    until(lambda: read_urls(folder) is None)


def test_servers_do_not_outlive_a_killed_owner_that_started_them_in_a_thread(folder: Path) -> None:
    command = [sys.executable, "-c", IN_A_THREAD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        state = state_of(folder)
        assert not any(has_ended(pid) for pid in pids(state))
        owner.kill()
    until(lambda: all(has_ended(pid) for pid in pids(state)))


def test_after_kill_9_of_the_supervisor_up_finds_the_data(folder: Path) -> None:
    before = up(folder)
    assert before is not None
    sql(before.database, "CREATE TABLE kept AS SELECT 1 AS one")
    broker(before.broker, "SET", "kept", "1")
    os.kill(state_of(folder).owner, signal.SIGKILL)
    after = up(folder)
    assert after == before
    assert sql(before.database, "SELECT one FROM kept") == 1
    assert broker(before.broker, "GET", "kept") == "1"


def test_a_reused_process_id_in_a_stale_pid_file_is_no_obstacle(folder: Path) -> None:
    postgres = Postgres(folder)
    started = postgres.start()
    user = psutil.Process(started.pid).uids().real
    postgres.kill()
    pid_file = folder / "pg" / "cluster" / "postmaster.pid"
    stale = pid_file.read_text().splitlines()
    as_root = {"user": user} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "60"], **as_root) as stranger:
        began = str(int(stale[2]) - 60)
        pid_file.write_text("\n".join([str(stranger.pid), stale[1], began, *stale[3:], ""]))

        postgres.start()

        assert sql(postgres.url, "SELECT 1") == 1
        assert stranger.poll() is None
        stranger.kill()
    postgres.stop()


def test_an_interrupted_initdb_is_begun_anew(new_folder: Path) -> None:
    (new_folder / "pg" / "draft-1").mkdir(parents=True)
    (new_folder / "pg" / "draft-1" / "PG_VERSION").write_text("18\n")
    with Postgres(new_folder) as postgres:
        assert sql(postgres.url, "SELECT 1") == 1
    assert not list((new_folder / "pg").glob("draft-*"))
