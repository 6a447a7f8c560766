"""A whole Django project, ``examples/django_shop``, by its commands and real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from tasks_app.embedded import Valkey
from tests.servers import Databases
from tests.waiting import until

pytest.importorskip("django")
pytestmark = [pytest.mark.long, pytest.mark.processes]


class Site:
    """The example in a folder of its own, on a database of its own."""

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
def site(
    databases: Databases, broker: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("django") / "shop"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "django_shop", folder)
    site = Site(folder, databases.create("django"), broker.url)
    done = site.manage("migrate")
    assert done.returncode == 0, done.stderr
    yield site
    site.engine.dispose()


@pytest.fixture(autouse=True)
def clean(site: Site) -> None:
    with site.engine.begin() as connection:
        connection.execute(text("DELETE FROM task_pending"))
        connection.execute(text("DELETE FROM orders_points"))


def test_migrate_makes_our_tables_and_its_commands_find_them(site: Site) -> None:
    again = site.manage("migrate")
    ours = site.manage("tasks_app", "migrate")
    stats = site.manage("tasks_app", "stats", "--json")

    assert (again.returncode, ours.returncode, stats.returncode) == (0, 0, 0), ours.stderr
    assert "up to date" in ours.stdout
    assert stats.stdout.startswith("[")


def test_makemigrations_leaves_our_tables_alone(site: Site) -> None:
    done = site.manage("makemigrations", "--check", "--dry-run")
    flush = site.manage("sqlflush")

    assert (done.returncode, done.stdout.strip()) == (0, "No changes detected")
    assert "task_" not in flush.stdout


def test_work_runs_what_a_view_created(site: Site) -> None:
    site.orders(2)

    done = site.manage("tasks_app", "work", "--drain")

    assert done.returncode == 0, done.stderr
    assert site.sql("SELECT count(*) FROM orders_points") == 2
    assert "has its points" in done.stdout


def test_a_celery_worker_and_beat_run_it_too(site: Site, tmp_path: Path) -> None:
    """With Celery's own setup for Django."""
    celery = [sys.executable, "-m", "celery", "-A", "tasks_app"]
    options = ["worker", "-B", "-c1", "-l", "info", "-s", str(tmp_path / "beat")]
    environment = {**site.environment, "DJANGO_SETTINGS_MODULE": "shop.settings"}
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(
            [*celery, *options], cwd=site.folder, env=environment, stdout=log, stderr=log
        )
    try:
        site.orders(3)
        points = "SELECT count(*) FROM orders_points"
        until(lambda: site.sql(points) == 3, 30, (tmp_path / "log").read_text()[-2000:])
        assert "orders.award" in (tmp_path / "log").read_text()
    finally:
        worker.terminate()
        assert worker.wait(20) == 0


def test_djangos_tests_run_on_a_test_database(site: Site) -> None:
    before = site.sql("SELECT count(*) FROM task_all")

    done = site.manage("test", "--noinput")

    assert done.returncode == 0, done.stderr
    assert "Ran 2 tests" in done.stderr
    assert site.sql("SELECT count(*) FROM task_all") == before


def test_the_admin_shows_tasks_and_changes_none(site: Site) -> None:
    site.orders(1)
    code = """
from django.contrib.auth.models import User
from django.test import Client
boss = User.objects.create_superuser("boss", password="x")
client = Client()
client.force_login(boss)
pages = [client.get("/admin/tasks_app/taskview/", {"q": q}) for q in ("", "orders.award", "none")]
print([(p.status_code, b"orders.award" in p.content) for p in pages])
print([client.get(f"/admin/tasks_app/taskview/{n}/").status_code for n in ("add", "1/delete")])
boss.delete()
"""

    done = site.manage("shell", "-c", code)

    assert "[(200, True), (200, True), (200, False)]\n[403, 403]\n" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("TASKS_APP = {'DATABASE': 'none'}", "TASKS_APP['DATABASE'] is 'none'"),
        ("TASKS_APP = {'SCAN': 1}", "TASKS_APP has 'SCAN', which is no setting"),
        ("TASKS_APP = {'SCHEMA': 'x'}", "Set TASKS_APP_SCHEMA in the environment"),
        ("TASKS_APP = 'x'", "Make it a dict"),
        ("DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3'}}", "is sqlite"),
        ("TASKS_APP = {'LEASE': 'soon'}", "TASKS_APP_LEASE is wrong"),
    ],
)
def test_wrong_settings_are_said_in_a_sentence(site: Site, settings: str, words: str) -> None:
    (site.folder / "wrong.py").write_text(f"from shop.settings import *\n{settings}\n")

    done = site.run(sys.executable, "-m", "tasks_app", "stats", DJANGO_SETTINGS_MODULE="wrong")

    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_settings_module_is_said_in_a_sentence(site: Site) -> None:
    done = site.run(sys.executable, "-m", "tasks_app", "stats", DJANGO_SETTINGS_MODULE="nowhere.x")

    assert (done.returncode, "nowhere.x, which cannot be found" in done.stderr) == (2, True)
    assert "Traceback" not in done.stderr
