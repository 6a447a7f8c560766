"""A PgBouncer in transaction mode, from what is installed here."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tasks_app.embedded.memory import write_private
from tasks_app.embedded.servers.cluster import ROLE
from tasks_app.embedded.servers.ports import HOST
from tasks_app.embedded.servers.postgres import DATABASE
from tasks_app.embedded.servers.process import Recipe
from tasks_app.embedded.servers.server import Answer, EmbeddedServer

if TYPE_CHECKING:
    from tasks_app.embedded.home import Home

SERVERS = 10
"""Fewer than our processes keep open, so that they really share them."""


def pgbouncer_program() -> str | None:
    """Return where it is; None: PgBouncer is not installed here."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class PgBouncer(EmbeddedServer):
    """PgBouncer on a free loopback port, before whatever listens on ``upstream``."""

    title = "PgBouncer"
    key = "pgbouncer"
    process_names = ("pgbouncer",)
    farewell = signal.SIGTERM  # at once; SIGINT would wait for transactions
    stop_patience_s = 10.0

    def __init__(self, folder: Path, upstream: int, password: str) -> None:
        super().__init__(folder)
        self._upstream = upstream
        self._password = password

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{ROLE}:{self._password}@{HOST}:{self.port}/{DATABASE}"

    def _prepare(self, home: Home) -> None:
        home.data(self.key)

    def _recipe(self, home: Home, port: int) -> Recipe:
        program = pgbouncer_program() or "pgbouncer"
        data = home.data(self.key)
        users, config = data / "users", data / f"{home.mark}.ini"
        write_private(users, f'"{ROLE}" "{self._password}"\n')
        write_private(config, self._config(users, port))
        home.data(self.key)
        return Recipe([program, str(config)], data, home.log / f"{self.key}.log", self.farewell)

    def _config(self, users: Path, port: int) -> str:
        lines = [
            "[databases]",
            f"* = host={HOST} port={self._upstream}",
            "[pgbouncer]",
            f"listen_addr = {HOST}",
            f"listen_port = {port}",
            "unix_socket_dir =",
            "auth_type = scram-sha-256",
            f"auth_file = {users}",
            "pool_mode = transaction",
            "max_client_conn = 500",
            f"default_pool_size = {SERVERS}",
            "server_login_retry = 1",  # with its 15 s a run would mostly wait for that
        ]
        return "\n".join([*lines, ""])

    def _probe(self, port: int) -> Answer | None:
        try:
            with psycopg.connect(
                host=HOST, port=port, user=ROLE, password=self._password, dbname=DATABASE,
                sslmode="disable", connect_timeout=5, prepare_threshold=None,
            ) as connection:  # fmt: skip
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return None
        return Answer(self.title, "in transaction mode")
