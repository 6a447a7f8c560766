"""When a waiting task probably starts, from the counts of its queue's last minutes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.explain.explanation import Explanation, explain
from tasks_app.domain.explain.facts import MOST_AHEAD
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.flow_control.fair_queues import set_fair
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.operations.explain import read_facts
from tasks_app.pool.statistics.parts import CountPart, write_parts
from tasks_app.pool.statistics.roll_up import CountRetention, roll_up
from tasks_app.runtime.api.amend_waiting import hold_task
from tests.factory import LEASE, pending_task
from tests.pool.operations.test_explain import a_child, a_scan

NOON = datetime(2040, 1, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
KEPT = CountRetention(*(timedelta(days=30),) * 3)


@pytest.fixture
def line(connection: Connection) -> Connection:
    """A line of 99 tasks that stands for 20 minutes, with a worker."""
    a_child(connection)
    a_scan(connection)
    fill(connection, 99)
    return connection


def fill(connection: Connection, number: int) -> None:
    connection.execute(
        text("""INSERT INTO task_pending (name, created_at, due_at, scan_at)
                SELECT 't', :at, :at, :at FROM generate_series(1, :number)"""),
        {"at": NOON - 20 * MINUTE, "number": number},
    )


def ran(
    connection: Connection,
    number: int,
    *ago: int,
    outcome: CountedOutcome = CountedOutcome.DONE,
    queue: str = "default",
    waited: timedelta = 20 * MINUTE,
) -> None:
    """So many ended in each minute that began so many minutes before noon."""
    wait_ms = number * (waited // timedelta(milliseconds=1))
    for each in ago:
        minute = int((NOON - each * MINUTE).timestamp()) // 60
        part = CountPart(minute, "t", queue, outcome, number, wait_ms, 0, (0, number), (0, number))
        write_parts(connection, f"{queue}{outcome}", [part], now=NOON - each * MINUTE)


def ask(connection: Connection, task_id: int | None = None, now: datetime = NOON) -> Explanation:
    if task_id is None:
        task_id = pending_task(connection, now=NOON)
    return explain(read_facts(connection, task_id, lease=LEASE, late_after=HOUR, now=now))


def words(said: Explanation) -> str:
    return said.findings[0].fact.rpartition("; ")[2]


AT_50 = (
    "at 50 runs a minute, as in the last 15 minutes, it probably starts in 2 min (p50),"
    " within 2 min (p95)"
)


def test_it_is_its_place_by_what_ended_in_a_minute(line: Connection) -> None:
    ran(line, 50, *range(2, 20))
    said = ask(line)
    assert said.estimate
    # Noon's last minute is not whole, as it takes some seconds to be written.
    assert (said.estimate.a_minute, said.estimate.minutes) == (50, 15)
    assert said.estimate.p50 == NOON + 2 * MINUTE
    assert 2 * MINUTE < said.estimate.p95 - NOON < 3 * MINUTE
    assert said.findings[0].fact.startswith("It became due just now")
    assert words(said) == AT_50


def test_minutes_count_that_are_rolled_up_or_not(line: Connection) -> None:
    ran(line, 50, *range(5, 20))
    roll_up(line, None, KEPT, now=NOON - 3 * MINUTE)
    ran(line, 50, 4, 3, 2)
    assert line.execute(text("SELECT count(*) FROM task_count WHERE span = 1")).scalar() == 15
    said = ask(line)
    assert said.estimate
    assert (said.estimate.a_minute, said.estimate.minutes) == (50, 15)


def test_any_end_of_a_run_of_its_queue_counts(line: Connection) -> None:
    for outcome in (CountedOutcome.FAILED, CountedOutcome.RETRIED, CountedOutcome.SNOOZED):
        ran(line, 10, *range(2, 20), outcome=outcome)
    ran(line, 20, *range(2, 20))
    for outcome in (CountedOutcome.RELEASED, CountedOutcome.DUPLICATE, CountedOutcome.UNKEPT):
        ran(line, 999, *range(2, 20), outcome=outcome)
    ran(line, 999, *range(2, 20), queue="mail")
    said = ask(line)
    assert said.estimate
    assert said.estimate.a_minute == 50


def test_only_minutes_count_in_which_the_line_stood(connection: Connection) -> None:
    a_child(connection)
    a_scan(connection)
    pending_task(connection, now=NOON - 5 * MINUTE)
    ran(connection, 1, *range(6, 20), waited=timedelta(0))  # nothing else was there
    ran(connection, 50, *range(2, 6), waited=5 * MINUTE)
    said = ask(connection)
    assert said.estimate
    assert (said.estimate.a_minute, said.estimate.minutes) == (50, 4)


def test_a_queue_that_goes_on_after_a_pause_is_measured_since_then(line: Connection) -> None:
    ran(line, 7, 6)  # part of a minute
    ran(line, 50, *range(2, 6))
    said = ask(line)
    assert said.estimate
    assert (said.estimate.a_minute, said.estimate.minutes) == (50, 4)


def test_the_first_of_a_line_has_an_estimate_and_no_excuse(line: Connection) -> None:
    task_id = pending_task(line, now=NOON - 30 * MINUTE)
    assert ask(line, task_id).estimate is None
    assert "estimate" not in words(ask(line, task_id))
    ran(line, 2, *range(2, 20), waited=HOUR)
    said = ask(line, task_id)
    assert said.estimate
    assert said.estimate.p50 == NOON + MINUTE / 2


NO_ENDS = "no estimate: no run of its queue has ended in the last 15 minutes"


@pytest.mark.parametrize(
    ("ago", "said"),
    [
        ((), NO_ENDS),
        ((30, 40), NO_ENDS),
        ((2, 3), "no estimate yet: that needs 3 minutes in which its line moves"),
        ((2, 9), "no estimate: the runs of its queue end too unevenly"),
    ],
)
def test_from_too_little_nothing_is_said_but_why(line: Connection, ago, said: str) -> None:
    ran(line, 50, *ago)
    found = ask(line)
    assert (found.estimate, words(found)) == (None, said)


def test_behind_more_than_are_counted_it_is_at_least_so_long(line: Connection) -> None:
    fill(line, MOST_AHEAD)
    ran(line, 50, *range(2, 20))
    said = ask(line)
    assert said.estimate is None
    assert words(said).endswith("it probably starts in more than 3 h")


def test_whom_later_ones_overtake_has_none(line: Connection) -> None:
    ran(line, 50, *range(2, 20), waited=timedelta(seconds=1))
    found = ask(line)
    assert found.estimate is None
    assert words(found).startswith("no estimate: tasks that came later, as of a better priority")


def test_in_a_fair_queue_it_has_none(line: Connection) -> None:
    ran(line, 50, *range(2, 20))
    set_fair(line, "default", {})
    found = ask(line)
    assert (found.estimate, words(found)) == (
        None,
        "no estimate: its queue is shared by fair_key",
    )


def test_who_waits_for_anything_else_has_none(line: Connection) -> None:
    ran(line, 50, *range(2, 20))
    held = pending_task(line, now=NOON)
    hold_task(line, held, by="anna")
    set_limit(line, Limit(GateKind.KEY, "k", 0))
    waiting = {
        "not due": pending_task(line, now=NOON, delay="1h"),
        "limit": pending_task(line, now=NOON, limit_key="k"),
        "alone": pending_task(line, now=NOON, at_most_once=True),
        "held": held,
    }
    for subject, task_id in waiting.items():
        found = ask(line, task_id)
        assert subject in [finding.subject for finding in found.findings]
        assert found.estimate is None
        assert not any("probably" in finding.fact for finding in found.findings)
