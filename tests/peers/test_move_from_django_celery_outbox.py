"""A Django project calls a task through the outbox and through the pool, as the guide shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tasks_app.embedded.stack import Stack
from tests.docs.reading import blocks, text_of
from tests.peers.environments import programs_of
from tests.peers.shops import Shop

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(300, method="thread")]

BEFORE, AFTER = blocks(text_of("docs/from/django-celery-outbox.md"), "python")
SETTINGS = """
import os
INSTALLED_APPS = ["django_celery_outbox", "tasks_app.django"]
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ["PGDATABASE"], "HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"],
    "USER": os.environ["PGUSER"], "PASSWORD": os.environ["PGPASSWORD"],
    "OPTIONS": {"options": os.environ["PGOPTIONS"]},
}}
CELERY_OUTBOX_APP = "shop.jobs.app"
USE_TZ = True
SECRET_KEY = "of a test"
"""
SET_UP = """
import django
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from tasks_app import create_task, get_task
from tasks_app.celery_tasks import run_from_pool
from tasks_app.testing import drain

def save(order_id):
    connection.cursor().execute("INSERT INTO guide_order VALUES (%s)", [order_id])

def rows():
    found = []
    for table in ("guide_order", "celery_outbox", "task_pending"):
        cursor = connection.cursor()
        cursor.execute(f"SELECT count(*) FROM {table}")
        found.append(cursor.fetchone()[0])
    return found
"""


@pytest.fixture
def shop(engine: Engine, stack: Stack, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, programs_of("django-celery-outbox"), engine, stack.urls.broker)
    del shop.environment["TASKS_APP_DATABASE_URL"], shop.environment["TASKS_APP_IMPORTS"]
    shop.environment["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    with shop.schema("guide_peer"):
        shop.write(settings=SETTINGS, jobs=BEFORE.partition("def buy")[0])
        yield shop


def test_both_ways_of_buying_write_in_the_open_block(shop: Shop) -> None:
    said = shop.run(
        SET_UP
        + "from shop.jobs import app, send_receipt\n"
        + BEFORE.replace(BEFORE.partition("def buy")[0], "")
        + "buy_before = buy\n"
        + AFTER
        + """
call_command("migrate", "django_celery_outbox", verbosity=0)
buy_before(1)
buy(2)
print(rows())
try:
    with transaction.atomic():
        buy_before(3)
        buy(4)
        raise KeyError
except KeyError:
    print(rows())
run_from_pool(app)
[run] = drain().succeeded
print(run.name, run.result, rows())
"""
    )

    assert said.splitlines() == [
        "[2, 1, 1]",
        "[2, 1, 1]",
        "shop.send_receipt {'sent': 2} [2, 1, 0]",
    ]
