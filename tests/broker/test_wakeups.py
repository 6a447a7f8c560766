"""Wake-ups do not depend on what the modules of an application import of tasks_app."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import House
from tests.clock import until

pytestmark = pytest.mark.test_all

SCANS = {"TASKS_APP_SCAN_INTERVAL": "60s"}
"""Whatever runs in these tests was not found by a scan."""
SOON_S = 20.0
DONE = "SELECT count(*) FROM task_completed WHERE state = 'SUCCEEDED'"


@pytest.fixture(scope="module", autouse=True)
def worker(house: House) -> Any:
    """Its only module of handlers imports ``handler`` and nothing else."""
    return house.worker(TASKS_APP_IMPORTS="bare_handlers", **SCANS)


def produce(house: House, folder: Path, imports: str, create: str) -> list[int]:
    """Run a producer with these imports; return the ids of what it committed."""
    script = f"""
import json, os
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
{imports}
with Session(create_engine(os.environ["TASKS_APP_DATABASE_URL"])) as session, session.begin():
    {create}
    ids = session.scalars(text("SELECT id FROM task_pending")).all()
from tasks_app.runtime import hints
hints.HINTS.exit_patience_s = 30  # a busy machine needs more than a second to import Celery
hints.HINTS.flush()
assert hints.HINTS.counts().sent
print(json.dumps(ids))
"""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TASKS_APP_", "CELERY_"))}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**kept, **house.environment(**SCANS)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("imports", "create"),
    [
        ("from tasks_app import create_task", "create_task(session, 'bare.short')"),
        (
            "from tasks_app import NewTask, create_group",
            "create_group(session, [NewTask('bare.short')] * 3)",
        ),
        (
            "from tasks_app.runtime.api.producer import create_task",
            "create_task(session, 'bare.short')",
        ),
        (
            "from tasks_app import NewTask; from tasks_app.runtime.api.groups import create_group",
            "create_group(session, [NewTask('bare.short')] * 3)",
        ),
    ],
    ids=["create_task", "create_group", "by its room", "group by its room"],
)
def test_a_producer_is_heard_whatever_it_imports(
    house: House, tmp_path: Path, imports: str, create: str
) -> None:
    ids = produce(house, tmp_path, imports, create)
    assert house.over(ids, SOON_S) == {"SUCCEEDED": len(ids)}


@pytest.mark.parametrize(
    "create",
    [
        "[create_task(session, 'bare.short', order_key='k') for _ in range(30)]",
        "create_task(session, 'bare.fails')",
        "create_group(session, [NewTask('bare.short')] * 2, then=NewTask('bare.short'))",
    ],
    ids=["order key", "retries", "callback"],
)
def test_a_worker_wakes_others_whatever_its_modules_import(
    house: House, tmp_path: Path, create: str
) -> None:
    ids = produce(
        house, tmp_path, "from tasks_app import NewTask, create_group, create_task", create
    )
    until(lambda: house.sql(DONE) == len(ids) + ("then=" in create), SOON_S)


def test_two_services_on_one_queue_pass_on_what_is_the_others(house: House, tmp_path: Path) -> None:
    """One task a commit, so that each has a hint of its own; half of them go astray at first."""
    other = house.worker(TASKS_APP_IMPORTS="house_handlers", **SCANS)
    other.says(" ready.")  # its children are known a second before it hears messages
    create = """for name in ["bare.short", "plain"] * 10:
        with Session(session.get_bind()) as own, own.begin():
            create_task(own, name)"""
    produce(house, tmp_path, "from tasks_app import create_task", create)
    until(lambda: house.sql(DONE) == 20, SOON_S)
