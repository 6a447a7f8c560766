"""A PgBouncer in transaction mode, from what is installed here."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import psycopg

from tasks_app.embedded.process import HOST, set_owner
from tasks_app.embedded.servers import DATABASE, ROLE, Server

SERVERS = 10
"""Fewer than our processes keep open, so that they really share them."""


def pgbouncer_program() -> str | None:
    """Return where it is; None: PgBouncer is not installed here."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class PgBouncer(Server):
    """PgBouncer on a free loopback port, before whatever listens on ``upstream``."""

    title, key = "PgBouncer", "pgbouncer"
    stop_signal = signal.SIGTERM  # at once; SIGINT would wait for transactions

    def __init__(self, folder: Path, upstream: int, password: str) -> None:
        super().__init__(folder)
        self._upstream = upstream
        self.password = password

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{ROLE}:{self.password}@{HOST}:{self.port}/{DATABASE}"

    def _command(self) -> tuple[list[str | Path], str]:
        users, config = self.data / "users", self.data / "pgbouncer.ini"
        users.write_text(f'"{ROLE}" "{self.password}"\n')
        config.write_text(self._config(users))
        set_owner(users, self.user)
        set_owner(config, self.user)
        return [pgbouncer_program() or "pgbouncer", config], ""

    def _config(self, users: Path) -> str:
        lines = [
            "[databases]",
            f"* = host={HOST} port={self._upstream}",
            "[pgbouncer]",
            f"listen_addr = {HOST}",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = scram-sha-256",
            f"auth_file = {users}",
            "pool_mode = transaction",
            "max_client_conn = 500",
            f"default_pool_size = {SERVERS}",
            "server_login_retry = 1",  # with its 15 s a run would mostly wait for that
        ]
        return "\n".join([*lines, ""])

    def _probe(self) -> str | None:
        try:
            with psycopg.connect(
                host=HOST, port=self.port, user=ROLE, password=self.password, dbname=DATABASE,
                sslmode="disable", connect_timeout=5, prepare_threshold=None,
            ) as connection:  # fmt: skip
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return None
        return "in transaction mode"
