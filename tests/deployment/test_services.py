"""The services and roles of docker-compose.yml do outside a container what is written there."""

from __future__ import annotations

import base64
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
import yaml
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import ProgrammingError

from tasks_app import create_task, get_task, handler
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import parse_duration
from tasks_app.embedded.servers import Postgres, Valkey
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.testing import drain
from tests.clock import until
from tests.docs.reading import PROJECT, text_of
from tests.environment import run_program

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(text_of("docker-compose.yml"))["services"]
SECRETS = {
    "SUPERUSER_PASSWORD": "x",
    "OWNER_PASSWORD": "x",
    "WORKER_PASSWORD": "x",
    "BROKER_PASSWORD": "x",
    "FLOWER_BASIC_AUTH": "ann:hunter2",
}


class Host:
    """Runs what a container would, with the same environment but for where the servers are."""

    def __init__(self, folder: Path, database: str, broker: str) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self._database = make_url(database)
        self._elsewhere = {
            "TASKS_APP_BROKER_URL": broker,
            "TASKS_APP_RUN_DIR": str(folder / "run"),
            "FLOWER_ADDRESS": "127.0.0.1",
            "FLOWER_PORT": str(self.port),
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                SERVICES[name]["command"], stdout=log, stderr=log, **self._around(name)
            )

    def check(self, name: str) -> bool:
        kind, *command = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        command = [word.replace(":5555/", f":{self.port}/") for word in command]
        done = subprocess.run(command, capture_output=True, check=False, **self._around(name))
        return done.returncode == 0

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _around(self, name: str) -> dict[str, Any]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TASKS_APP", "CELERY"))}
        told = {k: _interpolated(v) for k, v in SERVICES[name]["environment"].items()}
        if "TASKS_APP_DATABASE_URL" in told:
            told["TASKS_APP_DATABASE_URL"] = self._url(told["TASKS_APP_DATABASE_URL"])
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        image = {"PATH": path, "PYTHONPATH": str(self.folder), "PYTHONUNBUFFERED": "1"}
        return {"cwd": self.folder, "env": {**kept, **image, **told, **self._elsewhere}}

    def _url(self, told: str) -> str:
        """The same on the test's server, whose owner is another."""
        role = make_url(told)
        mine = self._database
        if role.username != "tasks_app_owner":
            mine = mine.set(username=role.username, password=role.password)
        return mine.render_as_string(hide_password=False)


def _interpolated(value: str) -> str:
    """As compose does with ${NAME:?error} and ${NAME:-default}."""
    return re.sub(
        r"\$\{(\w+):([?-])([^}]*)\}",
        lambda found: SECRETS[found[1]] if found[2] == "?" else found[3],
        value,
    )


@pytest.fixture
def host(engine: Engine, database_url: str, broker: Valkey, tmp_path: Path) -> Iterator[Host]:
    for file in ("celeryconfig.py", "examples/hello.py"):  # as the Dockerfile copies them
        shutil.copy(PROJECT / file, tmp_path)
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE tasks_app_worker LOGIN PASSWORD 'x'"))
    host = Host(tmp_path, database_url, broker.url_of(14))
    yield host
    for process in host.running.values():
        process.kill()
        process.wait()
    with engine.begin() as connection:
        connection.execute(text("DROP OWNED BY tasks_app_worker"))
        connection.execute(text("DROP ROLE tasks_app_worker"))


def status_of(url: str, *, login: str = "") -> int:
    request = urllib.request.Request(url)
    if login:
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except HTTPError as error:
        return int(error.code)
    except (URLError, ConnectionError):
        return 0


@pytest.mark.test_all
@pytest.mark.timeout(150)
def test_all_of_them_start_work_and_end_as_written(host: Host, engine: Engine) -> None:
    host.start("migrate")
    assert host.running["migrate"].wait(30) == 0, host.log("migrate")
    assert not host.check("worker")

    for name in ("worker", "beat", "flower"):
        host.start(name)
    with engine.begin() as connection:
        task_id = create_task(connection, "hello.say", {"name": "compose"})

    for name in ("worker", "beat", "flower"):
        until(lambda name=name: host.check(name), 60, f"a healthy {name}")
    with engine.connect() as connection:
        task = until(lambda: (t := get_task(connection, task_id)) and t.result and t, 60, "its end")
    address = f"http://127.0.0.1:{host.port}"
    answers = [status_of(f"{address}/workers", login=f"ann:{word}") for word in ("", "hunter2")]

    assert task.result == {"said": "Hello, compose! This is attempt 1."}
    assert answers == [401, 200]
    for name in ("worker", "beat", "flower"):
        host.running[name].terminate()
    for name in ("worker", "beat", "flower"):
        grace = parse_duration(SERVICES[name]["stop_grace_period"]).total_seconds()
        assert host.running[name].wait(grace) == 0, host.log(name)
    assert not host.check("worker")
    assert "hunter2" not in "".join(host.log(name) for name in host.running)


@pytest.mark.test_all
@pytest.mark.timeout(150)
def test_the_image_has_all_that_the_package_is_made_of(tmp_path: Path) -> None:
    """The wheel is built from what .dockerignore lets through, and from nothing else."""
    for line in text_of(".dockerignore").splitlines():
        if line.startswith("!"):
            source, target = PROJECT / line[1:], tmp_path / "src" / line[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, target)  # type: ignore[operator]

    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--no-index", "-w", tmp_path, tmp_path / "src"),
        ],
        check=True,
        timeout=60,
    )

    (wheel,) = tmp_path.glob("*.whl")
    names = run_program([sys.executable, "-m", "zipfile", "-l", wheel], check=True).stdout
    for needed in ("tasks_app/_migrations/env.py", "tasks_app/cli/main.py", "entry_points.txt"):
        assert needed in names


NAME, PASSWORD = "tasks_app_roles", "of-this-test"
FORBIDDEN = (
    "ALTER TABLE task_pending ADD COLUMN x int",
    "DROP TABLE task_completed_default",
    "CREATE TABLE mine (i int)",
    "UPDATE task_audit SET who = 'x'",
    "COPY task_pending TO PROGRAM 'cat'",
    "SELECT pg_read_file('postgresql.conf')",
    "SET ROLE tasks_app_owner",
)


@pytest.fixture
def urls(postgres: Postgres) -> Iterator[dict[str, str]]:
    """The URL of each role, in a database made as Docker makes it."""
    sql = re.sub(r"(?m)^\\getenv .*$", "", text_of("deploy/docker-roles.sql"))  # as psql does it
    sql = re.sub(r":'\w+'", f"'{PASSWORD}'", sql)
    sql = sql.replace("DATABASE tasks_app ", f"DATABASE {NAME} ")
    administrator = create_engine(postgres.url_of("postgres"), isolation_level="AUTOCOMMIT")
    with administrator.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {NAME}"))
        connection.exec_driver_sql(sql)
    url = make_url(postgres.url_of(NAME))
    yield {
        role: url.set(username=f"tasks_app_{role}", password=PASSWORD).render_as_string(
            hide_password=False
        )
        for role in ("owner", "worker")
    }
    with administrator.connect() as connection:
        connection.execute(text(f"DROP DATABASE {NAME} WITH (FORCE)"))
        connection.execute(text("DROP ROLE tasks_app_owner, tasks_app_worker"))
    administrator.dispose()


def shell(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, "-m", "tasks_app", *arguments],
        env={"TASKS_APP_DATABASE_URL": url},
        timeout=60,
    )


@pytest.mark.test_all
def test_the_worker_runs_tasks_and_is_neither_owner_nor_superuser(urls: dict[str, str]) -> None:
    assert shell(urls["owner"], "migrate").returncode == 0
    granted = shell(urls["owner"], "grants", "worker", "--role", "tasks_app_worker", "--apply")
    assert granted.stdout == "tasks_app_worker now has the rights of a worker\n", granted.stderr
    registry = Registry()
    handler("t", registry=registry)(lambda ctx: None)
    worker = create_engine(urls["worker"])
    with worker.begin() as connection:
        task_id = create_task(connection, "t")

    drain(Settings(database_url=urls["worker"]), registry=registry, queues=["default"])

    with worker.connect() as connection:
        query = text("SELECT state FROM task_completed WHERE id = :id")
        assert connection.execute(query, {"id": task_id}).scalar() == "SUCCEEDED"
        for statement in FORBIDDEN:
            with pytest.raises(ProgrammingError, match=r"denied|must be owner"):
                connection.execute(text(statement))
            connection.rollback()
    worker.dispose()
    worse = shell(urls["worker"], "grants", "admin", "--role", "tasks_app_worker", "--apply")
    nobody = shell(urls["owner"], "grants", "admin", "--role", "nobody", "--apply")
    assert (worse.returncode, nobody.returncode) == (2, 2)
    assert "Only the owner of the tables can grant this" in worse.stderr
    assert "There is no role nobody" in nobody.stderr
