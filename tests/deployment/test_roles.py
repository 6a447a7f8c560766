"""The roles of docker-compose.yml on a real server: an owner, a worker, what each may not do."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import ProgrammingError

from tasks_app import create_task, handler
from tasks_app.domain.config.settings import Settings
from tasks_app.embedded.servers import Postgres
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.testing import drain
from tests.docs.reading import text_of

pytestmark = pytest.mark.test_all

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
    return subprocess.run(
        [sys.executable, "-m", "tasks_app", *arguments],
        env={"TASKS_APP_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


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
