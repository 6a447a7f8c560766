"""A streaming replica of the session's PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import URL

from tasks_app.embedded.servers.ports import HOST
from tasks_app.embedded.servers.postgres import SETTINGS
from tasks_app.embedded.servers.process import Recipe
from tasks_app.embedded.servers.programs import postgres_folder
from tasks_app.embedded.servers.server import Answer, EmbeddedServer

if TYPE_CHECKING:
    from tasks_app.embedded.home import Home


class Standby(EmbeddedServer):
    """Follows the server of a URL."""

    title = "Standby"
    key = "pg"
    process_names = ("postgres",)
    farewell = signal.SIGINT
    stop_patience_s = 30.0

    def __init__(self, folder: Path, primary: URL) -> None:
        super().__init__(folder)
        self._primary = primary

    @property
    def url(self) -> str:
        return self._primary.set(port=self.port).render_as_string(hide_password=False)

    def _prepare(self, home: Home) -> None:
        url, data = self._primary, home.root / "pg"
        command = [str(postgres_folder(home) / "bin" / "pg_basebackup"), "--write-recovery-conf"]
        command += ["--checkpoint=fast", "--no-sync", f"--pgdata={data}", f"--host={url.host}"]
        command += [f"--port={url.port}", f"--username={url.username}", "--no-password"]
        environment = {**os.environ, "PGPASSWORD": str(url.password)}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        home.data(self.key)

    def _recipe(self, home: Home, port: int) -> Recipe:
        data = home.root / "pg"
        command = [str(postgres_folder(home) / "bin" / "postgres"), "-D", str(data)]
        for name, value in (SETTINGS | {"port": str(port), "cluster_name": home.mark}).items():
            command += ["-c", f"{name}={value}"]
        return Recipe(command, data, home.log / f"{self.key}.log", self.farewell)

    def _probe(self, port: int) -> Answer | None:
        url = self._primary.set(drivername="postgresql", port=port, host=HOST)
        try:
            with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return None
        return Answer(self.title, "follows")
