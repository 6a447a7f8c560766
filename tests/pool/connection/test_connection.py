"""What a connection keeps between statements, sends and reads, and whose clock decides."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.tasks.records import text_array
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection import psycopg_connection
from tasks_app.pool.connection.execute import Statement
from tasks_app.pool.runs.claim import claim, claim_next
from tasks_app.pool.runs.leases import release, renew, rescue_expired
from tasks_app.pool.runs.settle import settle_group, settle_one
from tests.clock import until
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


@pytest.fixture
def raw(engine: Engine) -> Iterator[psycopg_connection.Raw]:
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as raw:
        yield raw


def series(number: int, wait_s: float = 0) -> Statement:
    sql = "SELECT g, pg_sleep(%(wait)s) FROM generate_series(1, %(number)s) g"
    return Statement(sql, {"number": number, "wait": wait_s})


def kept(raw: psycopg_connection.Raw) -> list[psycopg.Cursor]:
    return [value for value in vars(raw).values() if isinstance(value, psycopg.Cursor)]


def test_one_cursor_serves_small_statements_with_tuples(raw: psycopg_connection.Raw) -> None:
    psycopg_connection.do(raw, series(1))
    (first,) = kept(raw)
    assert psycopg_connection.do(raw, series(2)) == [(1, ""), (2, "")]
    assert kept(raw) == [first]


def test_a_large_answer_is_not_held(raw: psycopg_connection.Raw) -> None:
    psycopg_connection.do(raw, series(1))
    psycopg_connection.do(raw, series(psycopg_connection.FEW + 1))
    assert kept(raw) == []


def test_a_cursor_that_failed_is_not_used_again(raw: psycopg_connection.Raw) -> None:
    psycopg_connection.do(raw, series(1))
    with pytest.raises(psycopg.errors.DivisionByZero):
        psycopg_connection.do(raw, Statement("SELECT 1 / %(n)s", {"n": 0}))
    assert kept(raw) == []
    assert psycopg_connection.do(raw, series(1)) == [(1, "")]


def test_two_threads_get_their_own_answers(raw: psycopg_connection.Raw) -> None:
    psycopg_connection.do(raw, series(1))
    slow: list[object] = []
    thread = threading.Thread(
        target=lambda: slow.extend(psycopg_connection.do(raw, series(3, 0.05)))
    )
    thread.start()
    until(lambda: not kept(raw))  # the thread has it
    assert psycopg_connection.do(raw, series(2)) == [(1, ""), (2, "")]
    thread.join(10)
    assert slow == [(1, ""), (2, ""), (3, "")]


TEXTS = (
    [],
    [""],
    ["", "a"],
    ['say "so"', "a\\b", "\\", '"', 'a\\"b', "a,b", "{c}", "NULL", " d ", "line\nend", "ü"],
)


@pytest.mark.parametrize("texts", TEXTS)
def test_any_characters_survive(connection: Connection, texts: list[str]) -> None:
    asked = {"written": text_array(texts)}
    read = connection.execute(text("SELECT CAST(:written AS text[])"), asked).scalar_one()
    assert read == texts


def test_texts_of_objects_are_meant() -> None:
    assert text_array([1, "a"]) == '{"1","a"}'
