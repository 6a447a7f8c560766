"""Prune: rows go by key and by age, some at a time; their history goes with them."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, Engine, text

from tasks_app.domain.config.retention import parse_keep
from tasks_app.pool import retention
from tasks_app.pool.retention import LOOKED_AT, Mark, due_names
from tasks_app.pool.tables import ERROR
from tasks_app.pool.tasks.browse import failed_attempts, get
from tests.factory import count
from tests.pool.interleave import two
from tests.pool.old_days import DAY, NOON, ONE, day_of, failed, finished, old_day

WEEK_LATER = NOON + 7 * ONE


def thin(connection: Connection, *names: str, most: int = LOOKED_AT) -> int:
    """All of the day, step by step, as somebody who reads the mark anew each time."""
    day, total = day_of(connection), 0
    mark = Mark(names=names)
    while mark.names:
        mark, gone = retention.thin_partition(connection, day, mark, most=most)
        assert day_of(connection).mark == mark
        total += gone
    return total


class TestThinning:
    """One name of a day that stays."""

    def test_only_that_name_goes_with_its_history(self, connection: Connection) -> None:
        old_day(connection)
        gone, kept = finished(connection, "mail.send"), finished(connection, "order.pay")

        assert thin(connection, "mail.send") == 1

        assert get(connection, gone) is None
        assert failed_attempts(connection, gone) == []
        assert get(connection, kept) is not None
        assert failed_attempts(connection, kept)

    def test_bit_by_bit(self, connection: Connection) -> None:
        old_day(connection)
        for name in ("a", "b", "a", "a", "b"):
            finished(connection, name)

        assert thin(connection, "a", most=2) == 3
        assert count(connection, "task_completed") == 2

    def test_it_is_remembered_that_a_day_is_done(self, connection: Connection) -> None:
        old_day(connection)
        early = {"a": ONE, "b": 2 * ONE}
        before = due_names(day_of(connection), early, DAY + 2 * ONE)
        thin(connection, *before)

        assert before == ("a",)
        assert due_names(day_of(connection), early, DAY + 2 * ONE) == ()
        assert due_names(day_of(connection), early, DAY + 3 * ONE) == ("b",)

    def test_a_day_is_thinned_when_all_of_it_is_old_enough(self, connection: Connection) -> None:
        day = old_day(connection)

        assert due_names(day, {"a": ONE}, DAY + 2 * ONE - timedelta(seconds=1)) == ()


class TestByAge:
    """The error pool."""

    def delete(self, connection: Connection, keep: str, most: int = LOOKED_AT) -> int:
        place, total = None, 0
        while True:
            place, gone = retention.delete_old(
                connection, ERROR, parse_keep(keep), place, most=most, now=WEEK_LATER
            )
            total += gone
            if place is None:
                return total

    def test_errors_are_kept_for_ever_unless_told_otherwise(self, connection: Connection) -> None:
        failed(connection)

        assert self.delete(connection, "forever") == 0

    def test_what_is_older_goes_with_its_history(self, connection: Connection) -> None:
        old, young = failed(connection), failed(connection, now=WEEK_LATER - ONE)

        assert self.delete(connection, "7d") == 0
        assert self.delete(connection, "6d") == 1

        assert get(connection, old) is None
        assert failed_attempts(connection, old) == []
        assert get(connection, young) is not None
        assert failed_attempts(connection, young)

    def test_names_have_ages_of_their_own(self, connection: Connection) -> None:
        noise, kept, other = (failed(connection, name) for name in ("noise", "kept", "other"))

        assert self.delete(connection, "3d,noise=1d,kept=forever") == 2

        assert [bool(get(connection, i)) for i in (noise, kept, other)] == [False, True, False]

    def test_one_name_of_those_that_stay(self, connection: Connection) -> None:
        for name in ("a", "b", "a", "b", "b", "a"):
            failed(connection, name)

        assert self.delete(connection, "forever,a=1d", most=2) == 3
        assert count(connection, "task_error") == 3

    def test_one_that_somebody_holds_is_left_for_the_next_pass(self, engine: Engine) -> None:
        with engine.begin() as connection:
            held, other = failed(connection), failed(connection)
        with two(engine) as (a, b):
            a.execute(text("SELECT FROM task_error WHERE id = :id FOR UPDATE"), {"id": held})

            assert self.delete(b, "1d") == 1
            assert get(b, other) is None
            a.rollback()
            assert self.delete(b, "1d") == 1

    def test_what_would_go_is_counted(self, connection: Connection) -> None:
        failed(connection)
        failed(connection, "kept")

        rows, size = retention.count_old(
            connection, ERROR, parse_keep("1d,kept=forever"), now=WEEK_LATER
        )

        assert rows == 1
        assert 100 < size < 1_000
