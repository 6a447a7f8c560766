"""A streaming replica of the session's PostgreSQL."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
from sqlalchemy import URL

from tasks_app.embedded.process import HOST, popen_options
from tasks_app.embedded.servers import Postgres


class Standby(Postgres):
    """Follows the server of a URL."""

    title = "Standby"

    def __init__(self, folder: Path, primary: URL) -> None:
        super().__init__(folder)
        self._primary = primary

    @property
    def url(self) -> str:
        return self._plain.set(drivername=self._primary.drivername).render_as_string(False)

    def _make(self, cluster: Path) -> None:
        source = self._primary.set(drivername="postgresql", database="postgres")
        where = [f"--pgdata={cluster}", f"--dbname={source.render_as_string(False)}"]
        how = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        subprocess.run(
            [self._program("pg_basebackup"), *where, *how],
            cwd=self.data,
            check=True,
            **popen_options(self.user),
        )

    def _probe(self) -> str | None:
        try:
            with psycopg.connect(self._plain.render_as_string(False)) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return None
        return "follows"

    @property
    def _plain(self) -> URL:
        return self._primary.set(drivername="postgresql", port=self.port, host=HOST)
