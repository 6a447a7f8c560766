"""One PostgreSQL and one Valkey for all systems, and a fresh database for every run."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from dev.benchmarks.environments import MissingError
from tasks_app.embedded.stack import Stack

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
"""All else is the default; ``embedded`` itself sets max_connections to 200."""
RABBITMQ = os.environ.get("TASKS_APP_TEST_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")

Row = tuple[Any, ...]


class Servers:
    """The servers of a session of measuring."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._numbers = itertools.count(1)

    @property
    def broker_url(self) -> str:
        """Valkey, database 0."""
        return self._stack.urls.broker

    @property
    def pids(self) -> list[int]:
        """PostgreSQL's first process, and Valkey."""
        return [started.pid for started in self._stack.started]

    @property
    def versions(self) -> dict[str, str]:
        """Which servers these are."""
        return {started.name: started.version for started in self._stack.started}

    def url(self, database: str) -> str:
        """Return a plain URL, as every driver reads it."""
        return self._stack.postgres.url_of(database).replace("+psycopg", "")

    def ask(self, statement: str, database: str = "postgres") -> list[Row]:
        """Run one statement on a connection of its own and return its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create(self, template: str | None = None) -> str:
        """Make a database, empty or a copy of another, and return its name."""
        name = f"bench_{next(self._numbers)}"
        # Copying files is the faster way for the big ones.
        self.ask(f"CREATE DATABASE {name} TEMPLATE {template or 'template1'} STRATEGY file_copy")
        return name

    def drop(self, database: str) -> None:
        """Remove a database and all connections to it."""
        self.ask(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def settle_down(self, database: str) -> None:
        """Statistics and a checkpoint for every system alike, and an empty broker."""
        self.ask("ANALYZE", database)
        self.ask("CHECKPOINT")

    def forget_messages(self) -> None:
        """Empty the broker."""
        import redis

        with redis.Redis.from_url(self.broker_url) as client:
            client.flushall()

    def messages(self) -> int:
        """Count the messages that were ever put into the broker's queues, one by each command.

        It forgets none of them when it is emptied.
        """
        import redis

        with redis.Redis.from_url(self.broker_url) as client:
            pushed: dict[str, Any] = client.info("commandstats").get("cmdstat_lpush", {})
            return int(pushed.get("calls", 0))

    def backends(self, database: str) -> list[int]:
        """Return the process ids of a database's backends."""
        rows = self.ask(f"SELECT pid FROM pg_stat_activity WHERE datname = '{database}'")
        return [row[0] for row in rows]


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """Yield both, up and with the settings of the measurements."""
    with Stack(folder, persist=False) as stack:
        ours = Servers(stack)
        for name, value in SETTINGS.items():
            ours.ask(f"ALTER SYSTEM SET {name} = '{value}'")
        stack.postgres.stop()
        stack.postgres.start()
        for (name,) in ours.ask("SELECT datname FROM pg_database WHERE datname LIKE 'bench_%'"):
            ours.drop(name)
        yield ours


@contextmanager
def rabbitmq() -> Iterator[str]:
    """Yield the URL of a new virtual host of this machine's RabbitMQ, and remove it.

    Raises:
        MissingError: none can be made here.
    """
    name, parts = f"tasks_app-bench-{os.getpid()}", urlsplit(RABBITMQ)
    if shutil.which("rabbitmqctl") is None:
        raise MissingError("NOT MEASURED: there is no rabbitmqctl here.")
    try:
        _control("add_vhost", name)
        _control("set_permissions", "-p", name, parts.username or "guest", ".*", ".*", ".*")
    except subprocess.SubprocessError as error:
        raise MissingError("NOT MEASURED: rabbitmqctl cannot make a virtual host.") from error
    try:
        yield parts._replace(path=f"/{name}").geturl()
    finally:
        _control("delete_vhost", name)


def _control(*arguments: str) -> None:
    subprocess.run(["rabbitmqctl", "-q", *arguments], check=True, capture_output=True, timeout=60)
