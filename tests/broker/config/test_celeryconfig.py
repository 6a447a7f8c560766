"""What a user's celeryconfig changes, and what it cannot take away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks_app.broker.consumer import PatientConsumer, RabbitConsumer
from tasks_app.broker.defaults import celery_defaults

CONFIG = """
from __future__ import annotations
import os
beat_schedule = {"mine": {"task": "mine", "schedule": 60}}
broker_transport_options = {"socket_timeout": 9}
worker_prefetch_multiplier = 3
"""
PRINT = """
from tasks_app.celery import app
print(sorted(app.conf.beat_schedule))
print(app.conf.broker_transport_options["socket_timeout"])
print(app.conf.broker_transport_options["global_keyprefix"])
print(app.conf.worker_prefetch_multiplier, app.conf.task_acks_late)
print("annotations" in app.conf.changes, "os" in app.conf.changes)
"""


@pytest.mark.test_all
def test_a_users_celeryconfig_wins_but_tables_are_merged(tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text(CONFIG)

    done = subprocess.run(
        [sys.executable, "-c", PRINT],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "TASKS_APP_BROKER_URL": "redis://localhost",
        },
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines() == [
        "['mine', 'tasks_app.maintain', 'tasks_app.scan']",
        "9",
        "tasks_app:",
        "3 False",
        "False False",
    ]


def test_every_kind_of_broker_has_a_consumer_that_goes_on_watching() -> None:
    consumers = {
        url: celery_defaults(url, 1.0)["worker_consumer"] for url in ("redis://x", "amqp://x")
    }

    assert consumers == {
        "redis://x": "tasks_app.broker.consumer:PatientConsumer",
        "amqp://x": "tasks_app.broker.consumer:RabbitConsumer",
    }
    assert issubclass(RabbitConsumer, PatientConsumer)
