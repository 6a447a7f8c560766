"""The rescuer: takes back what vanished workers held, but not at the first sight of trouble."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy.exc import OperationalError

from tasks_app.domain.creation import NewTask
from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode
from tasks_app.domain.queues import parse_window
from tasks_app.pool.dispatch.leader_lease import Rank
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.flow_control.fair_queues import set_fair
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.runs.leases import renew
from tasks_app.runtime.api.groups import create_group
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.leader.leader import Leader
from tasks_app.runtime.leader.rescuer import SWEEP_ROUNDS, SWEPT_AT_ONCE, Rescuer, Sweeper
from tests.clock import until
from tests.factory import LEASE, claimed_task, claimer, some
from tests.runtime.bench import Bench
from tests.runtime.memory import Memory
from tests.tiers import few

LATER = datetime.now(UTC) + timedelta(hours=1)


def test_a_lapsed_lease_is_rescued_and_a_valid_one_is_not(bench: Bench) -> None:
    database = bench.database()
    task = bench.do(claimed_task)
    too_early = Rescuer(bench.settings(), database).run_once()
    in_time = Rescuer(bench.settings(), database).run_once(now=LATER)
    assert (too_early, in_time) == ({}, {task.task_id: "PENDING"})
    assert bench.task(task.task_id).crashes == 1


def test_the_log_says_why_a_task_was_lost(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    database = bench.database()
    HOOKS.subscribe(_nothing)  # as Celery's events do; else only what is over is told
    bench.at_end(lambda: HOOKS.unsubscribe(_nothing))
    bench.do(claimed_task)
    Rescuer(bench.settings(), database).run_once(now=LATER)
    assert "rescued 1 task of vanished workers" in caplog.text
    assert "again within 5 s: worker vanished: Its process or worker vanished" in caplog.text


def _nothing(notice: Notice) -> None:
    pass


def test_after_an_outage_the_workers_have_time_to_renew_first(bench: Bench) -> None:
    """Interleaving: the database is away beyond the lease; it returns; workers renew; rescue."""
    task = bench.do(claimed_task)
    with bench.proxy() as (proxy, url):
        database = Database(url)
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
        database = bench.database()
        return Rescuer(bench.settings(lease=1.5), database)

    def test_workers_renew_first_when_it_jumps_on(self, bench: Bench, rescuer: Rescuer) -> None:
        """Interleaving: a pass; the clock jumps; a pass; one worker of two renews; rescue."""
        with bench.engine.begin() as connection:
            lives, vanished = claimed_task(connection), claimed_task(connection)
        rescuer.run_once()
        at_once = rescuer.run_once(now=LATER)
        bench.do(renew, [lives.fence], LEASE, now=LATER)
        waited = until(lambda: rescuer.run_once(now=LATER), 5)
        assert (at_once, waited) == ({}, {vanished.task_id: "PENDING"})
        assert bench.task(lives.task_id).crashes == 0

    def test_a_clock_that_goes_as_ours_is_trusted(self, bench: Bench, rescuer: Rescuer) -> None:
        task = bench.do(claimed_task)
        ends = some(bench.task(task.task_id).lease_until)
        before = rescuer.run_once(now=ends - timedelta(milliseconds=10))
        after = rescuer.run_once(now=ends + timedelta(milliseconds=10))
        assert (before, after) == ({}, {task.task_id: "PENDING"})

    def test_a_clock_that_goes_back_delays_nothing(self, bench: Bench, rescuer: Rescuer) -> None:
        rescuer.run_once(now=LATER + timedelta(hours=1))
        task = bench.do(claimed_task)
        assert rescuer.run_once(now=LATER) == {task.task_id: "PENDING"}


BARS = {
    "EXPIRED": "UPDATE task_pending SET expires_at = now() WHERE biz_key = 'late'",
    "SKIPPED": "UPDATE task_pending SET enabled = false WHERE biz_key = 'late'",
}


def leader_of(bench: Bench) -> Leader:
    database = bench.database()
    return Leader(bench.settings(), database, Memory(), "test", rank=Rank.BEAT)


def behind_an_order_key(bench: Bench) -> None:
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    ids = bench.sql("SELECT array_agg(id) FROM task_pending")
    database = bench.database()
    assert len(AdmissionControl(database).claim(ids, claimer(), uuid4())) == 1
    assert bench.sql("SELECT parked FROM task_pending WHERE biz_key = 'late'") == "order k"


def in_a_paused_queue(bench: Bench) -> None:
    bench.do(pause, "default")


def behind_a_closed_window(bench: Bench) -> None:
    hour = bench.sql("SELECT extract(hour FROM now() AT TIME ZONE 'UTC')")
    hours = "22:00-23:00" if 6 < hour < 18 else "12:00-13:00"
    bench.do(queue_settings.change_queue, "default", {"windows": (parse_window(hours),)})


def behind_an_open_breaker(bench: Bench) -> None:
    with bench.engine.begin() as connection:
        circuit_breakers.synchronise(connection, {Breaker("bank"): ["t"]}, ["t"])
        circuit_breakers.override(connection, "bank", BreakerMode.OPEN)
    bench.sql(
        "UPDATE task_pending SET parked = 'held by breaker bank', parked_kind = 'breaker',"
        " parked_for = 'bank', scan_at = now() + interval '1 day'"
    )


def in_a_queue_that_nobody_serves(bench: Bench) -> None:
    """As it is created here."""


def deep_in_the_line_of_a_fair_key(bench: Bench) -> None:
    bench.do(set_fair, "default", {})
    bench.sql("UPDATE task_pending SET fair_key = 'f', priority = 9")


PLACES = (
    behind_an_order_key,
    in_a_paused_queue,
    behind_a_closed_window,
    behind_an_open_breaker,
    in_a_queue_that_nobody_serves,
    deep_in_the_line_of_a_fair_key,
)


@pytest.mark.parametrize("place", few(2, PLACES))
@pytest.mark.parametrize("state", BARS)
def test_what_must_not_run_leaves_wherever_it_stands(
    bench: Bench, place: Callable[[Bench], None], state: str
) -> None:
    """With it go its place in its group and its unique key."""
    bench.create(order_key="k", delay="1h")
    options = {"biz_key": "late", "unique_key": "u", "order_key": "k", "expires_at": LATER}
    late = NewTask("t", {}, options)
    bench.do(create_group, [late], then=NewTask("then"), on_failure=NewTask("else"))
    place(bench)
    leader = leader_of(bench)
    leader.hold()
    leader.scan()
    assert bench.sql("SELECT count(*) FROM task_pending WHERE biz_key = 'late'") == 1

    bench.sql(BARS[state])
    leader.scan()

    assert bench.sql("SELECT state FROM task_completed WHERE biz_key = 'late'") == state
    assert bench.sql("SELECT count(*) FROM task_pending WHERE name IN ('then', 'else')") == 1
    assert bench.create(unique_key="u").created


def test_a_quiet_leader_notices_that_a_task_has_expired(bench: Bench) -> None:
    in_a_paused_queue(bench)
    task_id = bench.create(expires_at=LATER, delay="1m")
    leader = leader_of(bench)
    leader.hold()
    assert not leader.scan().did_something
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now(), expires_at = now()")
    leader.scan()
    assert bench.state(task_id) == "EXPIRED"


def test_whoever_waits_behind_one_that_is_swept_is_woken(bench: Bench) -> None:
    head, behind = bench.create(order_key="k", expires_at=LATER), bench.create(order_key="k")
    database = bench.database()
    admission = AdmissionControl(database)
    assert admission.claim([behind], claimer(), uuid4()) == []
    assert bench.task(behind).parked == "order k"
    bench.sql("UPDATE task_pending SET expires_at = now() WHERE id = :id", id=head)
    assert Sweeper(database).run_once() == 1
    assert bench.task(behind).parked is None


def test_a_crowd_that_expired_goes_in_groups_and_the_rest_with_the_next_scan(bench: Bench) -> None:
    crowd = SWEPT_AT_ONCE * SWEEP_ROUNDS + 1
    bench.sql(
        "INSERT INTO task_pending (name, expires_at) SELECT 't', now() "
        "FROM generate_series(1, :crowd)",
        crowd=crowd,
    )
    database = bench.database()
    assert [Sweeper(database).run_once() for _ in range(3)] == [crowd - 1, 1, 0]
