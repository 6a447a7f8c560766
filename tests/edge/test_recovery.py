"""How long until work goes on after each kind of loss. Printed; the bounds are asserted.

Instants of tasks are those of this machine's
clock, which all processes share.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from dev.torture.fault_proxy import FaultProxy
from tasks_app.embedded.servers import Postgres
from tests.broker.conftest import House
from tests.clock import until
from tests.edge.load import DONE, SPANS, Load

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.timeout(400, method="thread")]

KILLS = 10
MACHINES = 2
LEASE_S = 5
AWAY_S = 5
OUTAGE_S = 8
MANY = 1_500
"""More than a machine works off between two looks."""
LATEST = "SELECT max(result::text::float8) FROM task_completed WHERE id = ANY(:ids)"
RUNNING = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING'"
ABOARD = "SELECT array_agg(id) FROM task_pending WHERE state = 'RUNNING' AND owner LIKE :owner"
LEFT = "SELECT count(*) FROM task_pending"
FIRST = "SELECT min(finished_at) FROM task_completed WHERE finished_at > :instant"
RATE = """
SELECT count(*) / CAST(:span AS float8) FROM task_completed
WHERE finished_at > now() - make_interval(secs => :span)
"""
SPREAD_S = 3.0


def figures(what: str, seconds: Sequence[float], bound: str) -> float:
    """Print one line, and return the median: the longest may be the machine's."""
    median, most = statistics.median(seconds), max(seconds)
    print(f"\n| {what} | n {len(seconds)} | median {median:.2f} s | max {most:.2f} s | {bound} |")
    return median


def test_a_killed_child(house: House, tmp_path: Path) -> None:
    """Its task, which is to be tried again at once, and what shared a message with it."""
    house.beat(**SPANS)
    worker = house.worker(children=4, **SPANS)
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
    assert figures("killed child, its task", own, "<= 2 s") <= 2
    assert figures("killed child, the rest of its message", rest, "<= 2 s") <= 2


def test_a_killed_machine(house: House) -> None:
    """The whole group of a worker; another one lives."""
    spans = {**SPANS, "TASKS_APP_LEASE": f"{LEASE_S}s"}
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


def test_a_broker_that_was_away(house: House) -> None:
    house.beat(**SPANS)
    house.worker(children=2, **SPANS)
    with Load(house) as load:
        house.broker.kill()
        load.goes_on(AWAY_S)
        house.broker.start()
        back = house.sql("SELECT clock_timestamp()")
        first = until(lambda: house.sql(FIRST, instant=back), 120)
        load.__exit__()
        states = house.over(load.ids, 180)

    took = (first - back).total_seconds()
    figures(f"broker down for {AWAY_S} s, the first task after it", [took], "<= 5 s")
    assert states == {"SUCCEEDED": len(load.ids)}
    assert took <= 5


def test_a_database_that_is_killed_under_load(house: House, postgres: Postgres) -> None:
    """Until half as many tasks a second end as before, over three seconds."""
    house.beat(**SPANS)
    house.worker(children=2, **SPANS)
    load: list[int] = []

    def rate() -> float:
        """Keep the workers busy, and say how fast they are."""
        if house.sql(LEFT) < MANY:
            load.extend(house.create("ok", MANY))
        return float(house.sql(RATE, span=SPREAD_S))

    until(lambda: rate() and house.sql(DONE) > MANY, 60)
    before = rate()
    postgres.kill()
    house.engine.dispose()
    time.sleep(2)
    postgres.start()
    back = time.monotonic()

    until(lambda: rate() >= before / 2, 60)

    took = max(0.0, time.monotonic() - back)
    figures(f"database killed at {before:.0f} tasks/s, half of it", [took], "<= 15 s")
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
        spans = {**SPANS, "TASKS_APP_GIVE_BACK_AFTER": "60s"}
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
