"""Only the database's clock decides: here it is a year ahead of this process's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.runs.claim import claim, claim_next
from tasks_app.pool.runs.leases import release, renew, rescue_expired
from tasks_app.pool.runs.settle import settle_group, settle_one
from tests.factory import LEASE, claimed_task, claimer, ending, pending_task, row_of

YEAR = timedelta(days=365)


@pytest.fixture
def ahead(engine: Engine) -> Iterator[Connection]:
    """A connection to which the database tells next year's time."""
    with engine.connect() as connection:
        connection.execute(text("CREATE SCHEMA ahead"))
        connection.execute(
            text("""
            CREATE FUNCTION ahead.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
            AS $$ SELECT pg_catalog.statement_timestamp() + interval '365 days' $$""")
        )
        yield connection
        connection.rollback()


def next_year(connection: Connection) -> None:
    connection.execute(text("SET LOCAL search_path = ahead, public, pg_catalog"))


def test_a_claim_goes_by_the_databases_clock(ahead: Connection) -> None:
    late = pending_task(ahead, delay="300d")
    next_year(ahead)
    claimed = claim(ahead, [late], claimer(), uuid4())
    assert [task.task_id for task in claimed] == [late]
    row = row_of(ahead, late)
    assert row.lease_until - row.due_at > timedelta(days=60)
    assert row.started_at + LEASE == row.lease_until


def test_the_next_tasks_are_those_of_the_databases_clock(ahead: Connection) -> None:
    late = pending_task(ahead, delay="300d")
    next_year(ahead)
    assert [t.task_id for t in claim_next(ahead, ["default"], 1, claimer(), uuid4())] == [late]


def test_a_rescue_goes_by_the_databases_clock(ahead: Connection) -> None:
    task = claimed_task(ahead)
    next_year(ahead)
    assert rescue_expired(ahead, lease=LEASE, max_crashes=5) == {task.task_id: State.PENDING}


def test_a_renewal_goes_by_the_databases_clock(ahead: Connection) -> None:
    task = claimed_task(ahead)
    before = row_of(ahead, task.task_id).lease_until
    next_year(ahead)
    renew(ahead, [task.fence], LEASE)
    assert row_of(ahead, task.task_id).lease_until >= before + YEAR


@pytest.mark.parametrize(
    "give_back",
    [
        lambda c, t: settle_one(c, ending(t, Event.RETRY, wait=LEASE)),
        lambda c, t: settle_group(c, [ending(t, Event.RETRY, wait=LEASE)]),
        lambda c, t: release(c, [t.fence], wait=LEASE),
    ],
    ids=["settle", "settle a group", "release"],
)
def test_what_comes_back_waits_by_the_databases_clock(ahead: Connection, give_back) -> None:
    task = claimed_task(ahead)
    before = row_of(ahead, task.task_id).lease_until
    next_year(ahead)
    give_back(ahead, task)
    assert row_of(ahead, task.task_id).due_at >= before + YEAR
