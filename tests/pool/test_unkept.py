"""Successes that left no row: every page that would show them tells how many there were."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Connection

from tasks_app import Settings
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.monitor.metrics import totals
from tasks_app.monitor.pages.history import read_history
from tasks_app.monitor.pages.tasks import unkept_of
from tasks_app.pool.statistics.read import Grain, Wanted, unkept
from tasks_app.pool.statistics.roll_up import HOUR, reconcile, roll_up
from tasks_app.pool.tables import database_now
from tests.pool.test_statistics import KEPT, NOON, numbers, over, part, put


def left_no_row(connection: Connection, number: int, name: str = "sync.price") -> None:
    at = database_now(connection)
    done, gone = (part(at, number, name, o) for o in (CountedOutcome.DONE, CountedOutcome.UNKEPT))
    put(connection, name, done, gone)


def test_they_are_told_before_and_after_they_are_added_up(connection: Connection) -> None:
    assert unkept(connection) is None
    left_no_row(connection, 3)
    left_no_row(connection, 4, "mail")
    for later in (timedelta(0), timedelta(minutes=3)):
        found = unkept(connection)
        assert found is not None
        assert (found.number, found.names, found.more) == (7, ("mail", "sync.price"), False)
        only = unkept(connection, name="mail", queue="q")
        assert only is not None
        assert only.number == 4
        assert unkept(connection, name="mail", queue="other") is None
        roll_up(connection, None, KEPT, now=database_now(connection) + later)


def test_after_thirty_days_they_are_told_no_more(connection: Connection) -> None:
    put(connection, "a", part(NOON, 3, outcome=CountedOutcome.UNKEPT))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=3))
    assert unkept(connection, now=NOON + timedelta(days=29)) is not None
    assert unkept(connection, now=NOON + timedelta(days=31)) is None


def test_of_many_names_the_first_are_named(connection: Connection) -> None:
    for number in range(7):
        left_no_row(connection, number + 1, f"n{number}")
    found = unkept(connection)
    assert found is not None
    assert found.words.startswith("28 tasks of n6, n5, n4, n3, n2 and others succeeded")


@pytest.mark.parametrize(
    "filters",
    [{"pool": "error"}, {"state": "FAILED"}, {"group": "1"}, {"name": "x"}, {"held": True}],
)
def test_a_query_of_others_is_not_told(connection: Connection, filters: dict[str, object]) -> None:
    left_no_row(connection, 3)
    assert unkept_of(connection, filters) is None
    assert unkept_of(connection, {"state": "succeeded", "queue": "q"}) is not None


def test_a_lost_row_is_counted_beside_them(connection: Connection) -> None:
    gone = CountedOutcome.UNKEPT
    over(connection, 1, 5, 10)
    put(connection, "a", part(NOON, 8), part(NOON, 6, outcome=gone))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=3))
    assert reconcile(connection, NOON) == 3
    assert numbers(connection, HOUR, "outcome, number") == [(CountedOutcome.DONE, 11), (gone, 6)]
    assert reconcile(connection, NOON) == 0


def test_history_and_metrics_count_them_once(connection: Connection) -> None:
    put(connection, "a", part(NOON, 8), part(NOON, 6, outcome=CountedOutcome.UNKEPT))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=3))
    asked = Wanted(Grain.HOUR, timedelta(hours=2))
    past = read_history(connection, asked, "", now=NOON + timedelta(hours=1))
    assert (past.done, past.unkept) == (8, 6)
    counted = [s for s in totals(connection, Settings()) if s.labels[:1] == ("t",)]
    assert {(s.labels[-1], s.value) for s in counted if len(s.labels) == 3} == {("done", 8)}
