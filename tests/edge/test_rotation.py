"""All values change to another key while workers run; the rotation is killed in between.

ROTATION_COUNT=100000 makes it larger. Prints figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tasks_app import NewTask, create_tasks, get_task
from tasks_app.domain.encryption import new_key
from tasks_app.runtime.encryption.encryption import encryption
from tests.edge.gated_runs import Workers
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600, method="thread")]

TASKS = int(os.environ.get("ROTATION_COUNT", "1500"))
OLD, NEW = f"old:{new_key()}", f"new:{new_key()}"
TABLE = text("DROP TABLE IF EXISTS effect; CREATE TABLE effect (task_id bigint, note text)")
DONE = text("SELECT count(*), count(DISTINCT task_id) FROM effect")
WRONG = text("SELECT count(*) FROM effect WHERE note <> (task_id - :first)::text")
LEFT = text("SELECT count(*) FROM task_pending")
BY_OLD = text("""
    SELECT (SELECT count(*) FROM task_pending WHERE payload::text LIKE '%"v1.old.%')
         + (SELECT count(*) FROM task_completed
            WHERE payload::text LIKE '%"v1.old.%' OR result::text LIKE '%"v1.old.%')
""")
ENDED = text("SELECT state, attempt, count(*) FROM task_completed GROUP BY 1, 2")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Any:
    """This process encrypts by the old key, and later by the new one."""

    def use(value: str) -> None:
        monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", value)
        encryption.cache_clear()

    monkeypatch.setenv("TASKS_APP_ENCRYPTED_TASKS", "secret")
    use(OLD)
    yield use
    encryption.cache_clear()


def rotation(url: str) -> subprocess.Popen[str]:
    keys = {"TASKS_APP_DATABASE_URL": url, "TASKS_APP_ENCRYPTION_KEYS": f"{NEW},{OLD}"}
    return subprocess.Popen(
        [sys.executable, "-m", "tasks_app", "encryption", "rotate"],
        env={**os.environ, **keys},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def count(engine: Engine, statement: Any, **values: Any) -> int:
    with engine.connect() as connection:
        return int(connection.execute(statement, values).scalar_one())


def rotated(engine: Engine, url: str) -> str:
    """Kill a rotation when it has done a tenth, and let another one finish; return what it said."""
    killed = rotation(url)
    until(lambda: count(engine, BY_OLD) < TASKS * 0.9, 600, "a tenth to be encrypted anew")
    killed.kill()
    killed.communicate()
    again = rotation(url)
    said, _ = again.communicate(timeout=1500)
    assert (killed.returncode, again.returncode) == (-9, 0), said
    return said


def test_all_values_change_beside_workers(
    engine: Engine, database_url: str, tmp_path: Path, keys: Any
) -> None:
    with engine.begin() as connection:
        connection.execute(TABLE)
        made = create_tasks(connection, [NewTask("secret", {"n": n}) for n in range(TASKS)])
    first = min(made)
    assert count(engine, BY_OLD) == TASKS
    began = time.monotonic()

    more = {"TASKS_APP_ENCRYPTION_KEYS": f"{NEW},{OLD}"}
    workers = Workers(database_url, tmp_path, 2, imports="secret_handlers", more=more)
    try:
        until(lambda: count(engine, DONE) > 0, 60, "a task to be over")
        said = rotated(engine, database_url)
        beside = count(engine, DONE)
        until(lambda: count(engine, LEFT) == 0, 600, "all tasks to be over")
    finally:
        workers.stop()

    took = time.monotonic() - began
    print(f"\n{TASKS:,} values, {took:.0f} s in all, {beside:,} tasks over by the end. {said}")
    with engine.connect() as connection:
        assert [tuple(r) for r in connection.execute(ENDED)] == [("SUCCEEDED", 1, TASKS)]
        assert tuple(connection.execute(DONE).one()) == (TASKS, TASKS)
    assert (count(engine, WRONG, first=first), count(engine, BY_OLD)) == (0, 0)
    keys(NEW)
    with engine.connect() as connection:
        last = get_task(connection, first + TASKS - 1)
    assert last is not None
    assert (last.payload, last.result) == ({"n": TASKS - 1}, {"n": TASKS - 1})
