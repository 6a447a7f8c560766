"""Somebody's transaction stays open while tasks come and go: vacuum removes nothing.

Every task that is over leaves dead rows and dead index entries, and they lie where claim and scan
begin to read. Measured is the claim statement itself, on probes of the loaded queue, in windows
before, during and after. ``SNAPSHOT_MINUTES=10`` for the whole proof, ``SNAPSHOT_RATE`` tasks
a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Self
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from tasks_app import NewTask, create_tasks
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.finding import Level
from tasks_app.monitor.checks import database as checks
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.runs.claim import Claimer, claim, claim_next
from tasks_app.runtime.scan import ScanPosition
from tests.broker.conftest import House
from tests.clock import until
from tests.edge.load import SPANS

pytestmark = pytest.mark.timeout(3600, method="thread")

HELD_S = float(os.environ.get("SNAPSHOT_MINUTES", "0.5")) * 60
RATE = int(os.environ.get("SNAPSHOT_RATE", "250"))
WINDOW_S = min(30.0, HELD_S / 4)
PROBES_PER_S = 20
BATCHES_PER_S = 10
PROBE = Claimer("probe@test", timedelta(seconds=30), ("probe",), (1,), (False,))
CLAIMS = ("claim by id", "claim from the pool")
KINDS = (*CLAIMS, "scan")
MOST_TIMES, MOST_TIMES_AFTER = 5.0, 2.0
FLOOR_MS = 2.0
"""Below it a figure says more of who else uses the machine than of us."""

DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'task_pending'"
PICKUP = """
SELECT 1000 * coalesce(percentile_cont(0.99) WITHIN GROUP (
    ORDER BY extract(epoch FROM started_at - due_at)), 0)
FROM task_completed WHERE finished_at > now() - make_interval(secs => :span)
"""
PENDING = "SELECT count(*) FROM task_pending"


class Load:
    """Creates tasks at a steady pace until it is over; knows nothing of brokers."""

    def __init__(self, house: House) -> None:
        self.created = 0
        self._house = house
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _produce(self) -> None:
        began = time.monotonic()
        while not self._over.wait(1 / BATCHES_PER_S):
            number = int((time.monotonic() - began) * RATE) - self.created
            self.created += len(self._house.create("plain", number))


class Prober:
    """Times the statements themselves, without their commits, on rows of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._front = ScanPosition()
        self.asked = self.found = 0

    def window(self, seconds: float) -> dict[str, list[float]]:
        """Return milliseconds of each kind, ascending."""
        took: dict[str, list[float]] = {kind: [] for kind in KINDS}
        ends = time.monotonic() + seconds
        with self._engine.connect() as connection:
            connection.execute(text("SET synchronous_commit = off"))
            connection.commit()
            while (began := time.monotonic()) < ends:
                self._probe(connection, took)
                time.sleep(max(0.0, began + 1 / PROBES_PER_S - time.monotonic()))
        return {kind: sorted(values) for kind, values in took.items()}

    def _probe(self, connection: Connection, took: dict[str, list[float]]) -> None:
        ids = create_tasks(connection, [NewTask("probe")] * 2)
        connection.commit()
        with timed(took["claim by id"]):
            claim(connection, ids[:1], PROBE, uuid4())
        connection.commit()
        began = time.monotonic()
        within = self._front.within(began)
        with timed(took["claim from the pool"]):
            claimed = claim_next(connection, ["default"], 1, PROBE, uuid4(), within=within)
        self._front.was_read(began, within, left=0)  # they come one by one, as from a steady load
        connection.commit()
        self.asked += 1
        self.found += [task.task_id for task in claimed] == ids[1:]
        with timed(took["scan"]):
            find_due(connection, {"default": 100})
        connection.execute(text("DELETE FROM task_pending WHERE id = ANY(:ids)"), {"ids": ids})
        connection.commit()


@contextmanager
def timed(took: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    took.append(1000 * (time.perf_counter() - began))


def p99(values: list[float]) -> float:
    """Return the 99th percentile of ascending values."""
    return values[max(0, -(-99 * len(values) // 100) - 1)]


class Watch:
    """Prints a line for each window, and keeps what is compared."""

    def __init__(self, house: House, prober: Prober) -> None:
        self._house = house
        self._prober = prober
        print(f"\n| when | dead rows | {' | '.join(KINDS)} (p50, p99 ms) | due to start, p99 ms |")

    def look(self, when: str, seconds: float) -> dict[str, float]:
        """Measure through one window; return the p99 of each kind."""
        took = self._prober.window(seconds)
        cells = [f"{v[len(v) // 2]:.1f}, {p99(v):.1f}" for v in took.values()]
        pickup = self._house.sql(PICKUP, span=seconds)
        print(f"| {when} | {self._house.sql(DEAD)} | {' | '.join(cells)} | {pickup:.0f} |")
        return {kind: p99(values) for kind, values in took.items()}

    def looks(self, when: str, seconds: float) -> list[dict[str, float]]:
        began = time.monotonic()
        seen = []
        while time.monotonic() - began < seconds - WINDOW_S / 2:
            seen.append(self.look(f"{when} {time.monotonic() - began:.0f} s", WINDOW_S))
        return seen


def middle(windows: list[dict[str, float]]) -> dict[str, float]:
    """Return the median window of each kind: one bad window is somebody else's."""
    return {kind: sorted(w[kind] for w in windows)[len(windows) // 2] for kind in KINDS}


def too_slow(when: str, before: dict[str, float], now: dict[str, float], most: float) -> list[str]:
    """Print how many times as long each kind takes; return the claims that take too long."""
    times = {kind: now[kind] / max(before[kind], FLOOR_MS) for kind in KINDS}
    for kind, number in times.items():
        print(f"| {when} | {kind} | {before[kind]:.1f} ms | {now[kind]:.1f} ms | {number:.1f} x |")
    return [kind for kind in CLAIMS if times[kind] > most]


def named(engine: Engine, pid: int) -> bool:
    with engine.connect() as connection:
        found = checks.transactions(connection, Settings())
    return any(each.level is Level.WARN and f"session {pid} " in each.fact for each in found)


def test_a_transaction_that_stays_open(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LONG_IDLE", min(checks.LONG_IDLE, timedelta(seconds=HELD_S / 4)))
    house.beat(**SPANS)
    house.worker(children=2, **SPANS)
    engine = create_engine(house.url)
    prober = Prober(engine)
    watch = Watch(house, prober)
    with Load(house) as load:
        until(lambda: house.sql("SELECT count(*) FROM task_completed") > 2 * RATE, 60)
        before = middle(watch.looks("before", max(2 * WINDOW_S, HELD_S / 10)))
        holder = engine.connect().execution_options(isolation_level="REPEATABLE READ")
        holder.execute(text("SELECT count(*) FROM task_completed"))
        pid = holder.connection.dbapi_connection.info.backend_pid  # type: ignore[union-attr]
        during = watch.looks("held", HELD_S)
        dead = house.sql(DEAD)
        alarm = named(engine, pid)
        holder.rollback()
        holder.close()
        until(lambda: house.sql(DEAD) < dead / 4, 180, "vacuum after the release")
        after = middle(watch.looks("after", 2 * WINDOW_S))
    until(lambda: house.sql(PENDING) == 0, 60, "the end of all tasks")
    engine.dispose()

    assert house.sql("SELECT count(*) FROM task_completed") == load.created
    assert alarm
    assert prober.found >= prober.asked / 2  # a scan that finds one first parks it: nobody's name
    worst = middle(during[-max(1, len(during) // 3) :])
    assert too_slow("held", before, worst, MOST_TIMES) == []
    assert too_slow("after", before, after, MOST_TIMES_AFTER) == []
