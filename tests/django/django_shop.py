"""The project ``examples/django_shop`` in a folder of its own, on a database of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from tasks_app.embedded.servers import Valkey
from tests.servers import Databases
from tests.tiers import starts_processes


class Site:
    """Its commands, and a look at its rows."""

    def __init__(self, folder: Path, url: str, broker: str) -> None:
        self.folder = folder
        self.engine = create_engine(url)
        said = make_url(url)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP")},
            "PGDATABASE": said.database or "",
            "PGUSER": said.username or "",
            "PGPASSWORD": said.password or "",
            "PGHOST": said.query.get("host", said.host) or "",
            "PGPORT": str(said.query.get("port", said.port or "")),
            "BROKER_URL": broker,
            "COLUMNS": "80",
        }

    def manage(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "manage.py", *arguments, **environment)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def sql(self, statement: str) -> object:
        with self.engine.connect() as connection:
            return connection.execute(text(statement)).scalar()

    def orders(self, number: int) -> None:
        done = self.manage(
            "shell",
            "-c",
            "from django.test import Client\n"
            f"for n in range({number}):\n"
            "    Client().post('/orders/', {'customer': 'Ada', 'amount': 120})",
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
@starts_processes
def shop(
    databases: Databases, broker: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("django") / "shop"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "django_shop", folder)
    shop = Site(folder, databases.create("django"), broker.url)
    done = shop.manage("migrate")
    assert done.returncode == 0, done.stderr
    yield shop
    shop.engine.dispose()
