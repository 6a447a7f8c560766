"""Connections that a handler keeps past its run: proofs that other setups repeat."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from tests.runtime.bench import EFFECT, Bench, effect, run_many

INSERT = "INSERT INTO effect VALUES (%s, '')"


def driver(ctx: Any) -> Any:
    """psycopg's own connection, before SQLAlchemy said anything."""
    return ctx.connection.connection.driver_connection


def keep_connection(ctx: Any) -> Callable[[], Any]:
    connection = ctx.connection
    return lambda: connection.execute(text(EFFECT), {"id": -1, "note": ""})


def keep_session(ctx: Any) -> Callable[[], Any]:
    session = ctx.session
    return lambda: session.execute(text(EFFECT), {"id": -1, "note": ""})


def keep_fairy(ctx: Any) -> Callable[[], Any]:
    fairy = ctx.connection.connection
    return lambda: fairy.cursor().execute(INSERT, (-1,))


def keep_driver(ctx: Any) -> Callable[[], Any]:
    kept = driver(ctx)
    return lambda: kept.execute(INSERT, (-1,))


def keep_cursor(ctx: Any) -> Callable[[], Any]:
    cursor = driver(ctx).cursor()
    return lambda: cursor.execute(INSERT, (-1,))


def keep_copy(ctx: Any) -> Callable[[], Any]:
    cursor = ctx.connection.connection.cursor()

    def write() -> None:
        with cursor.copy("COPY effect FROM STDIN") as copy:
            copy.write_row((-1, ""))

    return write


KEPT = [keep_connection, keep_session, keep_fairy, keep_driver, keep_cursor, keep_copy]


@pytest.mark.parametrize("keep", KEPT)
@pytest.mark.parametrize("by_thread", [True, False])
def test_what_a_run_kept_writes_into_no_later_run(
    bench: Bench, keep: Callable[[Any], Callable[[], Any]], *, by_thread: bool
) -> None:
    kept: list[Callable[[], Any]] = []
    errors: list[BaseException] = []
    later: list[int] = []

    def use() -> None:
        try:
            kept[0]()
        except Exception as error:
            errors.append(error)

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        effect(ctx)
        if not kept:
            kept.append(keep(ctx))
            return
        later.append(ctx.task_id)  # a run that was put back under load comes twice
        if by_thread:
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
        else:
            use()

    ids = run_many(bench, 4)

    assert len(errors) == len(later) >= 3
    assert bench.effects(-1) == 0
    assert bench.states(ids) == ["SUCCEEDED"] * 4
    assert [bench.effects(i) for i in ids] == [1] * 4


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("anew", [True, False])
def test_an_end_past_our_cursors_is_seen(bench: Bench, *, fails: bool, anew: bool) -> None:
    @bench.handler(retry="0s,0s")
    def h(ctx: Any) -> None:
        cursor = psycopg.ClientCursor(driver(ctx))
        if anew:
            driver(ctx).rollback()  # so that the statement begins a transaction itself
        cursor.execute(INSERT + "; COMMIT", (ctx.task_id,))
        if fails:
            raise ValueError

    task_id = bench.run_one()
    assert (bench.state(task_id), bench.effects(task_id)) == ("FAILED", 1)
    assert "ended the transaction" in bench.error(task_id)
