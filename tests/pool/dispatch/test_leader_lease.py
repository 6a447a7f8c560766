"""Leases of duties: one holder at a time, the higher rank at once, and who meets whom."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import SCAN, Lease, Rank
from tests.pool.interleave import blocked

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TTL = timedelta(seconds=5)
BEAT, OTHER, STANDBY = uuid4(), uuid4(), uuid4()
RANKS = {BEAT: Rank.BEAT, OTHER: Rank.BEAT, STANDBY: Rank.STANDBY}


def s(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def hold(connection: Connection, who: UUID, now: datetime | None = None) -> Lease | None:
    return leader_lease.acquire_lease(
        connection, SCAN, holder=str(who)[:8], token=who, rank=RANKS[who], ttl=TTL, now=now
    )


def holder(connection: Connection) -> UUID:
    found = leader_lease.read_lease(connection, SCAN)
    assert found is not None
    return found.token


def since(connection: Connection) -> datetime:
    return connection.execute(text("SELECT held_since FROM task_lease")).scalar_one()


def test_the_first_takes_it_and_the_next_waits_for_its_end(connection: Connection) -> None:
    assert leader_lease.read_lease(connection, SCAN, now=NOON) is None
    first = hold(connection, BEAT, NOON)
    assert first is not None
    assert (first.free, first.idle, first.notes) == (False, None, {})
    assert hold(connection, OTHER, s(4.9)) is None
    assert holder(connection) == BEAT
    assert hold(connection, OTHER, s(5)) is not None
    assert hold(connection, BEAT, s(6)) is None


@pytest.mark.usefixtures("maintenance_due")
def test_a_renewal_makes_it_longer_and_is_not_a_new_beginning(connection: Connection) -> None:
    hold(connection, BEAT, NOON)
    hold(connection, BEAT, s(3))
    assert hold(connection, OTHER, s(7.9)) is None
    hold(connection, BEAT, s(60))
    assert since(connection) == NOON
    hold(connection, OTHER, s(65))
    assert since(connection) == s(65)


def test_beat_takes_over_from_a_standby_at_once_never_reversed(connection: Connection) -> None:
    hold(connection, STANDBY, NOON)
    assert hold(connection, BEAT, s(1)) is not None
    assert hold(connection, STANDBY, s(2)) is None
    assert hold(connection, STANDBY, s(6)) is not None


def test_what_is_open_is_seen_before_it_is_asked_for(connection: Connection) -> None:
    hold(connection, BEAT, NOON)

    def open_to(who: UUID, now: datetime) -> bool:
        found = leader_lease.read_lease(connection, SCAN, now=now)
        assert found is not None
        return found.open_to(who, RANKS[who])

    assert [open_to(who, s(4)) for who in (BEAT, OTHER, STANDBY)] == [True, False, False]
    assert [open_to(who, s(5)) for who in (BEAT, OTHER, STANDBY)] == [True, True, True]
    hold(connection, STANDBY, s(5))
    assert [open_to(who, s(6)) for who in (BEAT, OTHER)] == [True, True]


def test_only_the_holder_gives_it_back_and_it_is_free_at_once(connection: Connection) -> None:
    hold(connection, BEAT, NOON)
    leader_lease.release_lease(connection, SCAN, OTHER)
    assert hold(connection, OTHER, s(1)) is None
    leader_lease.release_lease(connection, SCAN, BEAT)
    assert hold(connection, STANDBY, s(1)) is not None


def test_only_the_holder_renews_it_with_what_it_writes_down(connection: Connection) -> None:
    hold(connection, BEAT, NOON)
    answers = [
        leader_lease.record_duty(connection, SCAN, BEAT, TTL, now=s(4)),
        leader_lease.record_duty(connection, SCAN, OTHER, TTL, now=s(8)),
    ]
    left = leader_lease.read_lease(connection, SCAN, now=s(8)).left
    late = leader_lease.record_duty(connection, SCAN, BEAT, TTL, now=s(9))
    assert (answers, left) == ([True, False], timedelta(seconds=1))
    assert not late
    assert leader_lease.read_lease(connection, SCAN, now=s(9)).free


def test_when_it_was_done_and_what_was_noted_outlives_the_holder(connection: Connection) -> None:
    hold(connection, BEAT, NOON)
    leader_lease.record_duty(connection, SCAN, OTHER, TTL, now=s(1))
    assert leader_lease.add_notes(connection, SCAN, BEAT, {"daily": "then", "hourly": "early"})
    assert leader_lease.add_notes(connection, SCAN, BEAT, {"hourly": "late"})
    taken = hold(connection, OTHER, s(8))
    assert taken is not None
    assert taken.idle == timedelta(seconds=7)
    assert taken.notes == {"daily": "then", "hourly": "late"}
    assert not leader_lease.add_notes(connection, SCAN, BEAT, {"daily": "again"})


def asks(who: UUID) -> Callable[[Connection], Any]:
    return lambda connection: hold(connection, who)


def gives_back(connection: Connection) -> None:
    leader_lease.release_lease(connection, SCAN, BEAT)


def notes(connection: Connection) -> bool:
    return leader_lease.add_notes(connection, SCAN, BEAT, {"daily": "x"})


MEETINGS: dict[str, tuple] = {
    "of two one takes what nobody had": (None, asks(BEAT), "commit", asks(OTHER), BEAT),
    "the first rolls back": (None, asks(BEAT), "rollback", asks(OTHER), OTHER),
    "of two one takes what is over": ((STANDBY, NOON), asks(BEAT), "commit", asks(OTHER), BEAT),
    # The renewal is late by the clock of nobody but the database, and is not yet committed.
    "it is renewed when it is over": ((BEAT, NOON), asks(BEAT), "commit", asks(OTHER), BEAT),
    "it is given back": ((BEAT, None), gives_back, "commit", asks(OTHER), OTHER),
    "beat takes over from a standby": ((STANDBY, None), asks(BEAT), "commit", asks(STANDBY), BEAT),
    # So it does not fire what the new leader fires.
    "a leader that was asleep notes something": ((BEAT, NOON), asks(OTHER), "commit", notes, OTHER),
}
"""Who had it since when, what the first does and how it ends, what the second does, who has it."""


@pytest.mark.parametrize("case", MEETINGS.values(), ids=MEETINGS)
def test_the_second_waits_for_the_end_of_the_first(
    engine: Engine, pair: tuple[Connection, Connection], case: tuple
) -> None:
    before, first, end, second, leads = case
    a, b = pair
    if before:
        hold(a, *before)
        a.commit()
    first(a)
    waiting = blocked(engine, b, a, second)
    getattr(a, end)()
    assert bool(waiting.result()) is (leads == OTHER and second is not notes)
    b.commit()
    assert holder(b) == leads


def test_work_leaves_a_mark_that_leads_nobody(connection: Connection) -> None:
    """Who scans by a lease takes it at once, and no mark stands in its place meanwhile."""
    leader_lease.record_duty_without_lease(connection, SCAN, "work a", now=NOON)
    marked = leader_lease.read_lease(connection, SCAN, now=s(1))
    taken = hold(connection, STANDBY, s(2))
    leader_lease.record_duty_without_lease(connection, SCAN, "work a", now=s(3))
    led = leader_lease.read_lease(connection, SCAN, now=s(3))
    leader_lease.record_duty_without_lease(connection, SCAN, "work b", now=s(8))
    over = leader_lease.read_lease(connection, SCAN, now=s(8))

    assert marked
    assert (marked.holder, marked.free, marked.idle) == ("work a", True, s(1) - NOON)
    assert taken is not None
    assert led
    assert (led.token, led.rank, led.free) == (STANDBY, Rank.STANDBY, False)
    assert over
    assert (over.holder, over.rank, over.idle) == ("work b", Rank.WORK, timedelta(0))
