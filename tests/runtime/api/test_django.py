"""Django's own ``connection``: the tasks of a view's transaction, on psycopg 3."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from sqlalchemy.engine import make_url

from tests.runtime.bench import Bench

pytestmark = pytest.mark.test_all

SETTINGS = """
import json, sys
import django
from django.conf import settings
postgres = {"ENGINE": "django.db.backends.postgresql", **json.loads(sys.argv[1])}
other = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(DATABASES={"default": postgres, "other": other}, USE_TZ=True)
django.setup()
from django.core.cache import cache
from django.db import connection, connections, transaction
from tasks_app import *
"""


def in_django(bench: Bench, code: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own: Django is configured once in each."""
    url = make_url(bench.url)
    where = {
        "NAME": url.database,
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        "HOST": url.query.get("host", url.host) or "",
        "PORT": str(url.query.get("port", url.port or "")),
    }
    command = [sys.executable, "-W", "error", "-c", SETTINGS + code, json.dumps(where)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_task_is_part_of_the_transaction_of_a_view(bench: Bench) -> None:
    done = in_django(
        bench,
        """
with transaction.atomic():
    task_id = create_task(connection, "committed", {"n": [1]})
    create_tasks(connections["default"], [NewTask("many")] * 3)
    found = get_task(connection, task_id)
    assert (found.payload, found.state) == ({"n": [1]}, "PENDING"), found
    try:
        with transaction.atomic():
            create_task(connection, "inner")
            1 / 0
    except ZeroDivisionError:
        pass
try:
    with transaction.atomic():
        create_task(connection, "rolled.back")
        1 / 0
except ZeroDivisionError:
    pass
print(explain_task(connection, task_id).known, cancel_task(connection, task_id),
    requeue_task(connection, task_id))
""",
    )

    assert (done.stdout, done.stderr) == ("True cancelled requeued\n", "")
    names = bench.sql("SELECT array_agg(DISTINCT name ORDER BY name) FROM task_pending")
    assert names == ["committed", "many"]


@pytest.mark.parametrize("wrong", ['connections["other"]', "cache"])
def test_another_database_is_refused(bench: Bench, wrong: str) -> None:
    done = in_django(bench, f"create_task({wrong}, 't')")
    assert (
        "InvalidConnectionError: This connection of Django's is none of psycopg 3 to PostgreSQL."
        in done.stderr
    )


def test_a_transaction_that_will_roll_back_takes_no_task(bench: Bench) -> None:
    done = in_django(
        bench,
        """
with transaction.atomic():
    transaction.set_rollback(True)
    create_task(connection, "lost")
""",
    )
    assert "TransactionManagementError" in done.stderr
    assert bench.sql("SELECT count(*) FROM task_pending") == 0
