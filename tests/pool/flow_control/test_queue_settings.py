"""Rules of queues in the database: what is said, what stands still, what tasks have by default."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from tasks_app.domain.queues import check_queue_options, parse_window
from tasks_app.pool.dispatch.scan import check_idle
from tasks_app.pool.flow_control import queue_settings
from tasks_app.pool.flow_control.queue_settings import find_pauses, pause, resume, update_load_gates
from tasks_app.pool.fragments.conditions import OPEN, stopped_queues
from tasks_app.pool.runs.claim import claim, claim_next, claims_of
from tasks_app.pool.tables import NOW
from tests.domain.queues.windows import CHANGES, WRITTEN, brute_force, in_zone, minutes_around
from tests.factory import claimed_task, claimer, pending_task
from tests.pool.interleave import Blocked, two

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)  # a Monday
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
OPEN_AT = text(f"""
    SELECT m.at, bool_or({OPEN.replace(NOW, "m.at")}) AS is_open
    FROM task_queue_window w CROSS JOIN unnest(CAST(:minutes AS timestamptz[])) AS m(at)
    WHERE w.queue = 'q' GROUP BY m.at
""")


def change(connection: Connection, queue: str = "q", **options: object) -> None:
    queue_settings.change_queue(connection, queue, check_queue_options(options))


def taken(connection: Connection, ids: list[int], now: datetime = NOON) -> list[int]:
    return [t.task_id for t in claim(connection, ids, claimer(), uuid4(), now=now)]


class TestWindows:
    def test_outside_its_windows_nothing_of_a_queue_is_claimed(
        self, connection: Connection
    ) -> None:
        night = pending_task(connection, queue="night", now=NOON)
        other = pending_task(connection, now=NOON)
        change(connection, "night", windows=["22:00-06:00"])

        late = NOON + 10 * HOUR
        assert stopped_queues(connection, now=NOON) == {"night"}
        assert stopped_queues(connection, now=late) == set()
        assert stopped_queues(connection, now=NOON + 18 * HOUR) == {"night"}
        assert taken(connection, [night]) == []
        found = claim_next(connection, ["night", "default"], 5, claimer(), uuid4(), now=NOON)
        assert [t.task_id for t in found] == [other]
        assert taken(connection, [night], late) == [night]

    def test_a_queue_is_open_in_any_of_its_windows(self, connection: Connection) -> None:
        change(connection, windows=["01:00-02:00", "11:00-13:00", "mon 12:00-12:01"])

        assert stopped_queues(connection, now=NOON) == set()

    def test_not_on_the_days_of_a_calendar(self, connection: Connection) -> None:
        queue_settings.set_calendar(connection, "de", [NOON.date()])
        change(connection, windows=["00:00-24:00 not on de"])

        assert stopped_queues(connection, now=NOON) == {"q"}
        assert stopped_queues(connection, now=NOON + 12 * HOUR) == set()
        queue_settings.set_calendar(connection, "de", [date(2026, 12, 25)])
        assert stopped_queues(connection, now=NOON) == set()

    def test_days_that_python_cannot_read_are_refused_by_the_table(
        self, connection: Connection
    ) -> None:
        """One of them would stop all commands that list calendars."""
        into = text("INSERT INTO task_calendar (name, days) VALUES ('odd', CAST(:days AS date[]))")
        for day in (
            "infinity",
            "-infinity",
            "0044-03-15 BC",
            "10000-01-01",
            "NULL",
            "{2026-01-01}",
        ):
            refused = pytest.raises(IntegrityError, match="days_are_readable")
            with refused, connection.begin_nested():
                connection.execute(into, {"days": f"{{{day}}}"})
        queue_settings.set_calendar(connection, "ends", [date.min, date.max])
        assert queue_settings.calendars(connection) == {"ends": [date.min, date.max]}

    @pytest.mark.test_all
    @pytest.mark.parametrize("zone", CHANGES)
    def test_the_database_opens_them_as_a_person_who_reads_the_clock_would(
        self, connection: Connection, zone: str
    ) -> None:
        """On both days of a year when clocks are changed, and around them."""
        for day in CHANGES[zone]:
            queue_settings.set_calendar(connection, "off", [day])
            minutes = minutes_around(zone, day)
            for written in WRITTEN:
                queue_settings.change_queue(connection, "q", {"windows": (in_zone(written, zone),)})
                rows = connection.execute(OPEN_AT, {"minutes": minutes})
                found = {row.at: row.is_open for row in rows}
                assert found == {at: brute_force(written, zone, at, {day}) for at in minutes}

    def test_they_come_back_as_they_were_written(self, connection: Connection) -> None:
        queue_settings.set_calendar(connection, "de", [])
        written = ["mon-fri 22:00-06:00 Europe/Berlin not on de", "sat,sun 00:00-24:00"]
        change(connection, windows=written)

        (found,) = queue_settings.find_queues(connection, now=NOON)

        assert set(found.windows) == set(map(parse_window, written))
        assert not found.is_open
        assert found.opens_at == datetime(2026, 6, 1, 20, tzinfo=UTC)

    def test_the_next_opening_is_told_after_a_holiday(self, connection: Connection) -> None:
        today = NOON.date()
        queue_settings.set_calendar(connection, "off", [today, today + timedelta(days=1)])
        change(connection, windows=["09:00-17:00 not on off"])

        (found,) = queue_settings.find_queues(connection, now=NOON)

        assert found.opens_at == NOON + timedelta(days=2) - 3 * HOUR

    @pytest.mark.parametrize(
        "values",
        [
            "'q', '{1,8}', '01:00', '02:00', 'UTC'",
            "'q', '{}', '01:00', '02:00', 'UTC'",
            "'q', '{1}', '24:00', '02:00', 'UTC'",
            "'q', '{1}', '01:00', '02:00', 'Mars/Olympus'",
            "'*', '{1}', '01:00', '02:00', 'UTC'",
        ],
    )
    def test_what_a_claim_could_not_read_is_refused_by_the_table(
        self, connection: Connection, values: str
    ) -> None:
        with pytest.raises(DBAPIError):
            connection.execute(text(f"INSERT INTO task_queue_window VALUES ({values})"))


class TestPausesThatEnd:
    def test_a_pause_ends_at_its_instant(self, connection: Connection) -> None:
        mail = pending_task(connection, queue="mail", now=NOON)
        pause(connection, "mail", resume_at=NOON + HOUR, now=NOON)

        assert stopped_queues(connection, now=NOON) == {"mail"}
        assert taken(connection, [mail], NOON + HOUR - MINUTE) == []
        assert find_pauses(connection, now=NOON + HOUR) == []
        assert resume(connection, "mail", now=NOON + HOUR) == []
        assert taken(connection, [mail], NOON + HOUR) == [mail]

    def test_a_pause_that_is_over_makes_room_for_another(self, connection: Connection) -> None:
        assert pause(connection, "mail", "one", resume_in=HOUR, now=NOON)
        assert not pause(connection, "mail", "two", now=NOON)
        assert pause(connection, "mail", "three", now=NOON + HOUR)

        (found,) = find_pauses(connection, now=NOON + 2 * HOUR)
        assert (found.reason, found.resume_at) == ("three", None)


class TestGates:
    def test_running_below(self, connection: Connection) -> None:
        bulk = pending_task(connection, queue="bulk", now=NOON)
        change(connection, "bulk", running_below=2)
        claimed_task(connection, now=NOON)
        claimed_task(connection, queue="bulk", now=NOON)
        assert update_load_gates(connection, now=NOON) == {}

        claimed_task(connection, now=NOON)

        assert update_load_gates(connection, now=NOON) == {"bulk": "running"}
        assert update_load_gates(connection, now=NOON) == {}
        assert taken(connection, [bulk]) == []
        connection.execute(text("DELETE FROM task_pending WHERE state = 'RUNNING'"))
        assert update_load_gates(connection, now=NOON) == {"bulk": None}
        assert taken(connection, [bulk]) == [bulk]

    def test_waiting_below(self, connection: Connection) -> None:
        change(connection, "bulk", waiting_below="1m")
        pending_task(connection, queue="bulk", now=NOON - HOUR)
        pending_task(connection, now=NOON)

        assert update_load_gates(connection, now=NOON + MINUTE / 2) == {}
        assert update_load_gates(connection, now=NOON + MINUTE) == {"bulk": "waiting"}
        assert stopped_queues(connection, now=NOON + MINUTE) == {"bulk"}

    def test_what_stands_still_keeps_no_gate_shut(self, connection: Connection) -> None:
        change(connection, "bulk", waiting_below="1m")
        pending_task(connection, queue="mail", now=NOON - HOUR)
        assert update_load_gates(connection, now=NOON) == {"bulk": "waiting"}

        pause(connection, "mail")

        assert update_load_gates(connection, now=NOON) == {"bulk": None}

    def test_a_gate_that_is_taken_away_is_open(self, connection: Connection) -> None:
        change(connection, "bulk", waiting_below="1m", timeout=5)
        pending_task(connection, now=NOON - HOUR)
        update_load_gates(connection, now=NOON)

        change(connection, "bulk", waiting_below=None)

        assert stopped_queues(connection, now=NOON) == set()
        assert update_load_gates(connection, now=NOON) == {}


class TestDefaults:
    def test_tasks_that_say_nothing_have_what_their_queue_says(
        self, connection: Connection
    ) -> None:
        change(connection, retry="1s,2s", timeout="5s", hard_timeout="1m")
        silent = pending_task(connection, queue="q", now=NOON)

        (task,) = claim(connection, [silent], claimer(max_attempts=9), uuid4(), now=NOON)

        assert (task.retry, task.max_attempts) == ("1s,2s", 3)
        assert (task.timeout_ms, task.hard_timeout_ms) == (5_000, 60_000)
        assert claims_of(connection, "w1")[0] == task

    def test_a_task_that_says_something_keeps_it_and_other_queues_know_nothing(
        self, connection: Connection
    ) -> None:
        change(connection, retry="1s,2s", timeout="5s")
        speaks = pending_task(
            connection, queue="q", now=NOON, retry="fixed 7s", max_attempts=7, timeout="7s"
        )
        other = pending_task(connection, now=NOON)

        first, second = claim(connection, [speaks, other], claimer(), uuid4(), now=NOON)

        assert (first.retry, first.max_attempts, first.timeout_ms) == ("fixed 7s", 7, 7_000)
        assert (second.retry, second.max_attempts, second.timeout_ms) == (None, 3, None)

    def test_what_was_claimed_keeps_its_number_of_attempts(self, connection: Connection) -> None:
        task = claimed_task(connection, queue="q", now=NOON)
        change(connection, max_attempts=9)

        assert claims_of(connection, "w1")[0].max_attempts == task.max_attempts == 3


def test_what_is_not_said_stays_and_none_takes_back(connection: Connection) -> None:
    change(connection, windows=["01:00-02:00"], running_below=5, timeout=9)
    change(connection, waiting_below="30s")
    (before,) = queue_settings.find_queues(connection)
    change(connection, windows=None, running_below=None, waiting_below=None)
    (after,) = queue_settings.find_queues(connection)
    change(connection, timeout=None)

    assert (before.running_below, before.waiting_below) == (5, timedelta(seconds=30))
    assert before.windows
    assert (after.windows, after.gate, after.defaults) == ((), "", {"timeout_ms": 9_000})
    assert queue_settings.find_queues(connection) == []


def test_an_idle_scanner_sees_nothing_in_queues_that_stand_still(connection: Connection) -> None:
    pending_task(connection, queue="night", now=NOON)
    change(connection, "night", windows=["22:00-06:00"])

    assert check_idle(connection, now=NOON).is_quiet(HOUR)
    assert not check_idle(connection, now=NOON + 10 * HOUR).is_quiet(HOUR)


def test_an_idle_scanner_sees_that_there_are_gates(connection: Connection) -> None:
    assert not check_idle(connection, now=NOON).gates
    change(connection, running_below=1)
    assert check_idle(connection, now=NOON).gates


def test_two_who_change_one_queue_follow_one_another(engine: Engine) -> None:
    """The first leaves no row behind, which the second waited for."""
    four = {"max_attempts": 4}
    with two(engine) as (first, second):
        queue_settings.change_queue(first, "mail", {})
        waits = Blocked(
            engine, second, first, lambda c: queue_settings.change_queue(c, "mail", four)
        )
        first.commit()
        waits.result()
        second.commit()
        assert [queue.max_attempts for queue in queue_settings.find_queues(second)] == [4]
