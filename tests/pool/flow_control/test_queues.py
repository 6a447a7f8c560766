"""Queues: paused, set, shared fairly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.flow_control.admission import FairQueueKey
from tasks_app.domain.queues import Pause, check_queue_options, parse_window
from tasks_app.pool.dispatch.scan import check_idle
from tasks_app.pool.flow_control import fair_queues, queue_settings
from tasks_app.pool.flow_control.queue_settings import (
    find_pauses,
    pause,
    resume,
    update_load_gates,
)
from tasks_app.pool.fragments.conditions import OPEN, scan_position_values, stopped_queues
from tasks_app.pool.runs import claim as claims
from tasks_app.pool.runs.claim import claim, claim_next, claims_of
from tasks_app.pool.tables import NOW
from tasks_app.pool.tasks import browse
from tests.domain.test_flow_control import CHANGES, WRITTEN, brute_force, in_zone, minutes_around
from tests.factory import claimed_task, claimer, pending_task, row_of
from tests.pool.database import prepared
from tests.pool.interleave import Blocked, two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def claimed(connection: Connection, ids: list[int]) -> list[int]:
    return [t.task_id for t in claim(connection, ids, claimer(), uuid4(), now=LATER)]


def next_ids(connection: Connection) -> list[int]:
    queues = ("mail", "default")
    return sorted(
        t.task_id for t in claim_next(connection, queues, 10, claimer(), uuid4(), now=LATER)
    )


def test_a_paused_queue_is_not_claimed_and_others_are(connection: Connection) -> None:
    mail = pending_task(connection, queue="mail", now=NOON)
    other = pending_task(connection, now=NOON)
    before = row_of(connection, mail)
    pause(connection, "mail")
    assert claimed(connection, [mail]) == []
    assert next_ids(connection) == [other]
    assert row_of(connection, mail) == before


def test_all_queues_can_be_paused_at_once(connection: Connection) -> None:
    ids = [pending_task(connection, queue=queue, now=NOON) for queue in ("mail", "default")]
    pause(connection, "*")
    assert (claimed(connection, ids), next_ids(connection)) == ([], [])
    resume(connection, "*")
    assert next_ids(connection) == ids


@pytest.mark.parametrize("take", ["message", "next"])
def test_after_resume_rows_run_at_once(connection: Connection, take: str) -> None:
    mail = pending_task(connection, queue="mail", now=NOON)
    pause(connection, "mail")
    claimed(connection, [mail])
    resume(connection, "mail")
    found = claimed(connection, [mail]) if take == "message" else next_ids(connection)
    assert found == [mail]


def test_a_pause_keeps_its_beginning_and_reason(connection: Connection) -> None:
    assert pause(connection, "mail", "provider\0 is down", now=NOON)
    assert not pause(connection, "mail", "another", now=LATER)
    assert find_pauses(connection) == [Pause("mail", NOON, "provider\ufffd is down")]
    assert resume(connection, "mail") == ["mail"]
    assert resume(connection, "mail") == []
    assert find_pauses(connection) == []


def test_resuming_a_queue_leaves_the_others_resuming_all_none(connection: Connection) -> None:
    for queue in ("a", "b", "*"):
        pause(connection, queue)
    assert resume(connection, "a") == ["a"]
    assert {row.queue for row in find_pauses(connection)} == {"b", "*"}
    assert sorted(resume(connection, "*")) == ["*", "b"]


@pytest.mark.parametrize("queue", ["", "a b", "**", "x" * 101])
def test_what_is_no_queue_is_refused(connection: Connection, queue: str) -> None:
    with pytest.raises(InvalidTaskError):
        pause(connection, queue)
    with pytest.raises(InvalidTaskError):
        resume(connection, queue)


def test_stats_say_which_tasks_stand_still(connection: Connection) -> None:
    pending_task(connection, queue="mail")
    pending_task(connection)
    pause(connection, "mail")
    assert {c.queue: c.paused for c in browse.count_tasks(connection)} == {
        "mail": True,
        "default": False,
    }


def nodes(plan: dict[str, Any], below: str | None = None) -> Iterator[dict[str, Any]]:
    """All nodes of a plan; with ``below``, those under the CTE of that name."""
    inside = below is None or plan.get("Subplan Name") == below
    if inside:
        yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child, None if inside else below)


@pytest.mark.parametrize(("stopped", "loops"), [("other", 10), ("mail", 0), ("*", 0)])
def test_rows_of_a_paused_queue_are_not_read(
    connection: Connection, stopped: str, loops: int
) -> None:
    """Or each claim would read all of them, however many wait."""
    pending_task(connection, queue="mail", now=NOON)
    pause(connection, stopped)
    values = {**claims.values_of(claimer(), uuid4()), "queues": ["mail"], "most": 10}
    values |= {"lonely": True, "within": None, "now": LATER}
    values |= scan_position_values(["mail"], None)
    statement = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {claims._NEXT.text}"
    (plan,) = connection.execute(text(statement), values).scalar_one()
    candidates = nodes(plan["Plan"], "CTE candidate")
    scans = [node for node in candidates if node.get("Relation Name") == "task_pending"]
    assert [node["Actual Loops"] for node in scans] == [loops]


MONDAY = datetime(2026, 6, 1, 12, tzinfo=UTC)  # a Monday
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
OPEN_AT = text(f"""
    SELECT m.at, bool_or({OPEN.replace(NOW, "m.at")}) AS is_open
    FROM task_queue_window w CROSS JOIN unnest(CAST(:minutes AS timestamptz[])) AS m(at)
    WHERE w.queue = 'q' GROUP BY m.at
""")


def change(connection: Connection, queue: str = "q", **options: object) -> None:
    queue_settings.change_queue(connection, queue, check_queue_options(options))


def taken(connection: Connection, ids: list[int], now: datetime = MONDAY) -> list[int]:
    return [t.task_id for t in claim(connection, ids, claimer(), uuid4(), now=now)]


class TestWindows:
    def test_nothing_is_claimed_outside_a_queues_windows(self, connection: Connection) -> None:
        night = pending_task(connection, queue="night", now=MONDAY)
        other = pending_task(connection, now=MONDAY)
        change(connection, "night", windows=["22:00-06:00"])

        late = MONDAY + 10 * HOUR
        assert stopped_queues(connection, now=MONDAY) == {"night"}
        assert stopped_queues(connection, now=late) == set()
        assert stopped_queues(connection, now=MONDAY + 18 * HOUR) == {"night"}
        assert taken(connection, [night]) == []
        found = claim_next(connection, ["night", "default"], 5, claimer(), uuid4(), now=MONDAY)
        assert [t.task_id for t in found] == [other]
        assert taken(connection, [night], late) == [night]

    def test_a_queue_is_open_in_any_of_its_windows(self, connection: Connection) -> None:
        change(connection, windows=["01:00-02:00", "11:00-13:00", "mon 12:00-12:01"])
        assert stopped_queues(connection, now=MONDAY) == set()

    def test_not_on_the_days_of_a_calendar(self, connection: Connection) -> None:
        queue_settings.set_calendar(connection, "de", [MONDAY.date()])
        change(connection, windows=["00:00-24:00 not on de"])
        assert stopped_queues(connection, now=MONDAY) == {"q"}
        assert stopped_queues(connection, now=MONDAY + 12 * HOUR) == set()
        queue_settings.set_calendar(connection, "de", [date(2026, 12, 25)])
        assert stopped_queues(connection, now=MONDAY) == set()

    def test_the_table_refuses_days_python_cannot_read(self, connection: Connection) -> None:
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
    def test_they_open_as_read_off_a_clock(self, connection: Connection, zone: str) -> None:
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
        (found,) = queue_settings.find_queues(connection, now=MONDAY)
        assert set(found.windows) == set(map(parse_window, written))
        assert not found.is_open
        assert found.opens_at == datetime(2026, 6, 1, 20, tzinfo=UTC)

    def test_the_next_opening_is_told_after_a_holiday(self, connection: Connection) -> None:
        today = MONDAY.date()
        queue_settings.set_calendar(connection, "off", [today, today + timedelta(days=1)])
        change(connection, windows=["09:00-17:00 not on off"])
        (found,) = queue_settings.find_queues(connection, now=MONDAY)
        assert found.opens_at == MONDAY + timedelta(days=2) - 3 * HOUR

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
    def test_the_table_refuses_what_no_claim_reads(
        self, connection: Connection, values: str
    ) -> None:
        with pytest.raises(DBAPIError):
            connection.execute(text(f"INSERT INTO task_queue_window VALUES ({values})"))


class TestPausesThatEnd:
    def test_a_pause_ends_at_its_instant(self, connection: Connection) -> None:
        mail = pending_task(connection, queue="mail", now=MONDAY)
        pause(connection, "mail", resume_at=MONDAY + HOUR, now=MONDAY)
        assert stopped_queues(connection, now=MONDAY) == {"mail"}
        assert taken(connection, [mail], MONDAY + HOUR - MINUTE) == []
        assert find_pauses(connection, now=MONDAY + HOUR) == []
        assert resume(connection, "mail", now=MONDAY + HOUR) == []
        assert taken(connection, [mail], MONDAY + HOUR) == [mail]

    def test_a_pause_that_is_over_makes_room_for_another(self, connection: Connection) -> None:
        assert pause(connection, "mail", "one", resume_in=HOUR, now=MONDAY)
        assert not pause(connection, "mail", "two", now=MONDAY)
        assert pause(connection, "mail", "three", now=MONDAY + HOUR)
        (found,) = find_pauses(connection, now=MONDAY + 2 * HOUR)
        assert (found.reason, found.resume_at) == ("three", None)


class TestGates:
    def test_running_below(self, connection: Connection) -> None:
        bulk = pending_task(connection, queue="bulk", now=MONDAY)
        change(connection, "bulk", running_below=2)
        claimed_task(connection, now=MONDAY)
        claimed_task(connection, queue="bulk", now=MONDAY)
        assert update_load_gates(connection, now=MONDAY) == {}

        claimed_task(connection, now=MONDAY)

        assert update_load_gates(connection, now=MONDAY) == {"bulk": "running"}
        assert update_load_gates(connection, now=MONDAY) == {}
        assert taken(connection, [bulk]) == []
        connection.execute(text("DELETE FROM task_pending WHERE state = 'RUNNING'"))
        assert update_load_gates(connection, now=MONDAY) == {"bulk": None}
        assert taken(connection, [bulk]) == [bulk]

    def test_waiting_below(self, connection: Connection) -> None:
        change(connection, "bulk", waiting_below="1m")
        pending_task(connection, queue="bulk", now=MONDAY - HOUR)
        pending_task(connection, now=MONDAY)
        assert update_load_gates(connection, now=MONDAY + MINUTE / 2) == {}
        assert update_load_gates(connection, now=MONDAY + MINUTE) == {"bulk": "waiting"}
        assert stopped_queues(connection, now=MONDAY + MINUTE) == {"bulk"}

    def test_what_stands_still_keeps_no_gate_shut(self, connection: Connection) -> None:
        change(connection, "bulk", waiting_below="1m")
        pending_task(connection, queue="mail", now=MONDAY - HOUR)
        assert update_load_gates(connection, now=MONDAY) == {"bulk": "waiting"}
        pause(connection, "mail")
        assert update_load_gates(connection, now=MONDAY) == {"bulk": None}

    def test_a_gate_that_is_taken_away_is_open(self, connection: Connection) -> None:
        change(connection, "bulk", waiting_below="1m", timeout=5)
        pending_task(connection, now=MONDAY - HOUR)
        update_load_gates(connection, now=MONDAY)
        change(connection, "bulk", waiting_below=None)
        assert stopped_queues(connection, now=MONDAY) == set()
        assert update_load_gates(connection, now=MONDAY) == {}


class TestDefaults:
    def test_tasks_that_say_nothing_have_their_queues_word(self, connection: Connection) -> None:
        change(connection, retry="1s,2s", timeout="5s", hard_timeout="1m")
        silent = pending_task(connection, queue="q", now=MONDAY)
        (task,) = claim(connection, [silent], claimer(max_attempts=9), uuid4(), now=MONDAY)
        assert (task.retry, task.max_attempts) == ("1s,2s", 3)
        assert (task.timeout_ms, task.hard_timeout_ms) == (5_000, 60_000)
        assert claims_of(connection, "w1")[0] == task

    def test_a_task_keeps_what_it_says_as_do_other_queues(self, connection: Connection) -> None:
        change(connection, retry="1s,2s", timeout="5s")
        speaks = pending_task(
            connection, queue="q", now=MONDAY, retry="fixed 7s", max_attempts=7, timeout="7s"
        )
        other = pending_task(connection, now=MONDAY)

        first, second = claim(connection, [speaks, other], claimer(), uuid4(), now=MONDAY)

        assert (first.retry, first.max_attempts, first.timeout_ms) == ("fixed 7s", 7, 7_000)
        assert (second.retry, second.max_attempts, second.timeout_ms) == (None, 3, None)

    def test_what_was_claimed_keeps_its_number_of_attempts(self, connection: Connection) -> None:
        task = claimed_task(connection, queue="q", now=MONDAY)
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
    pending_task(connection, queue="night", now=MONDAY)
    change(connection, "night", windows=["22:00-06:00"])
    assert check_idle(connection, now=MONDAY).is_quiet(HOUR)
    assert not check_idle(connection, now=MONDAY + 10 * HOUR).is_quiet(HOUR)


def test_an_idle_scanner_sees_that_there_are_gates(connection: Connection) -> None:
    assert not check_idle(connection, now=MONDAY).gates
    change(connection, running_below=1)
    assert check_idle(connection, now=MONDAY).gates


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


MANY = 20_000
BACKLOG = text("""
    INSERT INTO task_pending (name, fair_key, priority)
    SELECT 't', 'big', 5 FROM generate_series(1, :many)
""")
WANTED: Mapping[FairQueueKey, int] = dict.fromkeys(
    [FairQueueKey("big", 5), FairQueueKey("small", 5), FairQueueKey("", 5)], 10
)


@pytest.fixture
def backlog(connection: Connection) -> Connection:
    connection.execute(BACKLOG, {"many": MANY})
    pending_task(connection, fair_key="small", priority=0)
    pending_task(connection, fair_key="small", queue="default2")
    pending_task(connection, fair_key="small", priority=9, delay="1h")
    connection.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))
    connection.execute(text("SET LOCAL enable_seqscan = off"))
    connection.execute(text("SET LOCAL enable_bitmapscan = off"))
    return connection


READ: dict[str, Callable[[Connection], Any]] = {
    "lines": lambda c: fair_queues.fair_lines(c, "default"),
    "heads": lambda c: fair_queues.first_of_lines(c, "default", WANTED, {1: 0.0}),
    "heads_locked": lambda c: fair_queues.first_of_lines(c, "default", WANTED, {}, lock=True),
}


@pytest.mark.parametrize("name", READ)
def test_a_backlog_is_not_read(backlog: Connection, name: str) -> None:
    plan = prepared(backlog, f"fair_{name}", READ[name]).run(backlog)
    assert not plan.whole
    assert plan.rows < 300
    assert plan.buffers < 1_000
    assert "task_pending_fair" in plan.indexes


def test_lines_are_those_with_something_that_waits(backlog: Connection) -> None:
    found, on = fair_queues.fair_lines(backlog, "default")
    assert [line for line in found if line.key] == [
        FairQueueKey("big", 5),
        FairQueueKey("small", 0),
        FairQueueKey("small", 9),
    ]
    assert on == ""


def test_heads_are_due_and_in_their_order(backlog: Connection) -> None:
    found, _ = fair_queues.fair_lines(backlog, "default")
    heads = fair_queues.first_of_lines(backlog, "default", dict.fromkeys(found, 3), {})
    ids = {line: [head.id for head in some] for line, some in heads.items()}
    assert {line: len(some) for line, some in ids.items()} == {
        FairQueueKey("big", 5): 3,
        FairQueueKey("small", 0): 1,
    }
    assert ids[FairQueueKey("big", 5)] == sorted(ids[FairQueueKey("big", 5)])


def test_what_is_disabled_or_expired_is_told(connection: Connection) -> None:
    disabled = pending_task(connection, fair_key="a", enabled=False)
    heads = fair_queues.first_of_lines(connection, "default", {FairQueueKey("a", 5): 3}, {})
    assert [(head.id, head.barred) for head in heads[FairQueueKey("a", 5)]] == [(disabled, True)]


def test_a_key_is_kept_through_a_life(connection: Connection) -> None:
    """Moves between pools carry it, and so does a requeue."""
    from tasks_app.pool.tasks.cancel import cancel
    from tasks_app.pool.tasks.requeue import requeue

    task_id = pending_task(connection, fair_key="tenant:7")
    cancel(connection, task_id)
    requeue(connection, task_id)
    query = text("SELECT fair_key FROM task_pending WHERE id = :id")
    assert connection.execute(query, {"id": task_id}).scalar() == "tenant:7"
