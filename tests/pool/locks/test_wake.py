"""Who is told when resources may be free: the first in line, and who gets along with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from psycopg import Connection as Psycopg
from sqlalchemy import Connection, Engine, create_engine

from tasks_app.domain.locks import GrantedLocks, LockRequest, lock_parts
from tasks_app.pool.locks.acquire import (
    WAIT_LEASE,
    acquire,
    insert_resources,
    listen_for_wake_ups,
    notify_next,
    read_wake_ups,
)
from tasks_app.pool.locks.holders import release

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
LEASE = timedelta(seconds=30)


def asked(c: Connection, seconds: float = 0, *, waits: bool = True, **group: Any) -> LockRequest:
    """Ask for a group; whoever does not get it stands in line."""
    ask = LockRequest(uuid4(), lock_parts(**group), "w", LEASE)
    insert_resources(c, ask)
    answer = acquire(c, ask, waits=waits, now=NOW + timedelta(seconds=seconds))
    assert isinstance(answer, GrantedLocks) is not waits
    return ask


def held(c: Connection, **group: Any) -> LockRequest:
    return asked(c, waits=False, **group)


def told(c: Connection, *resources: str, seconds: float = 0) -> set[Any]:
    return set(notify_next(c, resources, now=NOW + timedelta(seconds=seconds)))


def test_the_first_in_line_is_told_and_nobody_behind_it(connection: Connection) -> None:
    holder = held(connection, exclusive="a")
    first, _ = asked(connection, exclusive="a"), asked(connection, exclusive="a")
    release(connection, holder.token)

    assert told(connection, "a") == {first.token}


def test_readers_are_told_together_up_to_the_first_writer(connection: Connection) -> None:
    holder = held(connection, exclusive="a")
    readers = {asked(connection, shared="a").token for _ in range(2)}
    asked(connection, exclusive="a")
    asked(connection, shared="a")
    release(connection, holder.token)

    assert told(connection, "a") == readers


def test_of_those_who_count_one_is_told(connection: Connection) -> None:
    holders = [held(connection, counted={"a": 2}) for _ in range(2)]
    first, _ = asked(connection, counted={"a": 2}), asked(connection, counted={"a": 2})
    release(connection, holders[0].token)

    assert told(connection, "a") == {first.token}


def test_a_writer_is_not_told_while_readers_still_hold(connection: Connection) -> None:
    readers = [held(connection, shared="a") for _ in range(2)]
    writer = asked(connection, exclusive="a")

    release(connection, readers[0].token)
    assert told(connection, "a") == set()
    release(connection, readers[1].token)
    assert told(connection, "a") == {writer.token}


def test_a_group_is_told_by_any_of_its_resources_and_others_are_not(connection: Connection) -> None:
    holders = [held(connection, exclusive=name) for name in "abc"]
    both = asked(connection, exclusive=["a", "b"])
    asked(connection, exclusive="c")
    release(connection, holders[1].token)

    assert told(connection, "b") == {both.token}


def test_who_does_not_look_any_more_is_passed_over(connection: Connection) -> None:
    holder = held(connection, exclusive="a")
    asked(connection, exclusive="a")
    beyond = WAIT_LEASE.total_seconds() + 1
    second = asked(connection, beyond - 1, exclusive="a")
    release(connection, holder.token)

    assert told(connection, "a", seconds=beyond) == {second.token}


def test_a_lease_that_is_over_is_in_nobodys_way(connection: Connection) -> None:
    held(connection, exclusive="a")
    waiter = asked(connection, 28, exclusive="a")

    assert told(connection, "a", seconds=29) == set()
    assert told(connection, "a", seconds=31) == {waiter.token}


def test_who_listens_hears_the_token(engine: Engine, connection: Connection) -> None:
    holder = held(connection, exclusive="a")
    waiter = asked(connection, exclusive="a")
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
