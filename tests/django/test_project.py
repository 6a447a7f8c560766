"""A whole Django project, ``examples/django_shop``, by its commands and real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tests.clock import until
from tests.django.django_shop import Site
from tests.factory import claimed_task, ending

pytest.importorskip("django")
pytestmark = [pytest.mark.test_all]


NO_BROKER = "http is not the scheme of a broker"


@pytest.fixture(autouse=True)
def clean(shop: Site) -> None:
    with shop.engine.begin() as connection:
        connection.execute(text("DELETE FROM task_pending"))
        connection.execute(text("DELETE FROM orders_points"))


def test_migrate_makes_our_tables_and_its_commands_find_them(shop: Site) -> None:
    again = shop.manage("migrate")
    ours = shop.manage("tasks_app", "migrate")
    stats = shop.manage("tasks_app", "stats", "--json")
    assert (again.returncode, ours.returncode, stats.returncode) == (0, 0, 0), ours.stderr
    assert "up to date" in ours.stdout
    assert stats.stdout.startswith("[")


def test_makemigrations_leaves_our_tables_alone(shop: Site) -> None:
    done = shop.manage("makemigrations", "--check", "--dry-run")
    flush = shop.manage("sqlflush")
    assert (done.returncode, done.stdout.strip()) == (0, "No changes detected")
    assert "task_" not in flush.stdout


def test_work_runs_what_a_view_created(shop: Site) -> None:
    shop.orders(2)
    done = shop.manage("tasks_app", "work", "--drain")
    assert done.returncode == 0, done.stderr
    assert shop.sql("SELECT count(*) FROM orders_points") == 2
    assert "has its points" in done.stdout


def test_a_celery_worker_and_beat_run_it_too(shop: Site, tmp_path: Path) -> None:
    """With Celery's own setup for Django."""
    celery = [sys.executable, "-m", "celery", "-A", "tasks_app"]
    options = ["worker", "-B", "-c1", "-l", "info", "-s", str(tmp_path / "beat")]
    environment = {**shop.environment, "DJANGO_SETTINGS_MODULE": "shop.settings"}
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(
            [*celery, *options], cwd=shop.folder, env=environment, stdout=log, stderr=log
        )
    try:
        shop.orders(3)
        points = "SELECT count(*) FROM orders_points"
        until(lambda: shop.sql(points) == 3, 30, (tmp_path / "log").read_text()[-2000:])
        assert "orders.award" in (tmp_path / "log").read_text()
    finally:
        worker.terminate()
        assert worker.wait(20) == 0


def test_djangos_tests_run_on_a_test_database(shop: Site) -> None:
    before = shop.sql("SELECT count(*) FROM task_all")
    done = shop.manage("test", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr
    assert shop.sql("SELECT count(*) FROM task_all") == before


ADMIN = """
from django.contrib.auth.models import User
from django.test import Client
boss = User.objects.create_superuser("boss", password="x")
client = Client()
client.force_login(boss)
{code}
boss.delete()
"""


def by_admin(shop: Site, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return shop.manage("shell", "-c", ADMIN.replace("{code}", code.strip()), **environment)


def test_the_admin_shows_tasks_and_changes_none(shop: Site) -> None:
    shop.orders(1)
    code = """
pages = [client.get("/admin/tasks_app/taskview/", {"q": q}) for q in ("", "orders.award", "none")]
print([(p.status_code, b"orders.award" in p.content) for p in pages])
print([client.get(f"/admin/tasks_app/taskview/{n}/").status_code for n in ("add", "1/delete")])
print([b"left no row" in p.content for p in pages])
from django.db import connection
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.connection.psycopg_connection import on_psycopg
from tasks_app.pool.statistics.parts import add_counts
add_counts(on_psycopg(connection.connection), [("mail", "default", CountedOutcome.UNKEPT)])
print(b"1 task of mail succeeded" in client.get("/admin/tasks_app/taskview/").content)
from django.conf import settings
from django.contrib import admin
from tasks_app.django.models import TaskView
settings.DATABASES["archive"] = settings.DATABASES["default"]
settings.TASKS_APP = {"DATABASE": "archive"}
print(admin.site.get_model_admin(TaskView).get_queryset(None).db)
"""

    done = by_admin(shop, code)

    pages = "[(200, True), (200, True), (200, False)]\n[403, 403]\n"
    told = "[False, False, False]\nTrue\n"
    assert f"{pages}{told}archive\n" in done.stdout, done.stderr


def test_the_admin_says_held_and_no_date_of_the_year_9899(shop: Site) -> None:
    shop.orders(1)
    shop.manage("tasks_app", "hold", "--name", "orders.award")
    code = """
from tasks_app.django.models import TaskView
task_id = TaskView.objects.get(name="orders.award", state="PENDING").pk
pages = [client.get(f"/admin/tasks_app/taskview/{where}") for where in ("", f"{task_id}/change/")]
print([(p.status_code, b">held<" in p.content, b"9899" in p.content) for p in pages])
"""
    done = by_admin(shop, code)
    assert "[(200, True, False), (200, True, False)]\n" in done.stdout, done.stdout + done.stderr


def test_the_admin_says_that_a_step_waits(shop: Site) -> None:
    code = """
from django.db import connection, transaction
from tasks_app import Flow, create_flow
from tasks_app.django.models import TaskView
flow = Flow("order")
flow.step("ship", "orders.award", needs=flow.step("pay", "orders.award"))
with transaction.atomic():
    task_id = create_flow(connection, flow).task_ids["ship"]
pages = [client.get(f"/admin/tasks_app/taskview/{where}") for where in ("", f"{task_id}/change/")]
print([(b"waits for its needs<" in p.content, b"9899" in p.content) for p in pages])
print(TaskView.objects.get(pk=task_id).held)
"""
    done = by_admin(shop, code)
    told = "[(True, False), (True, False)]\nFalse\n"
    assert told in done.stdout, done.stdout + done.stderr


def test_the_admin_shows_no_masked_value_of_a_text_that_is_older_than_the_rule(shop: Site) -> None:
    with shop.engine.begin() as connection:
        task = claimed_task(connection, name="orders.award", payload={"card": "canary-4711"})
        cause = Cause("ValueError", "canary-4711 is refused")
        settle_one(connection, ending(task, Event.FAIL, cause=cause))
    code = f"""
page = client.get("/admin/tasks_app/taskview/{task.task_id}/change/").content
print(b"*** is refused" in page, b"canary" in page)
"""
    done = by_admin(shop, code, TASKS_APP_MASKED_PATHS="card")
    assert "True False\n" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("TASKS_APP = {'DATABASE': 'none'}", "TASKS_APP['DATABASE'] is 'none'"),
        ("TASKS_APP = {'SCAN': 1}", "TASKS_APP has 'SCAN', which is no setting"),
        ("TASKS_APP = {'SCHEMA': 'x'}", "Set TASKS_APP_SCHEMA in the environment"),
        ("TASKS_APP = 'x'", "Make it a dict"),
        ("TASKS_APP = {'DATABASE_URL': 'postgresql://x/y'}", "a second database beside Django's"),
        ("DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3'}}", "is sqlite"),
        ("TASKS_APP = {'LEASE': 'soon'}", "TASKS_APP_LEASE is wrong"),
    ],
)
def test_wrong_settings_are_said_in_a_sentence(shop: Site, settings: str, words: str) -> None:
    (shop.folder / "wrong.py").write_text(f"from shop.settings import *\n{settings}\n")
    done = shop.run(sys.executable, "-m", "tasks_app", "stats", DJANGO_SETTINGS_MODULE="wrong")
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_settings_module_is_said_in_a_sentence(shop: Site) -> None:
    done = shop.run(sys.executable, "-m", "tasks_app", "stats", DJANGO_SETTINGS_MODULE="nowhere.x")
    assert (done.returncode, "nowhere.x, which cannot be found" in done.stderr) == (2, True)
    assert "Traceback" not in done.stderr


def test_the_environment_may_not_name_another_database(shop: Site) -> None:
    url = "postgresql://me@localhost/elsewhere"
    ours = shop.manage("tasks_app", "stats", TASKS_APP_DATABASE_URL=url)
    check = shop.manage("check", TASKS_APP_DATABASE_URL=url)
    assert (ours.returncode, check.returncode) == (2, 1)
    for done in (ours, check):
        assert "names the database 'elsewhere', and Django's 'default' is" in done.stderr


@pytest.mark.parametrize(("url", "status"), [("", 0), ("not a url", 2)])
def test_an_odd_url_in_the_environment_is_no_traceback(shop: Site, url: str, status: int) -> None:
    done = shop.manage("tasks_app", "stats", TASKS_APP_DATABASE_URL=url)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr


def test_a_forked_process_has_a_connection_of_its_own(shop: Site) -> None:
    code = """
import os, sys
from django.db import connection
def backend():
    with connection.cursor() as cursor:
        return cursor.execute("SELECT pg_backend_pid()").fetchone()[0]
before = backend()
sys.stdout.flush()  # or the child says it, too
if os.fork() == 0:
    print("another", backend() != before, flush=True)
    os._exit(0)
os.wait()
print("the same", backend() == before)
"""

    done = shop.manage("shell", "-c", code)

    assert "another True\nthe same True\n" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("{'LEASE': 'soon'}", "TASKS_APP_LEASE is wrong"),
        ("{'BROKER_URL': 'http://x'}", f"TASKS_APP_BROKER_URL is wrong: {NO_BROKER}"),
    ],
)
def test_check_says_what_is_wrong_with_a_value(shop: Site, said: str, words: str) -> None:
    (shop.folder / "wrong.py").write_text(f"from shop.settings import *\nTASKS_APP = {said}\n")
    done = shop.manage("check", DJANGO_SETTINGS_MODULE="wrong")
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr


def test_a_command_without_djangos_settings_leads_to_manage_py(shop: Site) -> None:
    """Hints name `tasks-app show 4`, which in such a folder is typed as it stands."""
    done = shop.run(sys.executable, "-m", "tasks_app", "show", "4")
    assert done.returncode == 2
    assert "python manage.py tasks_app" in done.stderr
