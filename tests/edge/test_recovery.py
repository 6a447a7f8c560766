"""How long until work goes on after each kind of loss. Printed; the bounds are asserted.

With the default spans, but where it says otherwise. Instants of tasks are those of this machine's
clock, which all processes share.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from redis import Redis
from sqlalchemy import text
from sqlalchemy.engine import make_url

from tasks_app.embedded.servers.postgres import Postgres
from tests.broker.conftest import House
from tests.edge.load import DEFAULTS, Load
from tests.waiting import until
from torture.fault_proxy import FaultProxy

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(900, method="thread")]

KILLS = 100
MACHINES = 4
LEASE_S = 5
DISPATCHED = 10_000
AWAY_S = 60
OUTAGE_S = 20
MANY = 100_000
"""More than a quiet machine works off in the time that it may take."""
LATEST = "SELECT max(result::text::float8) FROM task_completed WHERE id = ANY(:ids)"
RUNNING = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING'"
ABOARD = "SELECT array_agg(id) FROM task_pending WHERE state = 'RUNNING' AND owner LIKE :owner"
OUT = "SELECT coalesce(sum(cardinality(ids)), 0) FROM task_dispatch"
FIRST = "SELECT min(finished_at) FROM task_completed WHERE finished_at > :instant"
RATE = """
SELECT count(*) / CAST(:span AS float8) FROM task_completed
WHERE finished_at > now() - make_interval(secs => :span)
"""
SPREAD_S = 3.0


@pytest.fixture(autouse=True)
def _alone(house: House) -> Iterator[None]:
    """Each of these starts its own processes, and leaves none to the next."""
    yield
    house.end()


def figures(what: str, seconds: Sequence[float], bound: str) -> float:
    """Print one line, and return the 99th percentile."""
    p99 = sorted(seconds)[max(0, -(-99 * len(seconds) // 100) - 1)]
    median = statistics.median(seconds)
    print(f"\n| {what} | n {len(seconds)} | median {median:.2f} s | p99 {p99:.2f} s | {bound} |")
    return p99


def test_a_killed_child(house: House, tmp_path: Path) -> None:
    """Its task, which is to be tried again at once, and what shared a message with it."""
    house.beat(**DEFAULTS)
    worker = house.worker(children=4, **DEFAULTS)
    house.over(house.create("when", 500))
    own, rest = [], []
    for number in range(KILLS):
        note = tmp_path / str(number)
        ids = house.create("dies.once", 1, {"path": str(note)})
        ids += house.create("when", 79)
        house.over(ids)
        died = float(note.read_text())
        own.append(house.sql(LATEST, ids=ids[:1]) - died)
        rest.append(max(0.0, house.sql(LATEST, ids=ids[1:]) - died))

    assert worker.alive
    assert figures("killed child, its task", own, "<= 1 s") <= 1
    assert figures("killed child, the rest of its message", rest, "<= 1 s") <= 1


def test_a_killed_machine(house: House) -> None:
    """The whole group of a worker; another one lives."""
    spans = {**DEFAULTS, "TASKS_APP_LEASE": f"{LEASE_S}s"}
    house.beat(**spans)
    house.worker(children=4, **spans)
    took = []
    for _ in range(MACHINES):
        victim = house.worker(children=2, **spans)
        ids = house.create("slow", 12, {"seconds": 3.0})
        owner = f"{victim.name}@%"
        lost = until(lambda owner=owner: house.sql(ABOARD, owner=owner), 30)
        victim.signal_all(signal.SIGKILL)
        killed = time.monotonic()
        waits = {int(task_id) for task_id in lost}
        while waits:
            again = until(lambda waits=waits: [i for i in waits if house.task(i).attempt > 1], 60)
            took += [time.monotonic() - killed for _ in again]
            waits -= set(again)
        house.over(ids, 60)

    bound = f"<= lease {LEASE_S} s + 7 s"
    assert figures("killed machine", took, bound) <= LEASE_S + 7


def test_a_broker_wiped_with_ten_thousand_dispatched(house: House) -> None:
    house.beat(**DEFAULTS)
    house.worker(children=8, **DEFAULTS)
    house.over(house.create("plain", 5_000))
    blocks = house.create("slow", 8, {"seconds": 8.0})
    until(lambda: house.sql(RUNNING) == 8, 30)
    ids = house.create("plain", DISPATCHED)
    until(lambda: house.sql(OUT) >= DISPATCHED, 7, house.sql(OUT))
    with Redis.from_url(house.environment()["TASKS_APP_BROKER_URL"]) as redis:
        redis.flushall()
    began = time.monotonic()

    states = house.over([*blocks, *ids], 120)

    took = time.monotonic() - began
    figures(f"broker wiped with {DISPATCHED} dispatched, all of them done", [took], "<= 45 s")
    assert states == {"SUCCEEDED": DISPATCHED + 8}
    assert took <= 45


@pytest.mark.parametrize("away_s", [AWAY_S, pytest.param(300, id="whole")])
def test_a_broker_that_was_away(house: House, away_s: float) -> None:
    house.beat(**DEFAULTS)
    house.worker(children=2, **DEFAULTS)
    with Load(house) as load:
        house.broker.kill()
        load.goes_on(away_s)
        house.broker.start()
        back = house.sql("SELECT clock_timestamp()")
        first = until(lambda: house.sql(FIRST, instant=back), 120)
        load.__exit__()
        states = house.over(load.ids, 180)

    took = (first - back).total_seconds()
    figures(f"broker down for {away_s:g} s, the first task after it", [took], "<= 5 s")
    assert states == {"SUCCEEDED": len(load.ids)}
    assert took <= 5


def test_a_database_that_is_killed_under_load(house: House, postgres: Postgres) -> None:
    """Until as many tasks a second end as before: 90 % of them, over three seconds."""
    house.beat(**DEFAULTS)
    house.worker(children=2, **DEFAULTS)
    load: list[int] = house.create("ok", MANY)
    until(lambda: house.sql("SELECT count(*) FROM task_completed") > 1_000, 60)
    time.sleep(SPREAD_S)
    before = house.sql(RATE, span=SPREAD_S)
    postgres.kill()
    house.engine.dispose()
    time.sleep(2)
    postgres.start()
    back = time.monotonic()

    until(lambda: house.sql(RATE, span=SPREAD_S) >= 0.9 * before, 60)

    took = max(0.0, time.monotonic() - back)
    left = house.sql("SELECT count(*) FROM task_pending")
    figures(f"database killed at {before:.0f} tasks/s, 90 % of it", [took], "<= 15 s")
    assert left > 0, "the load ended before the throughput was back"
    assert took <= 15
    states = house.over(load, 300)
    with house.engine.connect() as connection:
        effects = connection.execute(
            text("SELECT count(*), count(DISTINCT task_id) FROM effect")
        ).one()
    assert states == {"SUCCEEDED": len(load)}
    assert tuple(effects) == (len(load), len(load))


@pytest.mark.parametrize("silent", [False, True], ids=["refusing", "silent"])
def test_a_hundred_finished_outcomes_and_a_database_that_is_away(
    house: House, tmp_path: Path, silent: bool
) -> None:
    """Their handlers need no database; none of them is lost, and none runs again."""
    marks, go_on = tmp_path / "marks", tmp_path / "go on"
    url = make_url(house.url)
    with FaultProxy((url.host or "", url.port or 0)) as proxy:
        proxied = url.set(port=proxy.port).render_as_string(hide_password=False)
        spans = {**DEFAULTS, "TASKS_APP_GIVE_BACK_AFTER": "60s"}
        house.beat(**spans)
        worker = house.worker(children=1, TASKS_APP_DATABASE_URL=proxied, **spans)
        house.over(house.create("marks", 500, {"path": str(tmp_path / "before")}))
        ids = house.create("marks", 600, {"path": str(marks), "go_on": str(go_on)})
        until(lambda: marks.exists() and house.sql(RUNNING) >= 100, 20)
        asked = be_away(proxy, silent, go_on)
        finished = len(marks.read_text().split())
        took = time.monotonic()
        states = house.over(ids, 60)
        took = time.monotonic() - took
        assert worker.alive

    ran = marks.read_text().split()
    figures(f"{finished} outcomes, database away for {OUTAGE_S} s", [took], "none lost")
    print(f"asked {asked / OUTAGE_S:.1f} times a second meanwhile")
    assert finished >= 100
    assert states == {"SUCCEEDED": 600}
    assert len(ran) == len(set(ran)) == 600
    assert house.sql("SELECT max(attempt) FROM task_completed") == 1
    assert asked / OUTAGE_S <= 2


def be_away(proxy: FaultProxy, silent: bool, go_on: Path) -> int:
    """Be away while the handlers go on; return how often somebody asked."""
    if silent:
        proxy.black_out()
    else:
        proxy.refusing = True
        proxy.cut()
    began, before = time.monotonic(), proxy.refused
    go_on.touch()
    until(lambda: time.monotonic() - began > OUTAGE_S, OUTAGE_S + 1)
    proxy.refusing = False
    proxy.let_through()
    return proxy.refused - before
