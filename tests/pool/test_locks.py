"""Groups of locks: who gets along with whom, who goes first, and when a lock ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import uuid4

import pytest
from psycopg import Connection as Psycopg
from sqlalchemy import Connection, Engine, create_engine, text

from tasks_app.domain.locks import GrantedLocks, LockRequest, Obstacle, lock_parts
from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.locks.acquire import (
    WAIT_LEASE,
    acquire,
    insert_resources,
    listen_for_wake_ups,
    notify_next,
    read_wake_ups,
    would_be_denied,
)
from tasks_app.pool.locks.holders import (
    FORGET_AFTER,
    GONE_FOR,
    guard,
    leave_queue,
    prune_locks,
    release,
    renew,
)
from tasks_app.pool.runs.settle import settle_one
from tests.factory import claimed_task, ending
from tests.pool.interleave import two

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
LEASE = timedelta(seconds=30)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def ask_of(who: str = "w", run: Fence | None = None, **group: Any) -> LockRequest:
    return LockRequest(uuid4(), lock_parts(**group), who, LEASE, run)


def asked(c: Connection, ask: LockRequest, seconds: float = 0, *, waits: bool = False) -> Any:
    insert_resources(c, ask)
    return acquire(c, ask, waits=waits, now=at(seconds))


def granted(c: Connection, who: str = "w", seconds: float = 0, **group: Any) -> LockRequest:
    ask = ask_of(who, **group)
    assert isinstance(asked(c, ask, seconds), GrantedLocks)
    return ask


def denied(c: Connection, seconds: float = 0, **group: Any) -> tuple[Obstacle, ...]:
    answer = asked(c, ask_of("late", **group), seconds)
    assert not isinstance(answer, GrantedLocks)
    return answer


def waits_of(c: Connection) -> list[tuple]:
    rows = c.execute(
        text(
            "SELECT resource, outcome, who, blocked_by, ended_at - asked_at, times"
            " FROM task_lock_wait ORDER BY ended_at, resource"
        )
    )
    return [tuple(row) for row in rows]


MODES = ({"exclusive": "r"}, {"shared": "r"}, {"counted": {"r": 2}})


@pytest.mark.parametrize(("one", "other"), list(product(MODES, MODES)))
def test_two_fit_if_both_share_or_both_count(
    connection: Connection, one: dict, other: dict
) -> None:
    granted(connection, **one)
    answer = asked(connection, ask_of(**other))
    assert isinstance(answer, GrantedLocks) == (one == other and "exclusive" not in one)


def test_so_many_count_and_no_more(connection: Connection) -> None:
    for who in ("a", "b"):
        granted(connection, who, counted={"r": 2})
    (obstacle,) = denied(connection, counted={"r": 2})
    assert str(obstacle) == "r is held by a, counted"


def test_an_operators_number_wins(connection: Connection) -> None:
    granted(connection, counted={"r": 2})
    connection.execute(text("UPDATE task_lock SET most = 1"))
    assert denied(connection, counted={"r": 2})


def test_all_of_a_group_or_nothing(connection: Connection) -> None:
    granted(connection, "one", exclusive="b")
    obstacles = denied(connection, exclusive=["a", "b", "c"])
    assert [obstacle.resource for obstacle in obstacles] == ["b"]
    granted(connection, exclusive=["a", "c"])


def test_a_new_resource_has_to_be_opened_up_first(connection: Connection) -> None:
    ask = ask_of(exclusive=["a", "b"])
    granted(connection, exclusive="a")
    assert acquire(connection, ask) is None


def test_fences_rise_with_every_grant(connection: Connection) -> None:
    fences = []
    for _ in range(3):
        ask = ask_of(exclusive="r")
        answer = asked(connection, ask)
        fences.append(answer.fence)
        release(connection, ask.token)
    assert fences == sorted(set(fences))


def test_to_ask_again_under_one_token_is_harmless(connection: Connection) -> None:
    """A COMMIT that was not answered."""
    ask = ask_of(exclusive="r")
    first = asked(connection, ask)
    assert asked(connection, ask, 3) == first


def test_a_released_group_is_free_and_released_once(connection: Connection) -> None:
    ask = granted(connection, exclusive=["a", "b"])
    assert release(connection, ask.token) == {ask.token}
    assert release(connection, ask.token) == set()
    granted(connection, exclusive=["a", "b"])


class TestLeases:
    def test_a_lock_is_taken_over_only_when_its_lease_is_over(self, connection: Connection) -> None:
        granted(connection, "one", exclusive=["a", "b"])
        assert denied(connection, 29, exclusive="b")
        granted(connection, "two", 30, exclusive="b")
        assert waits_of(connection)[:2] == [
            (name, "taken_over", "one", "two", LEASE, 1) for name in "ab"
        ]

    def test_only_what_is_over_is_taken(self, connection: Connection) -> None:
        granted(connection, "dead", shared="r")
        alive = granted(connection, "alive", 10, shared="r")
        (obstacle,) = denied(connection, 35, exclusive="r")
        assert obstacle.who == "alive"
        assert guard(connection, alive.token)

    def test_whoever_lost_it_is_told(self, connection: Connection) -> None:
        ask = granted(connection, exclusive="r")
        other = granted(connection, seconds=31, exclusive="r")
        assert renew(connection, [ask.token, other.token], LEASE, now=at(32)) == {ask.token}
        assert not guard(connection, ask.token)
        assert guard(connection, other.token)
        assert release(connection, ask.token, other.token) == {other.token}

    def test_a_renewed_lock_is_kept(self, connection: Connection) -> None:
        ask = granted(connection, exclusive="r")
        assert not renew(connection, [ask.token], LEASE, now=at(20))
        assert denied(connection, 49, exclusive="r")

    def test_a_lease_that_is_over_ends_when_somebody_comes(self, connection: Connection) -> None:
        ask = granted(connection, exclusive="r")
        assert guard(connection, ask.token)
        assert not renew(connection, [ask.token], LEASE, now=at(100))
        assert denied(connection, 110, exclusive="r")


class TestTheLine:
    def test_who_comes_first_goes_first(self, connection: Connection) -> None:
        held = granted(connection, shared="r")
        writer, reader = ask_of("writer", exclusive="r"), ask_of("reader", shared="r")
        assert not isinstance(asked(connection, writer, 1, waits=True), GrantedLocks)
        (obstacle,) = asked(connection, reader, 2, waits=True)
        release(connection, held.token)
        assert str(obstacle) == "r is waited for by writer, exclusive"
        assert would_be_denied(connection, reader, now=at(3))
        assert isinstance(asked(connection, writer, 3, waits=True), GrantedLocks)
        release(connection, writer.token)
        assert isinstance(asked(connection, reader, 4, waits=True), GrantedLocks)

    def test_readers_that_come_and_go_let_a_waiting_writer_in(self, connection: Connection) -> None:
        granted(connection, shared="r")
        asked(connection, ask_of("writer", exclusive="r"), waits=True)
        assert denied(connection, shared="r")

    def test_who_gets_along_with_those_who_wait_passes_them(self, connection: Connection) -> None:
        granted(connection, exclusive="a")
        asked(connection, ask_of("first", exclusive="a", shared="b"), waits=True)
        granted(connection, shared="b")

    def test_those_who_count_do_not_pass_one_another(self, connection: Connection) -> None:
        granted(connection, exclusive="a")
        granted(connection, counted={"b": 2})
        asked(connection, ask_of("first", exclusive="a", counted={"b": 2}), waits=True)
        assert denied(connection, counted={"b": 2})

    def test_who_does_not_renew_his_place_is_passed_by(self, connection: Connection) -> None:
        held = granted(connection, exclusive="r")
        first, second = ask_of("first", exclusive="r"), ask_of("second", exclusive="r")
        asked(connection, first, 0, waits=True)
        asked(connection, second, 4, waits=True)
        release(connection, held.token)
        assert would_be_denied(connection, second, now=at(4))
        assert not would_be_denied(connection, second, now=at(0) + WAIT_LEASE)
        renew(connection, [first.token], WAIT_LEASE, now=at(4))
        assert would_be_denied(connection, second, now=at(8))

    def test_who_comes_back_after_all_goes_on_in_his_place(self, connection: Connection) -> None:
        held = granted(connection, exclusive="r")
        first, second = ask_of("first", exclusive="r"), ask_of("second", exclusive="r")
        asked(connection, first, 0, waits=True)
        asked(connection, second, 6, waits=True)
        release(connection, held.token)
        assert isinstance(asked(connection, second, 7, waits=True), GrantedLocks)
        assert not isinstance(asked(connection, first, 8, waits=True), GrantedLocks)
        release(connection, second.token)
        assert isinstance(asked(connection, first, 9, waits=True), GrantedLocks)

    def test_a_wait_is_noted_where_somebody_was_in_the_way(self, connection: Connection) -> None:
        held = granted(connection, "holder", exclusive="b")
        ask = ask_of("one", exclusive=["a", "b"])
        asked(connection, ask, waits=True)
        release(connection, held.token)
        asked(connection, ask, 3, waits=True)
        assert waits_of(connection) == [
            ("b", "granted", "one", "b is held by holder, exclusive", timedelta(seconds=3), 1)
        ]

    def test_so_is_a_wait_in_vain(self, connection: Connection) -> None:
        granted(connection, "holder", exclusive="b")
        ask = ask_of("one", exclusive=["a", "b"])
        asked(connection, ask, waits=True)
        leave_queue(connection, ask.token, now=at(5))
        assert [row[:3] for row in waits_of(connection)] == [("b", "timed_out", "one")]
        granted(connection, exclusive="a")


class TestRunsOfTasks:
    def test_the_locks_of_a_run_end_with_it(self, connection: Connection) -> None:
        task = claimed_task(connection)
        ask = ask_of("t", task.fence, exclusive="r")
        assert isinstance(asked(connection, ask), GrantedLocks)
        assert denied(connection, 1, exclusive="r")
        settle_one(connection, ending(task, Event.RELEASE))
        granted(connection, seconds=1, exclusive="r")
        assert not guard(connection, ask.token)

    def test_so_does_its_place_in_the_line(self, connection: Connection) -> None:
        task = claimed_task(connection)
        held = granted(connection, exclusive="r")
        asked(connection, ask_of("t", task.fence, exclusive="r"), waits=True)
        settle_one(connection, ending(task, Event.RELEASE))
        release(connection, held.token)
        granted(connection, exclusive="r")

    def test_what_a_run_holds_is_not_in_its_own_way(self, connection: Connection) -> None:
        one, other = claimed_task(connection), claimed_task(connection)
        assert isinstance(asked(connection, ask_of("t", one.fence, exclusive="r")), GrantedLocks)
        assert isinstance(asked(connection, ask_of("t", one.fence, exclusive="r")), GrantedLocks)
        assert not isinstance(
            asked(connection, ask_of("t", other.fence, exclusive="r")), GrantedLocks
        )

    def test_its_denials_are_one_line_however_often(self, connection: Connection) -> None:
        task = claimed_task(connection)
        granted(connection, "holder", exclusive="r")
        for second in (0, 5, 10):
            asked(connection, ask_of("t", task.fence, exclusive="r"), second)
        (line,) = waits_of(connection)
        assert line[1:] == (
            *("denied", "t", "r is held by holder, exclusive"),
            *(timedelta(seconds=10), 3),
        )
        assert connection.execute(text("SELECT denials FROM task_lock")).scalar() == 3


class TestPruning:
    def test_a_holder_goes_long_after_its_lease_a_run_at_once(self, connection: Connection) -> None:
        task = claimed_task(connection)
        granted(connection, "gone", exclusive="a")
        late = granted(connection, "late", 2, exclusive="b")
        asked(connection, ask_of("t", task.fence, exclusive="c"))
        settle_one(connection, ending(task, Event.RELEASE))
        assert prune_locks(connection, 100, now=NOW + LEASE + GONE_FOR) == 2
        assert guard(connection, late.token)

    def test_old_waits_and_unused_resources_go(self, connection: Connection) -> None:
        held = granted(connection, exclusive="held")
        for name in ("held", "limited", "free"):
            denied_once = ask_of("t", claimed_task(connection).fence, exclusive=name)
            asked(connection, denied_once)
        connection.execute(text("UPDATE task_lock SET most = 2 WHERE resource = 'limited'"))
        connection.execute(
            text("DELETE FROM task_lock_holder WHERE token <> :t"), {"t": held.token}
        )
        renew(connection, [held.token], FORGET_AFTER, now=at(60))

        assert prune_locks(connection, 100, now=at(1) + FORGET_AFTER) == 1

        names = connection.execute(text("SELECT resource FROM task_lock ORDER BY 1"))
        assert names.scalars().all() == ["held", "limited"]
        assert waits_of(connection) == []

    def test_a_resource_that_was_granted_meanwhile_stays(self, engine: Engine) -> None:
        with two(engine) as (one, other):
            insert_resources(one, ask_of(exclusive="r"))
            one.execute(text("UPDATE task_lock SET used_at = now() - interval '30 d'"))
            one.commit()
            assert isinstance(acquire(one, ask_of(exclusive="r")), GrantedLocks)
            assert prune_locks(other, 100) == 0
            other.commit()
            one.commit()
            assert prune_locks(other, 100) == 0


def asked_of_wake(
    c: Connection, seconds: float = 0, *, waits: bool = True, **group: Any
) -> LockRequest:
    """Ask for a group; whoever does not get it stands in line."""
    ask = LockRequest(uuid4(), lock_parts(**group), "w", LEASE)
    insert_resources(c, ask)
    answer = acquire(c, ask, waits=waits, now=NOW + timedelta(seconds=seconds))
    assert isinstance(answer, GrantedLocks) is not waits
    return ask


def held(c: Connection, **group: Any) -> LockRequest:
    return asked_of_wake(c, waits=False, **group)


def told(c: Connection, *resources: str, seconds: float = 0) -> set[Any]:
    return set(notify_next(c, resources, now=NOW + timedelta(seconds=seconds)))


def test_the_first_in_line_is_told_and_nobody_behind_it(connection: Connection) -> None:
    holder = held(connection, exclusive="a")
    first, _ = asked_of_wake(connection, exclusive="a"), asked_of_wake(connection, exclusive="a")
    release(connection, holder.token)
    assert told(connection, "a") == {first.token}


def test_readers_are_told_together_up_to_the_first_writer(connection: Connection) -> None:
    holder = held(connection, exclusive="a")
    readers = {asked_of_wake(connection, shared="a").token for _ in range(2)}
    asked_of_wake(connection, exclusive="a")
    asked_of_wake(connection, shared="a")
    release(connection, holder.token)
    assert told(connection, "a") == readers


def test_of_those_who_count_one_is_told(connection: Connection) -> None:
    holders = [held(connection, counted={"a": 2}) for _ in range(2)]
    first, _ = (
        asked_of_wake(connection, counted={"a": 2}),
        asked_of_wake(connection, counted={"a": 2}),
    )
    release(connection, holders[0].token)
    assert told(connection, "a") == {first.token}


def test_a_writer_is_not_told_while_readers_still_hold(connection: Connection) -> None:
    readers = [held(connection, shared="a") for _ in range(2)]
    writer = asked_of_wake(connection, exclusive="a")
    release(connection, readers[0].token)
    assert told(connection, "a") == set()
    release(connection, readers[1].token)
    assert told(connection, "a") == {writer.token}


def test_a_group_is_told_by_any_of_its_resources_and_others_are_not(connection: Connection) -> None:
    holders = [held(connection, exclusive=name) for name in "abc"]
    both = asked_of_wake(connection, exclusive=["a", "b"])
    asked_of_wake(connection, exclusive="c")
    release(connection, holders[1].token)
    assert told(connection, "b") == {both.token}


def test_who_does_not_look_any_more_is_passed_over(connection: Connection) -> None:
    holder = held(connection, exclusive="a")
    asked_of_wake(connection, exclusive="a")
    beyond = WAIT_LEASE.total_seconds() + 1
    second = asked_of_wake(connection, beyond - 1, exclusive="a")
    release(connection, holder.token)
    assert told(connection, "a", seconds=beyond) == {second.token}


def test_a_lease_that_is_over_is_in_nobodys_way(connection: Connection) -> None:
    held(connection, exclusive="a")
    waiter = asked_of_wake(connection, 28, exclusive="a")
    assert told(connection, "a", seconds=29) == set()
    assert told(connection, "a", seconds=31) == {waiter.token}


def test_who_listens_hears_the_token(engine: Engine, connection: Connection) -> None:
    holder = held(connection, exclusive="a")
    waiter = asked_of_wake(connection, exclusive="a")
    release(connection, holder.token)
    with engine.connect() as ear:
        ear.execution_options(isolation_level="AUTOCOMMIT")
        assert listen_for_wake_ups(ear)
        told(connection, "a")
        connection.commit()
        assert next(read_wake_ups(ear, 10)) == str(waiter.token)
        ear.exec_driver_sql("UNLISTEN *")


class Pooled(Psycopg):
    """A connection as a pooler gives it: its process id is none of the server's."""

    @property
    def info(self) -> Any:
        real = super().info

        class Info:
            backend_pid = real.backend_pid + 1

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        return Info()


def test_behind_a_pooler_nobody_listens(engine: Engine) -> None:
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    pooled = create_engine("postgresql+psycopg://", creator=lambda: Pooled.connect(url))
    with pooled.connect() as connection:
        assert not listen_for_wake_ups(connection)
        listening = connection.exec_driver_sql("SELECT pg_listening_channels()").all()
    pooled.dispose()
    assert listening == []
