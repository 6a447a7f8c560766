"""The rescuer: takes back what vanished workers held, but not at the first sight of trouble."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from dev.torture.fault_proxy import FaultProxy
from tasks_app.pool.runs.leases import renew
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.leader.rescuer import Rescuer
from tests.factory import LEASE, claimed_task
from tests.runtime.bench import Bench
from tests.waiting import until

LATER = datetime.now(UTC) + timedelta(hours=1)


def test_a_lapsed_lease_is_rescued_and_a_valid_one_is_not(bench: Bench) -> None:
    database = Database(bench.url)
    bench.at_end(database.dispose)
    with bench.engine.begin() as connection:
        task = claimed_task(connection)

    too_early = Rescuer(bench.settings(), database).run_once()
    in_time = Rescuer(bench.settings(), database).run_once(now=LATER)

    assert (too_early, in_time) == ({}, {task.task_id: "PENDING"})
    assert bench.task(task.task_id).crashes == 1


def test_the_log_says_why_a_task_was_lost(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    database = Database(bench.url)
    bench.at_end(database.dispose)
    HOOKS.subscribe(_nothing)  # as Celery's events do; else only what is over is told
    bench.at_end(lambda: HOOKS.unsubscribe(_nothing))
    with bench.engine.begin() as connection:
        claimed_task(connection)

    Rescuer(bench.settings(), database).run_once(now=LATER)

    assert "rescued 1 task of vanished workers" in caplog.text
    assert "again within 5 s: worker vanished: Its process or worker vanished" in caplog.text


def _nothing(notice: Notice) -> None:
    pass


def test_after_an_outage_the_workers_have_time_to_renew_first(bench: Bench) -> None:
    """Interleaving: the database is away beyond the lease; it returns; workers renew; rescue."""
    with bench.engine.begin() as connection:
        task = claimed_task(connection)
    url = make_url(bench.url)
    with FaultProxy((url.host or "", url.port or 0)) as proxy:
        proxied = url.set(port=proxy.port).render_as_string(hide_password=False)
        database = Database(proxied)
        bench.at_end(database.dispose)
        rescuer = Rescuer(bench.settings(lease=1.5), database)
        proxy.refusing = True
        with pytest.raises(OperationalError):
            rescuer.run_once(now=LATER)
        proxy.refusing = False

        at_once = rescuer.run_once(now=LATER)
        waited = until(lambda: rescuer.run_once(now=LATER), 5)
        database.dispose()

    assert (at_once, waited) == ({}, {task.task_id: "PENDING"})


class TestTheClock:
    """Of the database, which another machine's replaces at a failover."""

    @pytest.fixture
    def rescuer(self, bench: Bench) -> Rescuer:
        """One that waits for half a second."""
        database = Database(bench.url)
        bench.at_end(database.dispose)
        return Rescuer(bench.settings(lease=1.5), database)

    def test_workers_renew_before_any_rescue_when_it_jumps_forward(
        self, bench: Bench, rescuer: Rescuer
    ) -> None:
        """Interleaving: a pass; the clock jumps; a pass; one worker of two renews; rescue."""
        with bench.engine.begin() as connection:
            lives, vanished = claimed_task(connection), claimed_task(connection)
        rescuer.run_once()

        at_once = rescuer.run_once(now=LATER)
        with bench.engine.begin() as connection:
            renew(connection, [lives.fence], LEASE, now=LATER)
        waited = until(lambda: rescuer.run_once(now=LATER), 5)

        assert (at_once, waited) == ({}, {vanished.task_id: "PENDING"})
        assert bench.task(lives.task_id).crashes == 0

    def test_a_clock_that_goes_as_ours_does_delays_nothing(
        self, bench: Bench, rescuer: Rescuer
    ) -> None:
        with bench.engine.begin() as connection:
            task = claimed_task(connection)
        ends = bench.task(task.task_id).lease_until
        assert ends is not None

        before = rescuer.run_once(now=ends - timedelta(milliseconds=10))
        after = rescuer.run_once(now=ends + timedelta(milliseconds=10))

        assert (before, after) == ({}, {task.task_id: "PENDING"})

    def test_a_clock_that_goes_back_delays_nothing(self, bench: Bench, rescuer: Rescuer) -> None:
        rescuer.run_once(now=LATER + timedelta(hours=1))
        with bench.engine.begin() as connection:
            task = claimed_task(connection)

        assert rescuer.run_once(now=LATER) == {task.task_id: "PENDING"}
