"""From a fault to the post, and from its end to the second one, with the default lease.

The leader watches, where it lives, and two processes that do not lead: of three, one tells.
Instants are those of this machine; printed, and at most a minute.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.runtime.alerts.hook import Hook, listening
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600, method="thread")]

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
    """What every process is told."""
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
