"""What is said of queues, by whom it is heard, and how soon."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from tasks_app import (
    InvalidTaskError,
    change_queue,
    explain_task,
    get_queue,
    list_calendars,
    list_queues,
    pause_queue,
    remove_calendar,
    reset_queue,
    resume_queue,
    set_calendar,
)
from tasks_app.pool.flow_control.queue_settings import update_load_gates
from tests.factory import claimed_task, pending_task
from tests.runtime.bench import Bench
from tests.waiting import until


def closed_now() -> str:
    """A window that is not open, whatever the time is."""
    other = datetime.now(UTC) + timedelta(hours=12)
    return f"{other:%H}:00-{other:%H}:01"


@pytest.mark.test_all
def test_a_window_that_opens_is_noticed_within_a_second(bench: Bench) -> None:
    """Nobody writes anything then: the clock alone opens it."""
    bench.succeeding()
    with bench.engine.begin() as connection:
        pause_queue(connection, "default", resume_in=1.5)
        resume_at = get_queue(connection, "default").resume_at
    task_id = bench.create()
    bench.beside(bench.work(scan_interval=1).run)

    until(lambda: bench.state(task_id) == "SUCCEEDED", 15)

    late = bench.sql(
        "SELECT started_at - CAST(:at AS timestamptz) FROM task_completed", at=resume_at
    )
    assert timedelta(0) <= late < timedelta(seconds=2)  # on a machine that is busy otherwise


@pytest.mark.test_all
def test_a_queue_that_closes_is_left_alone_at_once_and_goes_on_within_a_second(
    bench: Bench,
) -> None:
    bench.succeeding()
    bench.beside(bench.work(scan_interval=1).run)
    first = bench.create()
    until(lambda: bench.state(first) == "SUCCEEDED", 15)
    with bench.engine.begin() as connection:
        change_queue(connection, "default", windows=[closed_now()])
    ran = len(bench.runs)
    task_id = bench.create()
    until(lambda: bench.sql("SELECT count(*) FROM task_pending") == 1)
    pause = bench.event()
    pause.wait(1.5)
    assert len(bench.runs) == ran

    with bench.engine.begin() as connection:
        change_queue(connection, "default", windows=None)
    opened = bench.sql("SELECT statement_timestamp()")

    until(lambda: bench.state(task_id) == "SUCCEEDED", 15)
    late = "SELECT started_at - CAST(:at AS timestamptz) FROM task_completed WHERE id = :id"
    assert bench.sql(late, at=opened, id=task_id) < timedelta(seconds=2)


def test_a_worker_without_a_broker_opens_and_shuts_gates(bench: Bench) -> None:
    bench.succeeding()
    with bench.engine.begin() as connection:
        change_queue(connection, "default", running_below=1)
        claimed_task(connection, queue="other")
        update_load_gates(connection)
    task_id = bench.create()
    work = bench.work(scan_interval=0.2)
    bench.beside(work.run)
    assert bench.sql("SELECT shut FROM task_queue") == "running"
    assert bench.state(task_id) == "PENDING"

    bench.sql("DELETE FROM task_pending WHERE queue = 'other'")

    until(lambda: bench.state(task_id) == "SUCCEEDED", 15)


def test_a_run_takes_its_timeout_and_its_retries_from_its_queue(bench: Bench) -> None:
    bench.raising(ValueError("no"), retry="1h")
    with bench.engine.begin() as connection:
        change_queue(connection, "default", retry="fixed 0s", max_attempts=2)
    task_id = bench.create()

    bench.drain()

    assert bench.state(task_id) == "FAILED"
    assert bench.runs == [task_id, task_id]


def test_explain_knows_what_is_said_of_the_queue(connection: Connection) -> None:
    task_id = pending_task(connection, queue="mail")
    change_queue(connection, "mail", windows=[closed_now()])

    said = explain_task(connection, task_id)

    assert "closed" in [finding.subject for finding in said.findings]


def test_a_queue_is_ruled_paused_and_left_alone_again(connection: Connection) -> None:
    set_calendar(connection, "de", [date(2026, 12, 25), date(2026, 1, 1), date(2026, 1, 1)])
    made = change_queue(connection, "mail", windows="00:00-24:00 not on de", timeout="5s")
    assert made is not None
    assert pause_queue(connection, "mail", "why", resume_at=datetime(2999, 1, 1, tzinfo=UTC))

    (found,) = list_queues(connection)
    assert not found.runs
    assert found.reason == "why"
    assert list_calendars(connection) == {"de": [date(2026, 1, 1), date(2026, 12, 25)]}
    assert [reset_queue(connection, "mail"), reset_queue(connection, "mail")] == [True, False]
    assert list_queues(connection)[0].paused_since is not None
    assert resume_queue(connection, "mail") == ["mail"]
    assert list_queues(connection) == []
    assert [remove_calendar(connection, "de"), remove_calendar(connection, "de")] == [True, False]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"windows": ["nights"]}, "window is 'nights'"),
        ({"windows": ["22:00-06:00 not on xx"]}, "options.windows name 'xx'"),
        ({"running_below": 0}, "options.running_below is 0"),
        ({"running_below": True}, "options.running_below is True"),
        ({"waiting_below": "soon"}, "options.waiting_below is 'soon'"),
        ({"waiting_below": 0}, "options.waiting_below is 0 s"),
        ({"retry": "now and then"}, "options.retry"),
        ({"max_attempts": 0}, "options.max_attempts is 0"),
        ({"timeout": -1}, "options.timeout"),
        ({"priority": 3}, "options.priority is unknown"),
    ],
)
def test_what_cannot_be_said_of_a_queue_is_refused(
    connection: Connection, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidTaskError) as refusal:
        change_queue(connection, "mail", **options)

    assert str(refusal.value).startswith(problem)
    assert list_queues(connection) == []


def test_what_is_no_calendar_or_is_used_is_refused(connection: Connection) -> None:
    set_calendar(connection, "de", [date(2026, 12, 25)])
    change_queue(connection, "mail", windows=["00:00-24:00 not on de"])

    for call in (
        lambda: remove_calendar(connection, "de"),
        lambda: set_calendar(connection, "a b", []),
        lambda: set_calendar(connection, "de", [datetime(2026, 12, 25, tzinfo=UTC)]),
        lambda: pause_queue(connection, "mail", resume_in="later"),
        lambda: change_queue(connection, "*", timeout=1),
    ):
        with pytest.raises(InvalidTaskError):
            call()


def test_a_queue_may_be_ruled_by_two_at_once(bench: Bench) -> None:
    """Interleaving: both read, one writes the gate, the other the limit."""
    with bench.engine.begin() as one:
        change_queue(one, "mail", running_below=5)
        thread = bench.beside(_limit, bench)
    thread.join(10)

    with bench.engine.connect() as connection:
        found = get_queue(connection, "mail")
    assert (found.running_below, found.timeout_ms) == (5, 5_000)


def _limit(bench: Bench) -> None:
    with bench.engine.begin() as other:
        change_queue(other, "mail", timeout="5s")
