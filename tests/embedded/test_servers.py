"""The two servers, each as a test would use it."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from tasks_app.embedded.folder import EmbeddedError
from tasks_app.embedded.servers import Postgres, Valkey
from tasks_app.embedded.stack import Stack, temporary
from tests.embedded.asking import broker, spoil, sql

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.test_all


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
