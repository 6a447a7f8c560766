"""Order and limits while workers are killed at random. Prints its figures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tasks_app import NewTask, create_tasks
from tasks_app.domain.flow_control.limits import GateKind, Limit, limit_of
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tests.edge.gated_runs import Workers, most_at_once, overlaps
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600, method="thread")]

KEYS, OF_KEY = 20, 20
LEFT = text("SELECT count(*) FROM task_pending")


@pytest.fixture
def async_pool(database_url: str, tmp_path: Path) -> Iterator[list[Workers]]:
    started: list[Workers] = []
    yield started
    for each in started:
        each.stop()


def left(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(LEFT).scalar_one()


def create(engine: Engine, *tasks: NewTask) -> list[int]:
    with engine.begin() as connection:
        return [int(task_id) for task_id in create_tasks(connection, tasks)]


def test_tasks_of_a_key_run_one_at_a_time_while_workers_are_killed(
    engine: Engine, database_url: str, tmp_path: Path, async_pool: list[Workers]
) -> None:
    ids = create(
        engine,
        *(
            NewTask(
                "gated", {"key": f"k{n % KEYS}", "seconds": 0.05}, {"order_key": f"k{n % KEYS}"}
            )
            for n in range(KEYS * OF_KEY)
        ),
    )
    began = time.monotonic()
    gang = Workers(database_url, tmp_path, 4)
    async_pool.append(gang)
    with gang.kills(every=50):
        until(lambda: left(engine) == 0, 400)
    took_s = time.monotonic() - began
    runs = gang.runs()

    hit = len(runs) - len(ids)
    print(f"{len(runs)} runs, {len(gang.killed)} kills, {len(ids) / took_s:.0f} tasks/s")
    assert gang.killed
    assert hit, "no kill hit a run"
    assert set(ids) == {run.task_id for run in runs}
    assert overlaps(runs) == 0
    first = Counter[str]()
    for run in sorted(runs):
        assert run.task_id >= first[run.key], "a later one of the key ran before"
        first[run.key] = run.task_id


def test_no_more_than_the_limit_run_while_workers_are_killed(
    engine: Engine, database_url: str, tmp_path: Path, async_pool: list[Workers]
) -> None:
    with engine.begin() as connection:
        set_limit(connection, Limit(GateKind.KEY, "tenant:*", 3))
    payload = {"key": "tenant:1", "seconds": 0.3}  # long beside the way from one run to the next
    ids = create(engine, *[NewTask("gated", payload, {"limit_key": "tenant:1"})] * 90)
    gang = Workers(database_url, tmp_path, 4, threads=2)
    async_pool.append(gang)
    with gang.kills(every=15):
        until(lambda: left(engine) == 0, 400)
    runs = gang.runs()

    print(f"{len(runs)} runs, {len(gang.killed)} kills, at most {most_at_once(runs)} at once")
    assert set(ids) == {run.task_id for run in runs}
    assert gang.killed
    assert most_at_once(runs) == 3


def test_no_more_than_each_limit_run_of_tasks_with_several_keys_while_workers_are_killed(
    engine: Engine, database_url: str, tmp_path: Path, async_pool: list[Workers]
) -> None:
    with engine.begin() as connection:
        set_limit(connection, Limit(GateKind.KEY, "bank", 4))
        set_limit(connection, Limit(GateKind.KEY, "tenant:*", 2))
    payload = {"key": "bank", "seconds": 0.2}
    tenants = [f"tenant:{n % 3}" for n in range(120)]
    keys = [[tenant, "bank"] if n % 2 else ["bank", tenant] for n, tenant in enumerate(tenants)]
    ids = create(engine, *(NewTask("gated", payload, {"limit_key": pair}) for pair in keys))
    gang = Workers(database_url, tmp_path, 4, threads=2)
    async_pool.append(gang)
    with gang.kills(every=20):
        until(lambda: left(engine) == 0, 400)
    runs = gang.runs()

    tenant_of = dict(zip(ids, tenants, strict=True))
    each = {
        tenant: most_at_once([run for run in runs if tenant_of[run.task_id] == tenant])
        for tenant in tenant_of.values()
    }
    print(f"{len(runs)} runs, {len(gang.killed)} kills, {most_at_once(runs)} at once, {each}")
    assert gang.killed
    assert set(ids) == {run.task_id for run in runs}
    assert most_at_once(runs) == 4
    assert set(each.values()) == {2}


RATE, BURST, SPAN_S = 10, 5, 15.0
LATENCY_TASKS = 2
"""A start is noted some time after its claim, and that time varies."""


def test_a_bucket_keeps_its_rate_and_never_gives_more_than_its_burst(
    engine: Engine, database_url: str, tmp_path: Path, async_pool: list[Workers]
) -> None:
    with engine.begin() as connection:
        set_limit(connection, limit_of("name", "gated", None, f"{RATE}/1s", BURST))
    create(engine, *[NewTask("gated", {"key": "k"})] * int(RATE * SPAN_S * 1.5))
    gang = Workers(database_url, tmp_path, 2)
    async_pool.append(gang)
    until(lambda: gang.log.exists() and len(gang.runs()) > BURST, 120)
    ends = gang.runs()[BURST].began / 1e9 + SPAN_S
    until(lambda: gang.runs()[-1].began / 1e9 > ends, 2 * SPAN_S)
    starts = [run.began / 1e9 for run in gang.runs()]

    first = starts[BURST]  # what the full bucket held at the beginning is not its rate
    within = sum(first <= at < first + SPAN_S for at in starts)
    most = max(
        sum(at <= other < at + span for other in starts) - RATE * span
        for span in (0.5, 1.0, 5.0)
        for at in starts
    )
    print(f"{within} starts in {SPAN_S:g} s at {RATE}/s; at most {most:+.1f} beside the rate")
    assert abs(within - RATE * SPAN_S) <= LATENCY_TASKS + 0.02 * RATE * SPAN_S
    assert most <= BURST + LATENCY_TASKS
