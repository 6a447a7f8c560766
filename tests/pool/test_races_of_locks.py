"""Two transactions want one lock: step by step, who waits for whom, and who has it in the end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.locks import GrantedLocks, LockRequest, lock_parts
from tasks_app.pool.locks.acquire import acquire, acquire_at_once, insert_resources
from tasks_app.pool.locks.holders import guard, release, release_now, renew
from tests.pool.interleave import blocked, two

LEASE = timedelta(seconds=30)


@pytest.fixture
def sides(engine: Engine) -> Iterator[tuple[Connection, Connection]]:
    with engine.begin() as connection:
        insert_resources(connection, ask_of(exclusive=["a", "b"]))
    with two(engine) as both:
        yield both


def ask_of(lease: timedelta = LEASE, **group: Any) -> LockRequest:
    return LockRequest(uuid4(), lock_parts(**group), "w", lease)


def held(connection: Connection, *, over: bool = False) -> LockRequest:
    """A committed lock on a; ``over``: beyond its lease."""
    ask = ask_of(timedelta(0) if over else LEASE, exclusive="a")
    assert isinstance(acquire(connection, ask), GrantedLocks)
    connection.commit()
    return ask


def test_the_second_waits_for_the_first_and_sees_what_it_took(engine: Engine, sides: tuple) -> None:
    one, other = sides
    assert isinstance(acquire(one, ask_of(exclusive=["a", "b"])), GrantedLocks)
    second = blocked(engine, other, one, lambda c: acquire(c, ask_of(exclusive=["b"])))
    one.commit()
    assert not isinstance(second.result(), GrantedLocks)


@pytest.mark.parametrize("first", ["takes", "stands in line"])
def test_who_decides_at_once_takes_nothing_decided(
    engine: Engine, sides: tuple, first: str
) -> None:
    """One statement began before the other one's commit: it sees neither its grant nor its place.

    Who stands in line for a group does so for b, too, which is free.
    """
    one, other = sides
    if first == "stands in line":
        held(one)
    acquire(one, ask_of(exclusive=["a", "b"]), waits=True)
    ask = ask_of(exclusive="b")
    second = blocked(engine, other, one, lambda c: acquire_at_once(c, ask))
    one.commit()
    assert second.result() is None
    other.commit()
    assert acquire_at_once(other, ask) not in (None, ())
    assert not isinstance(acquire_at_once(other, ask), GrantedLocks)


def test_what_is_free_is_taken_at_once_and_what_is_over_is_not(sides: tuple) -> None:
    one, other = sides
    assert isinstance(acquire_at_once(one, ask_of(timedelta(0), exclusive="a")), GrantedLocks)
    one.commit()
    assert acquire_at_once(other, ask_of(exclusive="a")) is None
    assert isinstance(acquire(other, ask_of(exclusive="a")), GrantedLocks)


def test_only_a_grant_waits_for_the_disk(sides: tuple) -> None:
    """What else is lost in a crash of the server, nobody relies on."""
    one, other = sides
    flushed = text("SELECT current_setting('synchronous_commit')")
    ask = ask_of(exclusive="a")

    assert isinstance(acquire_at_once(one, ask), GrantedLocks)
    assert one.execute(flushed).scalar() == "on"
    one.commit()
    acquire_at_once(other, ask_of(exclusive="a"), waits=True)
    assert other.execute(flushed).scalar() == "off"
    other.commit()
    assert other.execute(flushed).scalar() == "on"
    release(one, ask.token)  # beside what the caller writes
    assert one.execute(flushed).scalar() == "on"
    one.rollback()
    release_now(one, ask.token)
    assert one.execute(flushed).scalar() == "off"


def test_groups_that_overlap_crosswise_are_locked_in_one_order(
    engine: Engine, sides: tuple
) -> None:
    """The one that comes second holds nothing while it waits: no deadlock."""
    one, other = sides
    acquire(one, ask_of(exclusive=["b", "a"]))

    second = blocked(
        engine, other, one, lambda c: acquire(c, ask_of(shared=["b"], exclusive=["a"]))
    )
    with engine.connect() as third:
        free = text("SELECT 1 FROM task_lock WHERE resource = 'b' FOR UPDATE NOWAIT")
        one.rollback()
        assert isinstance(second.result(), GrantedLocks)
        other.rollback()
        assert third.execute(free).scalar() == 1


def test_a_renewal_is_open_then_nobody_takes_the_lock_over(sides: tuple) -> None:
    one, other = sides
    ask = held(one, over=True)
    renew(one, [ask.token], LEASE)
    assert not isinstance(acquire(other, ask_of(exclusive="a")), GrantedLocks)
    other.commit()
    one.commit()
    assert not isinstance(acquire(other, ask_of(exclusive="a")), GrantedLocks)


def test_a_take_over_is_open_then_a_renewal_passes_and_the_next_one_is_told(sides: tuple) -> None:
    one, other = sides
    ask = held(one, over=True)
    assert isinstance(acquire(other, ask_of(exclusive="a")), GrantedLocks)
    renew(one, [ask.token], LEASE)
    one.commit()
    other.commit()
    assert renew(one, [ask.token], LEASE) == {ask.token}


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_guard_waits_for_a_take_over_and_its_end(engine: Engine, sides: tuple, end: str) -> None:
    one, other = sides
    ask = held(one, over=True)
    acquire(other, ask_of(exclusive="a"))
    check = blocked(engine, one, other, lambda c: guard(c, ask.token))
    getattr(other, end)()
    assert check.result() is (end == "rollback")


def test_an_open_guard_stops_take_overs_not_renewals(engine: Engine, sides: tuple) -> None:
    one, other = sides
    ask = held(one, over=True)
    assert guard(one, ask.token)

    assert not isinstance(acquire(other, ask_of(exclusive="a")), GrantedLocks)
    other.commit()
    with engine.begin() as housekeeper:
        housekeeper.execute(text("SET LOCAL lock_timeout = '1s'"))
        assert not renew(housekeeper, [ask.token], LEASE)
        assert housekeeper.execute(
            text("SELECT lease_until > now() FROM task_lock_holder")
        ).scalar()
        renew(housekeeper, [ask.token], timedelta(0))
    one.commit()
    assert isinstance(acquire(other, ask_of(exclusive="a")), GrantedLocks)


def test_a_release_with_a_commit_is_seen_with_it_even_beyond_the_lease(sides: tuple) -> None:
    one, other = sides
    ask = held(one, over=True)
    release(one, ask.token)
    assert not isinstance(acquire(other, ask_of(exclusive="a")), GrantedLocks)
    other.commit()
    assert not renew(other, [ask.token], LEASE)
    other.commit()
    one.commit()
    assert isinstance(acquire(other, ask_of(exclusive="a")), GrantedLocks)


def test_a_release_that_rolls_back_leaves_the_lock(sides: tuple) -> None:
    one, other = sides
    ask = held(one)
    release(one, ask.token)
    one.rollback()
    assert not isinstance(acquire(other, ask_of(exclusive="a")), GrantedLocks)
    assert guard(one, ask.token)


def test_two_open_up_the_same_resources_in_any_order(engine: Engine, sides: tuple) -> None:
    one, other = sides
    insert_resources(one, ask_of(exclusive=["new", "a", "newer"]))
    second = blocked(
        engine, other, one, lambda c: insert_resources(c, ask_of(shared=["newer", "new"]))
    )
    one.commit()
    second.result()
    assert isinstance(acquire(other, ask_of(exclusive=["new", "newer"])), GrantedLocks)
