"""What a check-up says of locks that are beyond their lease, and of long waits."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from tasks_app import Settings
from tasks_app.domain.locks import LockRequest, lock_parts
from tasks_app.monitor.checks.flow_control import held
from tasks_app.pool.locks.acquire import acquire, insert_resources

SPAN = timedelta(minutes=5)


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url)


def wanted(connection: Connection, who: str) -> None:
    ask = LockRequest(uuid4(), lock_parts("a"), who, SPAN)
    insert_resources(connection, ask)
    acquire(connection, ask, waits=True)


def said(connection: Connection, settings: Settings) -> list[str]:
    return [f"{f.level} {f.fact}" for f in held(connection, settings)]


def test_all_is_well(connection: Connection, settings: Settings) -> None:
    wanted(connection, "one")
    wanted(connection, "two")

    assert said(connection, settings) == ["ok 1 held, 1 waited for"]


def test_a_lease_that_is_over(connection: Connection, settings: Settings) -> None:
    wanted(connection, "one")
    connection.execute(text("UPDATE task_lock_holder SET lease_until = now() - interval '3 min'"))

    assert said(connection, settings) == ["warn one holds a 3 min beyond its lease"]


def test_a_long_wait(connection: Connection, settings: Settings) -> None:
    for who in ("one", "two", "three"):
        wanted(connection, who)
    connection.execute(text("UPDATE task_lock_holder SET asked_at = now() - interval '4 min'"))

    assert said(connection, settings) == ["warn two has waited for a for 4 min and 1 more"]
