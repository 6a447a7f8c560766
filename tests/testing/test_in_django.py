"""The kit in Django's ``TestCase``: a transaction on Django's connection, which is rolled back."""

from __future__ import annotations

import pytest

from tests.runtime.api.test_django import in_django
from tests.runtime.bench import Bench
from tests.runtime.conftest import bench  # noqa: F401  a fixture

CASE = """
import unittest
from django.test import TestCase
from tasks_app.testing import TasksTestMixin

def note(cursor, text):
    cursor.execute("INSERT INTO django_note VALUES (%s)", [text])

@handler("points.grant", retry="1h,1h")
def grant(ctx, payload):
    with connection.cursor() as cursor:
        note(cursor, payload["text"])
    ctx.session.connection().exec_driver_sql("INSERT INTO django_note VALUES ('ours')")
    if payload.get("bad"):
        raise ValueError("no")

def notes():
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM django_note ORDER BY text")
        return [text for text, in cursor.fetchall()]

class OrderTest(TasksTestMixin, TestCase):
    tasks_session = connection

    def test_points(self):
        with transaction.atomic():
            create_task(connection, "points.grant", {"text": "good"})
            create_task(connection, "points.grant", {"text": "bad", "bad": True})
        self.assert_created("points.grant", count=2)
        drained = self.drain()
        self.assertEqual(drained.counts, {"SUCCEEDED": 1, "PENDING": 1})
        self.assertEqual(notes(), ["good", "ours"])
        self.travel("1h")
        self.assertEqual(len(self.drain().waiting), 1)
        self.assertFalse(connection.needs_rollback)

with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE IF NOT EXISTS django_note (text text)")
tests = unittest.TestLoader().loadTestsFromTestCase(OrderTest)
result = unittest.TextTestRunner().run(tests)
assert result.wasSuccessful()
assert notes() == []
with connection.cursor() as cursor:
    cursor.execute("SELECT count(*) FROM task_pending")
    assert cursor.fetchall() == [(0,)]
    cursor.execute("DROP TABLE django_note")
"""


@pytest.mark.test_all
def test_a_test_case_creates_drains_and_rolls_back(bench: Bench) -> None:  # noqa: F811
    done = in_django(bench, CASE)

    assert done.returncode == 0, done.stderr
