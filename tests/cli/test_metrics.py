"""``tasks-app metrics``: once, and over HTTP; from other machines only with a password."""

from __future__ import annotations

import base64
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tasks_app import Settings
from tasks_app.domain.errors import ConfigurationError
from tasks_app.monitor.metric_catalogue import METRICS
from tasks_app.monitor.metrics import MetricsReader, MetricsServer, check_address
from tasks_app.runtime.db.database import Database
from tests.cli.shell import Shell
from tests.docs.reading import first_column, text_of


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def guarded(database_url: str, engine: Engine) -> Iterator[str]:
    database = Database(database_url)
    reader = MetricsReader(database, Settings(database_url=database_url))
    with MetricsServer("127.0.0.1", 0, reader, "bob:secret") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
    database.dispose()


def test_once_prints_them(shell: Shell) -> None:
    done = shell("metrics", "--once")

    assert done.returncode == 0
    assert done.stdout.startswith("# HELP tasks_app_")
    assert "\ntasks_app_up 1\n" in done.stdout


def test_once_says_by_its_exit_code_that_the_database_is_away(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", "postgresql+psycopg://u:p@127.0.0.1:1/x")

    assert shell("metrics", "--once").returncode == 3


def test_other_addresses_are_refused_without_a_password(shell: Shell) -> None:
    done = shell("metrics", "--address", "0.0.0.0", "--port", "0")

    assert done.returncode == 2
    assert "Metrics have no password" in done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_none(address: str) -> None:
    check_address(address, "")


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::", "10.0.0.1", "a.example"])
def test_every_other_address_does(address: str) -> None:
    with pytest.raises(ConfigurationError):
        check_address(address, "")
    check_address(address, "bob:secret")


@pytest.mark.parametrize("auth", ["bob", "bob:", ":secret"])
def test_half_a_password_is_refused(auth: str) -> None:
    with pytest.raises(ConfigurationError, match="name:password"):
        check_address("127.0.0.1", auth)


def test_a_password_is_asked_for(guarded: str) -> None:
    right, wrong = (base64.b64encode(b"bob:" + word).decode() for word in (b"secret", b"x"))

    assert get(f"{guarded}/metrics")[0] == 401
    assert get(f"{guarded}/metrics", Authorization=f"Basic {wrong}")[0] == 401
    assert get(f"{guarded}/metrics", Authorization=f"Basic {right}")[0] == 200
    assert get(f"{guarded}/other", Authorization=f"Basic {right}")[0] == 404
    assert get(f"{guarded}/healthz") == (200, "alive\n")


@pytest.mark.test_all
def test_a_process_serves_until_it_is_told_to_end(shell: Shell) -> None:
    command = [sys.executable, "-m", "tasks_app", "metrics", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        try:
            status, said = get(url)
        finally:
            process.send_signal(signal.SIGTERM)

    assert (status, process.returncode) == (200, 0)
    assert "\ntasks_app_up 1\n" in said


def test_the_page_names_what_is_exported() -> None:
    page = text_of("docs/reference/metrics.md")

    assert first_column(page) == [metric.name for metric in METRICS]


@pytest.mark.parametrize(("command", "option"), [("metrics", "address"), ("dashboard", "host")])
def test_a_taken_port_is_refused_before_it_is_announced(
    shell: Shell, command: str, option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = shell(command, "--port", str(port))

    assert (done.returncode, done.stdout) == (2, "")
    refused = f"Cannot listen on 127.0.0.1, port {port}: Address already in use."
    assert f"{refused} Use another --{option} or --port." in done.stderr
