"""A project with an Alembic of its own, in the database where our tables are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from tasks_app.pool.tables import TABLES
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.migration import migrate

pytestmark = pytest.mark.test_all

ENV = """
import os
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, text
from tasks_app.alembic import include_name, include_object

metadata = MetaData()
Table("orders", metadata, Column("id", Integer, primary_key=True))
{models}

def mine(name, type_, parent_names):
    return include_name(name, type_, parent_names) and name != "legacy_orders"

with create_engine(os.environ["URL"]).connect() as connection:
    if path := os.environ.get("SEARCH_PATH"):
        connection.execute(text(f"SET search_path = {{path}}"))
        connection.commit()
        connection.dialect.default_schema_name = path
    context.configure(connection=connection, target_metadata=metadata, {filters})
    with context.begin_transaction():
        context.run_migrations()
"""
INI = "[alembic]\nscript_location = %(here)s/migrations\n"
MODEL = 'Table("task_pending", metadata, Column("id", Integer, primary_key=True))'
BOTH = "include_name=include_name, include_object=include_object"


@dataclass(frozen=True)
class Shop:
    """The project, and the database that it shares with us."""

    folder: Path
    engine: Engine
    url: str

    def generated(self, filters: str, models: str = "", **environment: str) -> str:
        """Return what ``alembic revision --autogenerate`` wants to do."""
        env = self.folder / "migrations" / "env.py"
        env.write_text(ENV.format(filters=filters, models=models))
        versions = self.folder / "migrations" / "versions"
        for old in versions.glob("*.py"):
            old.unlink()
        self.run("alembic", "revision", "--autogenerate", "-m", "next", **environment)
        (made,) = versions.glob("*.py")
        return made.read_text().partition("def upgrade()")[2].partition("def downgrade()")[0]

    def migrate(self) -> None:
        database = Database(self.url)
        migrate(database)
        Maintainer(database).run_once()
        database.dispose()

    def run(self, module: str, *arguments: str, **environment: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env={**os.environ, "TASKS_APP_DATABASE_URL": self.url, "URL": self.url, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def shop(shared_engine: Engine, tmp_path: Path) -> Iterator[Shop]:
    """A project with one table in its metadata, and in its database that and another."""
    with shared_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("DROP DATABASE IF EXISTS shop WITH (FORCE)")
        connection.exec_driver_sql("CREATE DATABASE shop")
    engine = create_engine(shared_engine.url.set(database="shop"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer PRIMARY KEY)"))
    (tmp_path / "alembic.ini").write_text(INI)
    template = Path("migrations") / "script.py.mako"
    (tmp_path / "migrations" / "versions").mkdir(parents=True)
    (tmp_path / template).write_text((Path(__file__).parents[2] / template).read_text())
    yield Shop(tmp_path, engine, engine.url.render_as_string(hide_password=False))
    engine.dispose()


def dropped(upgrade: str) -> list[str]:
    return re.findall(r"op\.drop_table\('(\w+)'", upgrade)


def is_empty(upgrade: str) -> bool:
    return "op." not in upgrade


def test_autogenerate_leaves_our_tables_alone(shop: Shop) -> None:
    shop.migrate()

    without, with_it = shop.generated(""), shop.generated("include_name=include_name")

    assert set(dropped(without)) >= TABLES  # and 16 partitions
    assert len(dropped(without)) == len(TABLES) + 16
    assert is_empty(with_it), with_it


def test_models_of_our_tables_are_not_created_anew(shop: Shop) -> None:
    shop.migrate()

    assert is_empty(shop.generated(BOTH, MODEL))


def test_it_goes_with_a_filter_of_your_own(shop: Shop) -> None:
    shop.migrate()
    with shop.engine.begin() as connection:
        connection.execute(text("CREATE TABLE legacy_orders (id integer)"))

    assert is_empty(shop.generated("include_name=mine"))


def test_in_a_schema_of_its_own_only_ours_is_left_alone(shop: Shop) -> None:
    """Your table in another schema is yours, whatever it is called."""
    ours = {"TASKS_APP_SCHEMA": "jobs"}
    shop.run("tasks_app", "migrate", **ours)
    with shop.engine.begin() as connection:
        connection.execute(text("CREATE TABLE task_group (id integer)"))
        connection.execute(text("CREATE TABLE jobs.audit (id integer)"))

    upgrade = shop.generated("include_name=include_name, include_schemas=True", **ours)
    at_home = shop.generated("include_name=include_name", **ours, SEARCH_PATH="jobs")

    assert sorted(dropped(upgrade)) == ["audit", "task_group"]
    assert dropped(at_home) == ["audit"]
