"""The leader: who leads, and what a leader leaves alone."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError

from tasks_app.domain.errors import PublishError, RefusedError
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import MAINTAIN, SCAN, Rank
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.leader import Leader
from tests.clock import until
from tests.factory import claimed_task, some
from tests.runtime.bench import Bench, own_maintainer
from tests.runtime.memory import Memory
from tests.runtime.timetable import scheduled, tasks

HOLDER = "SELECT holder FROM task_lease WHERE name = 'scan'"
TOKEN = UUID(int=1)
PAST = datetime.now(UTC) - timedelta(minutes=10)


def leader(
    bench: Bench, memory: Memory, holder: str, rank: Rank = Rank.BEAT, **settings: float
) -> Leader:
    database = bench.database()
    return Leader(bench.settings(**settings), database, memory, holder, rank=rank)


def scanned(connection: Connection, idle_s: float) -> None:
    """Let the last scan be so long ago."""
    at = datetime.now(UTC) - timedelta(seconds=idle_s)
    leader_lease.record_duty(connection, SCAN, TOKEN, timedelta(0), now=at)


def served(bench: Bench) -> None:
    """A worker lives, as far as the scan can tell."""
    bench.do(heartbeats.write_heartbeat, owner="w", node="n", queues=["default"], handlers=["t"])


def test_of_two_one_leads_until_it_gives_the_lease_back(bench: Bench) -> None:
    one, other = leader(bench, Memory(), "one"), leader(bench, Memory(), "other")
    assert [one.hold(), other.hold(), one.hold()] == [True, False, True]
    one.lead.release()
    assert [other.hold(), one.hold()] == [True, False]


def test_a_leader_that_was_replaced_hears_of_it_when_it_renews(bench: Bench) -> None:
    standby = leader(bench, Memory(), "standby", Rank.STANDBY)
    standby.lead.renewals = 50
    beat = leader(bench, Memory(), "beat")
    assert standby.hold()
    assert beat.hold()
    until(lambda: not standby.hold(), 2)
    assert beat.hold()


def test_who_cannot_publish_gives_up_and_asks_the_broker_before_leading(bench: Bench) -> None:
    memory = Memory()
    one, other = leader(bench, memory, "one"), leader(bench, Memory(), "other")
    served(bench)
    bench.create()
    memory.refuse_after = 0
    assert one.hold()

    with pytest.raises(PublishError):
        one.scan()

    assert other.hold()
    with pytest.raises(PublishError):
        one.probe()
    memory.refuse_after = None
    one.probe()
    other.lead.release()
    assert one.hold()
    one.scan()
    assert memory.ids()


class TestABrokerThatRefuses:
    """What needs no broker is done, and written down as done; nobody waits for what cannot come."""

    @pytest.fixture
    def memory(self, bench: Bench) -> Memory:
        memory = Memory()
        memory.refuse_after = 0
        served(bench)
        bench.create()
        return memory

    @pytest.mark.test_all
    @pytest.mark.parametrize("error", [PublishError, RefusedError])
    def test_it_stops_neither_schedules_nor_rescue_nor_the_word_that_they_are_done(
        self, bench: Bench, memory: Memory, error: type[PublishError]
    ) -> None:
        memory.error = error
        only = leader(bench, memory, "only")
        assert only.hold()
        only.duties.rescuer.wait_until = 0.0
        scheduled(bench)
        bench.do(claimed_task, now=PAST)

        with suppress(PublishError):
            only.scan()

        seen = the_lease(bench)
        assert seen.idle is not None
        assert seen.refused_since is not None
        assert tasks(bench)
        assert bench.sql("SELECT count(*) FROM task_pending WHERE state = 'RUNNING'") == 0

    def test_a_leader_stays_when_all_are_refused(self, bench: Bench, memory: Memory) -> None:
        memory.error = RefusedError
        only = leader(bench, memory, "only")
        assert only.hold()
        for _ in range(3):
            with suppress(RefusedError):  # it would give the lease back
                only.probe()
                only.scan()
            assert only.lead.held is not None

        memory.refuse_after = None
        task_id = bench.create()
        only.scan()

        assert the_lease(bench).refused_since is None
        assert not the_lease(bench).refused_because
        assert memory.ids()[1:] == [task_id]  # behind the one that it refused

    def test_who_leads_next_asks_before_it_enters_anything(
        self, bench: Bench, memory: Memory, caplog: pytest.LogCaptureFixture
    ) -> None:
        one, other = leader(bench, memory, "one"), leader(bench, memory, "other")
        assert one.hold()
        with pytest.raises(PublishError):
            one.scan()
        first = the_lease(bench).refused_since
        bench.create()

        assert other.hold()
        with pytest.raises(PublishError):
            other.scan()

        assert memory.probes
        assert memory.messages == []
        assert the_lease(bench).refused_since == first
        assert the_lease(bench).refused_because == "away"
        assert f"nothing is published since {first:%Y-%m-%d}" in caplog.text


def the_lease(bench: Bench) -> leader_lease.Lease:
    return some(bench.do(leader_lease.read_lease, SCAN))


def test_a_scan_renews_the_leaders_lease(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = leader(bench, Memory(), "one"), leader(bench, Memory(), "other", Rank.BEAT)
    left = "SELECT extract(epoch FROM held_until - now()) FROM task_lease WHERE name = 'scan'"
    one.hold()
    bench.sql("UPDATE task_lease SET held_until = now() + interval '2s'")

    one.scan()
    kept = bench.sql(left)
    bench.sql("UPDATE task_lease SET held_until = now()")
    assert other.hold()
    one.scan()

    assert kept > 4
    assert one.lead.held is None
    assert bench.sql(HOLDER) == "other"


def test_a_scan_is_written_down_beside_the_lease(bench: Bench) -> None:
    one = leader(bench, Memory(), "one")
    one.hold()
    assert bench.sql("SELECT done_at FROM task_lease WHERE name = 'scan'") is None
    one.scan()
    assert bench.sql("SELECT now() - done_at < '5s' FROM task_lease WHERE name = 'scan'")


@pytest.mark.test_all
@pytest.mark.parametrize("idle_s", [None, 60])
def test_after_a_long_silence_workers_renew_before_rescue(bench: Bench, idle_s: int | None) -> None:
    """Interleaving: the database is away; leases end; it returns with a rescuer just started."""
    with bench.engine.begin() as connection:
        claimed_task(connection, now=PAST)
        if idle_s:
            leader_lease.acquire_lease(
                connection, SCAN, holder="x", token=TOKEN, rank=1, ttl=timedelta(0)
            )
            scanned(connection, idle_s)
    fresh = leader(bench, Memory(), "fresh", lease=1.5)
    running = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING'"

    fresh.hold()
    fresh.scan()
    assert bench.sql(running) == 1

    until(lambda: (fresh.scan(), bench.sql(running) == 0)[1], 5)


def test_after_an_outage_workers_renew_before_the_leader_rescues(bench: Bench) -> None:
    """The same process leads before and after; its lease ended meanwhile, and so did others."""
    with bench.proxy() as (proxy, url):
        database = Database(url)
        bench.at_end(database.dispose)
        only = Leader(bench.settings(), database, Memory(), "only", rank=Rank.BEAT)
        only.lead.renewals = 1e9
        assert only.hold()
        only.scan()
        only.duties.rescuer.wait_until = 0.0  # the first one ever has waited
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(OperationalError):
            only.hold()
        with bench.engine.begin() as connection:
            claimed_task(connection, now=PAST)
            scanned(connection, 60)
        proxy.refusing = False

        assert only.hold()
        only.scan()

        assert bench.sql("SELECT count(*) FROM task_pending WHERE state = 'RUNNING'") == 1
        database.dispose()


def test_a_leader_that_follows_another_closely_rescues_at_once(bench: Bench) -> None:
    bench.do(claimed_task, now=PAST)
    last = leader(bench, Memory(), "last")
    last.hold()
    last.lead.done()
    last.lead.release()
    fresh = leader(bench, Memory(), "fresh")
    fresh.hold()
    fresh.scan()
    assert bench.sql("SELECT count(*) FROM task_pending WHERE state = 'RUNNING'") == 0


def test_a_leader_that_only_looked_notices_that_the_clock_jumps(bench: Bench) -> None:
    """Interleaving: idle passes, without a rescue; a claim; the clock jumps; rescue."""
    only = leader(bench, Memory(), "only", lease=1.5)
    only.hold()
    only.duties.rescuer.wait_until = 0.0  # the first one ever has waited
    only.scan()
    task = bench.do(claimed_task)
    later = datetime.now(UTC) + timedelta(hours=1)
    at_once = only.duties.rescuer.run_once(now=later)
    waited = until(lambda: only.duties.rescuer.run_once(now=later), 5)
    assert (at_once, waited) == ({}, {task.task_id: "PENDING"})


def test_after_passes_in_between_the_whole_one_comes_in_time(bench: Bench) -> None:
    memory = Memory()
    only = leader(bench, memory, "only", scan_interval=60)
    served(bench)
    only.hold()
    for _ in range(20):
        bench.create()

    first = only.scan()
    memory.take()
    second = only.scan()

    assert (first.more, second.more) == (True, False)
    assert second.again_in(60.0) < 60.0


class TestAnIdlePool:
    """A pass over it costs one read and one write, and misses nothing."""

    @pytest.fixture
    def statements(self, bench: Bench) -> list[str]:
        return []

    @pytest.fixture
    def idle(self, bench: Bench, statements: list[str]) -> tuple[Leader, Memory]:
        memory = Memory()
        only = leader(bench, memory, "only", scan_interval=1)
        served(bench)
        only.hold()
        only.maintain()
        only.scan()
        event.listen(
            only.database.engine,
            "before_cursor_execute",
            lambda _c, _cursor, statement, *_: statements.append(statement),
        )
        only.scan()
        assert len(statements) == 2, statements
        return only, memory

    def test_what_becomes_due_goes_out(
        self, bench: Bench, idle: tuple[Leader, Memory], statements: list[str]
    ) -> None:
        only, memory = idle
        task_id = bench.create()
        scanned = only.scan()
        assert (memory.ids(), scanned.published) == ([task_id], 1)
        assert len(statements) > 4

    def test_what_is_due_soon_wakes_it_up(self, bench: Bench, idle: tuple[Leader, Memory]) -> None:
        only, _ = idle
        bench.create(delay="0.6s")
        assert only.scan().again_in(1.0) <= 0.6

    def test_a_schedule_that_is_far_away_costs_nothing_more(
        self, bench: Bench, idle: tuple[Leader, Memory], statements: list[str]
    ) -> None:
        only, _ = idle
        scheduled(bench, at=datetime.now(UTC) + timedelta(hours=1))
        statements.clear()
        assert only.scan().again_in(1.0) == 1.0
        assert len(statements) == 2

    def test_a_near_schedule_wakes_it_up(self, bench: Bench, idle: tuple[Leader, Memory]) -> None:
        only, _ = idle
        scheduled(bench, at=datetime.now(UTC) + timedelta(seconds=0.6))
        assert only.scan().again_in(1.0) <= 0.6

    def test_a_due_schedules_task_goes_out(self, bench: Bench, idle: tuple[Leader, Memory]) -> None:
        only, memory = idle
        scheduled(bench)
        assert only.scan().published == 1
        assert memory.ids() == [task.id for task in tasks(bench)]
        scheduled(bench, "meanwhile")
        assert only.scan().published == 1

    def test_an_ended_lease_is_noticed(self, bench: Bench, idle: tuple[Leader, Memory]) -> None:
        only, _ = idle
        only.duties.rescuer.wait_until = 0.0
        bench.do(claimed_task, now=PAST)
        only.scan()
        assert bench.sql("SELECT count(*) FROM task_pending WHERE state = 'RUNNING'") == 0


def test_between_whole_passes_a_backlog_is_only_filled_up(bench: Bench) -> None:
    """Each pass is a matter of milliseconds; leases and lost messages can wait for the next."""
    memory = Memory()
    only = leader(bench, memory, "only", scan_interval=60, message_size=1)
    served(bench)
    ids = [bench.create() for _ in range(8)]
    only.hold()
    only.duties.rescuer.wait_until = 0.0
    assert only.scan().more
    bench.do(claimed_task, now=PAST)
    memory.take()
    bench.sql("DELETE FROM task_pending WHERE id = ANY(:ids)", ids=ids[:6])

    only.scan()
    rescued = bench.sql("SELECT count(*) FROM task_pending WHERE state = 'RUNNING'") == 0
    filled_up = memory.take()
    only.scan()

    assert (filled_up, rescued) == (ids[6:], False)
    assert bench.sql("SELECT count(*) FROM task_pending WHERE state = 'RUNNING'") == 0


DONE = "SELECT done_at FROM task_lease WHERE name = 'maintain'"


def test_maintenance_runs_when_the_last_one_is_an_hour_ago_whoever_did_it(bench: Bench) -> None:
    own_maintainer(bench).run_if_due()
    first = bench.sql(DONE)
    own_maintainer(bench).run_if_due()
    assert bench.sql(DONE) == first
    bench.sql("UPDATE task_lease SET done_at = done_at - interval '1 hour'")
    own_maintainer(bench).run_if_due()
    assert bench.sql(DONE) > first


@pytest.mark.usefixtures("maintenance_due")
def test_while_one_maintains_another_does_not(bench: Bench) -> None:
    lasts = timedelta(minutes=1)
    bench.do(leader_lease.acquire_lease, MAINTAIN, holder="x", token=TOKEN, rank=1, ttl=lasts)
    own_maintainer(bench).run_if_due()
    assert bench.sql(DONE) is None


@pytest.mark.test_all
@pytest.mark.usefixtures("maintenance_due")
def test_maintenance_that_failed_is_not_done_and_is_tried_again_soon(bench: Bench) -> None:
    """A settle holds the table up for a moment; the partition of the last day is missing."""
    last = bench.sql("SELECT to_char(now() AT TIME ZONE 'UTC' + interval '14 days', 'YYYYMMDD')")
    bench.sql(f"DROP TABLE task_completed_p{last}")
    mine = own_maintainer(bench, again_after_s=0.1, look_every_s=0.1)
    with bench.engine.begin() as connection:
        connection.exec_driver_sql("LOCK task_completed IN ROW EXCLUSIVE MODE")
        mine.run_if_due()
        assert bench.sql(DONE) is None
    until(lambda: (mine.run_if_due(), bench.sql(DONE))[1], 10)
    assert bench.sql(f"SELECT to_regclass('task_completed_p{last}') IS NOT NULL")
