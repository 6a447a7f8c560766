"""Groups and alerts with real processes."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app import NewTask, create_group, create_task
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.clock import until
from tests.edge.gated_runs import Workers
from tests.runtime.alerts.conftest import Hook, listening

pytestmark = pytest.mark.timeout(3600, method="thread")

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


WITHIN_S = 60.0
ENOUGH = 5
OLD = 300
"""Transactions."""
LOOKS = "SELECT done_at FROM task_alert_look"


@pytest.fixture
def hook() -> Iterator[Hook]:
    with listening() as server:
        yield server


@pytest.fixture
def spans(house: House, hook: Hook) -> Iterator[dict[str, str]]:
    house.sql("DELETE FROM task_alert")
    house.sql("DELETE FROM task_fingerprint")
    yield {
        "TASKS_APP_LEASE": "30s",
        "TASKS_APP_ALERT_WEBHOOK": hook.url,
        "TASKS_APP_ALERT_ERRORS": str(ENOUGH),
        "TASKS_APP_ALERT_SNAPSHOT": str(OLD),
    }
    house.end()


@pytest.fixture
def worker(house: House, spans: dict[str, str], free_port: int) -> CeleryProcess:
    """A worker, and beside it a beat, metrics and a dashboard that watch."""
    worker = house.worker(**spans)
    house.beat(**spans)
    house.start("pool", "metrics", "--port", "0", **spans).says("Metrics on")
    house.start("pool", "dashboard", "--port", str(free_port), **spans).says("Dashboard:")
    seen = until(lambda: house.sql(LOOKS), 30, "the first look")
    until(lambda: house.sql(LOOKS) > seen, 30, "another one")
    return worker


def told(hook: Hook, status: str, key: str, since: float) -> float:
    """Wait until it was posted; return and print how long that took."""
    said = (status, key)
    until(lambda: said in [(s, k.partition(":")[0]) for s, k in hook.said], 120, f"{said}")
    place = [(s, k.partition(":")[0]) for s, k in hook.said].index(said)
    took = hook.at[place] - since
    print(f"\n| {key} {status} | {took:.1f} s | <= {WITHIN_S:g} s |")
    assert took <= WITHIN_S
    return took


def quiet(house: House, hook: Hook) -> Counter[tuple[str, str]]:
    """Wait for two more looks, so that whatever is told twice is seen; count what was told."""
    for _ in range(2):
        seen = house.sql(LOOKS)
        until(lambda seen=seen: house.sql(LOOKS) > seen, 60, "a look")
    return Counter((status, key.partition(":")[0]) for status, key in hook.said)


def once(*keys: str) -> dict[tuple[str, str], int]:
    return {(status, key): 1 for key in keys for status in ("firing", "resolved")}


def test_worker_and_beat_are_killed(
    house: House, hook: Hook, spans: dict[str, str], worker: CeleryProcess
) -> None:
    beat = next(each for each in house._started if each.alive and "beat: Starting" in each.log())
    began = time.monotonic()
    worker.signal_all(signal.SIGKILL)
    beat.signal_all(signal.SIGKILL)
    told(hook, "firing", "workers", began)
    told(hook, "firing", "scan", began)
    began = time.monotonic()
    house.start("worker", "-c", "2", "-n", f"{worker.name}@%h", "-l", "INFO", **spans)
    house.beat(**spans)
    told(hook, "resolved", "workers", began)
    told(hook, "resolved", "scan", began)

    assert quiet(house, hook) == once("workers", "scan")


def test_a_beat_that_is_killed_is_no_alert_while_a_worker_stands_in(
    house: House, hook: Hook, worker: CeleryProcess
) -> None:
    beat = next(each for each in house._started if each.alive and "beat: Starting" in each.log())
    beat.signal_all(signal.SIGKILL)
    standby = "SELECT 1 FROM task_lease WHERE name = 'scan' AND rank = 1 AND held_until > now()"
    until(lambda: house.sql(standby), 30, "a worker that stands in")
    assert quiet(house, hook) == {}
    waits = "SELECT sending_until - opened_at > '4 min' FROM task_alert WHERE closed_at IS NULL"
    assert house.sql(waits)
    assert worker.alive


def test_errors_in_numbers_and_a_held_snapshot(
    house: House, hook: Hook, spans: dict[str, str], worker: CeleryProcess
) -> None:
    with house.engine.connect() as holder:
        holder.execution_options(isolation_level="REPEATABLE READ")
        holder.execute(text("SELECT pg_current_xact_id()"))
        for _ in range(OLD):
            house.sql("SELECT pg_current_xact_id()")
        began = time.monotonic()
        house.over(house.create("bad", ENOUGH))
        for key in ("new-error", "error-burst", "snapshot"):
            told(hook, "firing", key, began)
        causes = {key.partition(":")[2] for _, key in hook.said if "error" in key}
        began = time.monotonic()
        holder.rollback()
    assert house.start("pool", "errors", "known", *causes, **spans).wait() == 0
    told(hook, "resolved", "error-burst", began)
    told(hook, "resolved", "snapshot", began)

    assert len(causes) == 1
    assert quiet(house, hook) == {("firing", "new-error"): 1, **once("error-burst", "snapshot")}
    assert worker.alive
