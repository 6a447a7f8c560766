"""Steps on a connection of psycopg: what stays with it from one to the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import Engine

from tasks_app.pool.connection import psycopg_connection
from tasks_app.pool.connection.execute import Statement
from tests.clock import until


@pytest.fixture
def connection(engine: Engine) -> Iterator[psycopg_connection.Raw]:
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


def series(number: int, wait_s: float = 0) -> Statement:
    sql = "SELECT g, pg_sleep(%(wait)s) FROM generate_series(1, %(number)s) g"
    return Statement(sql, {"number": number, "wait": wait_s})


def kept(connection: psycopg_connection.Raw) -> list[psycopg.Cursor]:
    return [value for value in vars(connection).values() if isinstance(value, psycopg.Cursor)]


def test_one_cursor_serves_small_statements_with_tuples(connection: psycopg_connection.Raw) -> None:
    psycopg_connection.do(connection, series(1))
    (first,) = kept(connection)
    assert psycopg_connection.do(connection, series(2)) == [(1, ""), (2, "")]
    assert kept(connection) == [first]


def test_a_large_answer_is_not_held(connection: psycopg_connection.Raw) -> None:
    psycopg_connection.do(connection, series(1))
    psycopg_connection.do(connection, series(psycopg_connection.FEW + 1))
    assert kept(connection) == []


def test_a_cursor_that_failed_is_not_used_again(connection: psycopg_connection.Raw) -> None:
    psycopg_connection.do(connection, series(1))
    with pytest.raises(psycopg.errors.DivisionByZero):
        psycopg_connection.do(connection, Statement("SELECT 1 / %(n)s", {"n": 0}))
    assert kept(connection) == []
    assert psycopg_connection.do(connection, series(1)) == [(1, "")]


def test_two_threads_get_their_own_answers(connection: psycopg_connection.Raw) -> None:
    psycopg_connection.do(connection, series(1))
    slow: list[object] = []
    thread = threading.Thread(
        target=lambda: slow.extend(psycopg_connection.do(connection, series(3, 0.05)))
    )
    thread.start()
    until(lambda: not kept(connection))  # the thread has it
    assert psycopg_connection.do(connection, series(2)) == [(1, ""), (2, "")]
    thread.join(10)
    assert slow == [(1, ""), (2, ""), (3, "")]
