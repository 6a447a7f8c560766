"""Many tasks that wait: what is meant, what a later step still knows, and a rate over stages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.operations import audit
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.browse import get
from tasks_app.runtime.api.bulk import STEP, Done, foresee_bulk, foresee_rest, run_bulk, start_bulk
from tests.factory import claimed_task, ending, pending_task
from tests.runtime.api.bulk_rows import failed_task, make
from tests.statements import once_after


def bulk(engine: Engine, action: str, **words: Any) -> Done:
    done = run_bulk(engine, start_bulk(engine, action, **words))
    assert done is not None
    return done


def rows(engine: Engine, ids: list[int]) -> list[Any]:
    with engine.connect() as connection:
        found = text("SELECT * FROM task_pending WHERE id = ANY(:ids) ORDER BY id")
        return list(connection.execute(found, {"ids": ids}))


def gaps(engine: Engine, ids: list[int]) -> list[timedelta]:
    """Return by how much each is due behind the one before."""
    return [b - a for a, b in pairwise(row.due_at for row in rows(engine, ids))]


def retrying_task(engine: Engine, **options: Any) -> int:
    with engine.begin() as connection:
        task = claimed_task(connection, **options)
        back = ending(task, Event.RETRY, failures=1, wait=timedelta(hours=1))
        settle_one(connection, back)
        return task.task_id


@pytest.mark.parametrize(
    ("action", "words", "answer", "column", "value"),
    [
        ("run-now", {}, "due now", "held_due_at", None),
        ("reschedule", {"at": "2031-01-01T00:00Z"}, "rescheduled", "due_at",
         datetime(2031, 1, 1, tzinfo=UTC)),
        ("reprioritise", {"to_priority": 0}, "reprioritised", "priority", 0),
        ("move", {"to_queue": "slow"}, "moved", "queue", "slow"),
        ("disable", {}, "disabled", "enabled", False),
    ],
)  # fmt: skip
def test_the_rest_is_done_with_what_the_first_stage_was_told(
    engine: Engine, action: str, words: dict[str, Any], answer: str, column: str, value: Any
) -> None:
    ids = make(engine, 5, delay="1h")
    token = start_bulk(engine, action, name="t", by="ann", why="an outage", **words)

    first = run_bulk(engine, token, first=2)
    left = foresee_rest(engine, token)
    rest = run_bulk(engine, token)

    assert first is not None
    assert rest is not None
    assert left is not None
    assert (first.ids, rest.ids) == (ids[:2], ids[2:])
    assert (first.answers, rest.answers) == ({answer: 2}, {answer: 3})
    assert left.counts == {("t", "PENDING"): 3}
    assert [getattr(row, column) for row in rows(engine, ids)] == [value] * 5
    with engine.connect() as connection:
        opening, *_ = audit.steps(connection, token)
    assert opening.what.get("why") == "an outage"


def test_all_of_a_bulk_have_one_date_though_its_steps_are_made_later(engine: Engine) -> None:
    ids = make(engine, 2)
    token = start_bulk(engine, "reschedule", name="t", delay="2h")
    run_bulk(engine, token, first=1)
    run_bulk(engine, token)

    first, second = rows(engine, ids)
    with engine.connect() as connection:
        opening, *_ = audit.steps(connection, token)
    assert first.due_at == second.due_at == opening.at + timedelta(hours=2)


def test_what_is_held_is_not_meant_by_a_hold_and_nothing_else_by_a_release(engine: Engine) -> None:
    ids = make(engine, 3)
    bulk(engine, "hold", ids=ids[:2])

    assert foresee_bulk(engine, "hold", name="t").counts.total() == 1
    assert foresee_bulk(engine, "release", name="t").counts.total() == 2
    assert bulk(engine, "hold", name="t").ids == ids[2:]
    assert bulk(engine, "release", name="t").ids == ids


def test_what_was_so_already_is_counted_and_is_not_said_to_be_changed(engine: Engine) -> None:
    due, later = *make(engine, 1), *make(engine, 1, delay="1h")

    done = bulk(engine, "run-now", ids=[due, later])

    assert (done.ids, done.answers) == ([later], {"due now": 1, "unchanged": 1})


def test_retrying_means_what_has_run_and_waits_for_its_next_attempt(engine: Engine) -> None:
    make(engine, 1, delay="1h")
    with engine.begin() as connection:
        claimed_task(connection)
        failed_task(connection)
    retries = retrying_task(engine)

    assert bulk(engine, "run-now", queue="default", retrying=True).ids == [retries]


def test_what_runs_by_the_time_of_the_lock_is_left_as_it_is(engine: Engine) -> None:
    (task_id,) = make(engine, 1)

    def run() -> None:
        with engine.begin() as connection:
            claimed_task(connection, task_id)

    own = engine.execution_options()
    with once_after(own, "AS fits FROM", run):
        done = bulk(own, "hold", name="t")

    assert done.number == 0
    assert rows(engine, [task_id])[0].held_due_at is None


def test_a_release_at_a_rate_lets_go_of_them_one_after_the_other(engine: Engine) -> None:
    ids = make(engine, 5)
    bulk(engine, "hold", ids=ids)
    token = start_bulk(engine, "release", name="t", rate="1/10s", why="the bank is back")

    first, rest = run_bulk(engine, token, first=2), run_bulk(engine, token)

    assert first is not None
    assert rest is not None
    assert (first.ids, first.answers) == (ids[:2], {"released": 2})
    assert (rest.ids, rest.answers) == (ids[2:], {"released": 3})
    assert set(gaps(engine, ids)) == {timedelta(seconds=10)}


def test_a_killed_one_goes_on_at_its_rate_behind_its_last_step(engine: Engine) -> None:
    ids = make(engine, STEP + 5, delay="100d")
    token = start_bulk(engine, "run-now", name="t", rate="10/1s")
    noted: list[str] = []

    def dies(_: object, __: object, statement: str, *___: object) -> None:
        if "INSERT INTO task_audit" in statement:
            noted.append(statement)
        if len(noted) == 2:
            raise KeyboardInterrupt

    killed = engine.execution_options()
    event.listen(killed, "before_cursor_execute", dies)
    with pytest.raises(KeyboardInterrupt):
        run_bulk(killed, token)
    done = run_bulk(engine, token)

    assert done is not None
    assert done.ids == ids[STEP:]
    assert gaps(engine, ids) == [timedelta(seconds=0.1)] * (len(ids) - 1)


def test_a_rate_goes_on_behind_a_stage_that_changed_nothing(engine: Engine) -> None:
    ids = make(engine, 2, delay="1d")
    make(engine, 1)
    last = make(engine, 1, delay="1d")
    token = start_bulk(engine, "run-now", name="t", rate="1/1h")
    for _ in range(4):
        run_bulk(engine, token, first=1)

    assert gaps(engine, [*ids, *last]) == [timedelta(hours=1)] * 2


def test_a_task_that_waits_for_its_retry_is_held_and_released(engine: Engine) -> None:
    task_id = retrying_task(engine)
    (before,) = rows(engine, [task_id])

    bulk(engine, "hold", ids=[task_id])
    bulk(engine, "release", ids=[task_id])

    (after,) = rows(engine, [task_id])
    assert (after.due_at, after.attempt, after.failures) == (before.due_at, 1, 1)


@pytest.mark.parametrize(
    ("action", "words", "problem"),
    [
        ("hold", {}, "This selects every task"),
        ("hold", {"name": "t", "pool": "error"}, "Only tasks of the pool pending"),
        ("hold", {"name": "t", "state": "RUNNING"}, "A running task does not wait"),
        ("hold", {"name": "t", "rate": "1/1s"}, "hold takes no rate"),
        ("cancel", {"name": "t", "to_queue": "q"}, "cancel takes no to_queue"),
        ("requeue", {"name": "t", "retrying": True}, "Only tasks of the pool pending"),
        ("reschedule", {"name": "t"}, "reschedule needs at or delay"),
        ("reschedule", {"name": "t", "at": "2031-01-01T00:00Z", "delay": 1}, "Give one"),
        ("run-now", {"name": "t", "rate": "many"}, "options.rate is not a rate"),
        ("reschedule", {"name": "t", "at": "tomorrow"}, "options.at is 'tomorrow'"),
        ("run-now", {"retrying": False}, "This selects every task"),
    ],
)
def test_nonsense_is_refused(engine: Engine, action: str, words: dict, problem: str) -> None:
    with pytest.raises(InvalidSelectionError, match=problem):
        start_bulk(engine, action, **words)


def test_a_held_task_reads_as_held(engine: Engine) -> None:
    with engine.begin() as connection:
        task_id = pending_task(connection)
    bulk(engine, "hold", ids=[task_id])

    with engine.connect() as connection:
        task = get(connection, task_id)
    assert task is not None
    assert task.held
