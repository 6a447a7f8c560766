"""Groups and chunks while workers are killed at random. Prints its figures.

GROUP_COUNT=1000 makes it the size of the promise; by default it is smaller.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app import NewTask, create_group, create_task
from tests.edge.gated_runs import Workers
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(3600, method="thread")]

GROUPS, OF_GROUP = int(os.environ.get("GROUP_COUNT", "20")), 50
ROWS, TASKS = 20_000, 4
KINDS = ("plain", "effects", "writes", "async")
THEN, ELSE = NewTask("group.then"), NewTask("group.else")
LEFT = text("SELECT count(*) FROM task_pending")
TABLES = """
    DROP TABLE IF EXISTS group_effect, group_call, group_item;
    CREATE TABLE group_effect (task_id bigint);
    CREATE TABLE group_call (
        name text, task_id bigint, group_id bigint, succeeded int, failed int);
    CREATE TABLE group_item (id int PRIMARY KEY, seen int NOT NULL DEFAULT 0);
"""


@pytest.fixture
def async_pool(engine: Engine, database_url: str, tmp_path: Path) -> Iterator[list[Workers]]:
    with engine.begin() as connection:
        connection.execute(text(TABLES))
    started: list[Workers] = []
    yield started
    for each in started:
        each.stop()


def left(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(LEFT).scalar_one()


def done(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM task_completed")).scalar_one())


def seen(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT sum(seen) FROM group_item")).scalar_one())


def members(number: int) -> list[NewTask]:
    """Of all kinds; one of each seventh group fails."""
    tasks = [NewTask(f"member.{KINDS[n % 4]}", {"n": n}) for n in range(OF_GROUP)]
    if number % 7 == 0:
        tasks[number % OF_GROUP] = NewTask("member.fails")
    return tasks


def many(connection: Connection, statement: str) -> dict:
    return dict(connection.execute(text(statement)).all())


def test_each_callback_is_called_once_while_workers_are_killed(
    engine: Engine, database_url: str, tmp_path: Path, async_pool: list[Workers]
) -> None:
    made = {}
    for number in range(GROUPS):
        with engine.begin() as connection:
            group = create_group(connection, members(number), then=THEN, on_failure=ELSE)
        made[group.callback_id] = (group.id, number % 7 == 0)
    began = time.monotonic()
    gang = Workers(database_url, tmp_path, 4, threads=2, imports="group_handlers")
    async_pool.append(gang)
    with gang.kills(every=150, progress=lambda: done(engine)):
        until(lambda: left(engine) == 0, 3000)
    took_s = time.monotonic() - began

    with engine.connect() as connection:
        calls = connection.execute(text("SELECT * FROM group_call")).all()
        crashed = connection.execute(
            text("SELECT count(*) FROM task_completed WHERE crashes > 0 OR failures > 0")
        ).scalar_one()
        existing = connection.execute(
            text("SELECT count(*) FROM task_all WHERE name LIKE 'group.%'")
        ).scalar_one()
        ends = many(connection, "SELECT outcome, count(*) FROM task_group GROUP BY 1")
        states = many(connection, "SELECT state, count(*) FROM task_all GROUP BY 1")
        twice = connection.execute(
            text("SELECT count(*) - count(DISTINCT task_id) FROM group_effect")
        ).scalar_one()
    tasks = GROUPS * OF_GROUP
    print(
        f"{GROUPS} groups of {OF_GROUP}, {len(gang.killed)} kills, {crashed} tasks hit by them, "
        f"{tasks / took_s:.0f} tasks/s"
    )
    bad = sum(fails for _, fails in made.values())
    assert len(gang.killed) > GROUPS / 50
    assert existing == len(calls) == GROUPS
    assert ends == {"SUCCEEDED": GROUPS - bad, "FAILED": bad}
    assert states == {"SUCCEEDED": tasks - bad + GROUPS, "FAILED": bad}
    assert twice == 0
    for name, task_id, group_id, succeeded, failed in calls:
        fails = made[task_id][1]
        assert made[task_id][0] == group_id
        assert name == ("group.else" if fails else "group.then")
        assert (succeeded, failed) == (OF_GROUP - fails, int(fails))


def test_each_row_of_a_long_way_is_seen_once_while_workers_are_killed(
    engine: Engine, database_url: str, tmp_path: Path, async_pool: list[Workers]
) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO group_item SELECT n FROM generate_series(1, :n) AS n"), {"n": ROWS}
        )
        ids = [create_task(connection, "chunks", {"of": TASKS, "n": n}) for n in range(TASKS)]
    began = time.monotonic()
    gang = Workers(database_url, tmp_path, 3, imports="group_handlers")
    async_pool.append(gang)
    with gang.kills(every=2_500, progress=lambda: seen(engine)):
        until(lambda: left(engine) == 0, 3000)
    took_s = time.monotonic() - began

    with engine.connect() as connection:
        times = many(connection, "SELECT seen, count(*) FROM group_item GROUP BY 1")
        attempts = connection.execute(text("SELECT sum(attempt) FROM task_completed")).scalar_one()
    print(f"{len(gang.killed)} kills, {attempts} runs of {TASKS} tasks, {ROWS / took_s:.0f} rows/s")
    assert times == {1: ROWS}
    assert attempts > len(ids), "no kill hit a run"
