"""Fire: who locks a schedule, and the key that admits an instant once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.schedules.misfire import Fired, next_at
from tasks_app.domain.schedules.schedule import Schedule, SchedulePlan, plan_of
from tasks_app.pool import scheduling
from tasks_app.pool.dispatch.scan import check_idle
from tasks_app.pool.scheduling import ScheduleUpdate
from tests.factory import count, pending_task
from tests.pool.interleave import blocked, two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def plan(task: str = "t", **when: Any) -> SchedulePlan:
    when = when or {"every": 3600, "starts_at": NOON}
    return plan_of(validate_task(NewTask(task, {"n": 1}, {"priority": 3}), None, 65536), when)  # type: ignore[arg-type]


def scheduled(
    connection: Connection, name: str = "s", now: datetime = NOON - HOUR, **when: Any
) -> Schedule:
    made = scheduling.add(connection, name, plan(**when), now=now)
    assert made is not None
    return made


def outcomes(connection: Connection) -> list[tuple]:
    rows = connection.execute(
        text("SELECT fire_at, outcome, task_id FROM task_schedule_fire ORDER BY 1")
    )
    return [tuple(row) for row in rows]


def test_a_schedule_is_read_as_written_and_knows_when_it_is_next(connection: Connection) -> None:
    made = scheduled(connection, jitter=5, every=60, ends_at=NOON, overlap="queue")
    assert made == scheduling.get(connection, "s")
    assert made.plain() == plan(jitter=5, every=60, ends_at=NOON, overlap="queue").plain()
    assert made.next_run_at == NOON - HOUR + timedelta(seconds=60)
    assert scheduling.add(connection, "s", plan()) is None
    assert scheduling.find(connection) == [made]


def test_due_is_what_has_come_and_is_enabled(connection: Connection) -> None:
    first, other = scheduled(connection), scheduled(connection, "off")
    scheduling.change(connection, "off", {"enabled": False})
    assert scheduling.lock_due(connection, 9, now=NOON - timedelta(microseconds=1)) == ([], None)
    assert scheduling.lock_due(connection, 9, now=NOON) == ([first], NOON)
    assert scheduling.lock_due(connection, 9, only=other.id, now=NOON) == ([], None)
    assert scheduling.next_fire_in_s(connection, now=NOON - HOUR) == 3600
    assert scheduling.next_fire_in_s(connection, now=NOON + HOUR) == -3600


def test_a_glance_tells_when_the_next_one_is(connection: Connection) -> None:
    assert check_idle(connection, now=NOON).next_fire_s is None
    scheduled(connection)
    assert check_idle(connection, now=NOON - HOUR).next_fire_s == 3600


def test_a_schedule_somebody_holds_is_passed_by_and_the_others_are_not(engine: Engine) -> None:
    with two(engine) as (a, b):
        scheduled(a), scheduled(a, "other")
        a.commit()
        held = scheduling.lock_due(a, 1, now=NOON)[0]
        left = scheduling.lock_due(b, 9, now=NOON)[0]
        assert {each.name for each in held + left} == {"s", "other"}


def test_an_instant_is_entered_once_whoever_enters_it(connection: Connection) -> None:
    key = (scheduled(connection).id, NOON)
    assert scheduling.record_fires(connection, {key: Fired.MADE}) == [key]
    assert scheduling.record_fires(connection, {key: Fired.MADE}) == []
    assert (
        scheduling.record_fires(connection, {key: Fired.MADE}, over=[Fired.SKIPPED, Fired.QUEUED])
        == []
    )


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_of_two_that_enter_one_instant_one_gets_it(engine: Engine, end: str) -> None:
    """Both think that it is theirs: without any lock of the schedule."""
    with engine.begin() as setup:
        key = (scheduled(setup).id, NOON)
    with two(engine) as (a, b):
        assert scheduling.record_fires(a, {key: Fired.MADE}) == [key]
        waiting = blocked(engine, b, a, lambda c: scheduling.record_fires(c, {key: Fired.MADE}))
        getattr(a, end)()
        assert waiting.result() == ([] if end == "commit" else [key])


def test_what_was_queued_is_made_later_once(connection: Connection) -> None:
    key = (scheduled(connection).id, NOON)
    assert scheduling.record_fires(connection, {key: Fired.QUEUED}) == []
    assert scheduling.record_fires(connection, {key: Fired.QUEUED}) == []
    assert scheduling.record_fires(connection, {key: Fired.MADE}) == [key]
    assert scheduling.record_fires(connection, {key: Fired.MADE}) == []


def test_a_schedules_live_tasks_are_the_newest_that_are_not_over(connection: Connection) -> None:
    schedule = scheduled(connection)
    instants = [(schedule.id, NOON + n * HOUR) for n in range(scheduling.NEWEST + 2)]
    scheduling.record_fires(connection, dict.fromkeys(instants, Fired.MADE))
    ids = [int(pending_task(connection)) for _ in instants]
    scheduling.record_fired_tasks(connection, dict(zip(instants, ids, strict=True)))
    connection.execute(text("DELETE FROM task_pending WHERE id = :id"), {"id": ids[-1]})
    assert scheduling.live_tasks(connection, [schedule.id, 4711]) == {schedule.id: ids[2:-1]}


def test_an_instant_whose_key_was_taken_counts_as_skipped(connection: Connection) -> None:
    key = (scheduled(connection).id, NOON)
    scheduling.record_fires(connection, {key: Fired.MADE})
    scheduling.record_fired_tasks(connection, {key: None})
    assert outcomes(connection) == [(NOON, "skipped", None)]


def test_what_is_pruned_bars_the_past_and_the_newest_stays(connection: Connection) -> None:
    schedule = scheduled(connection)
    old = {(schedule.id, NOON + n * HOUR): Fired.MADE for n in range(3)}
    scheduling.record_fires(connection, old, now=NOON)
    scheduling.record_fired_tasks(connection, {key: 100 + n for n, key in enumerate(old)})
    standing = ScheduleUpdate(schedule.id, NOON, NOON, last_task_id=102)
    scheduling.save_updates(connection, [standing])

    assert scheduling.prune_fires(connection, HOUR, 10, now=NOON + 2 * HOUR) == 2

    assert [task for *_, task in outcomes(connection)] == [102]
    pruned = scheduling.get(connection, "s")
    assert pruned is not None
    assert pruned.forgotten_until == NOON + HOUR


def test_the_oldest_are_pruned_first_and_no_more_than_was_said(connection: Connection) -> None:
    schedule = scheduled(connection)
    for n in range(4):
        scheduling.record_fires(
            connection, {(schedule.id, NOON + n * HOUR): Fired.MADE}, now=NOON + n * HOUR
        )
    assert scheduling.prune_fires(connection, HOUR, 3, now=NOON + 9 * HOUR) == 3
    assert [at for at, *_ in outcomes(connection)] == [NOON + 3 * HOUR]
    assert scheduling.prune_fires(connection, HOUR, 3, now=NOON + 9 * HOUR) == 1


def test_a_removed_schedule_takes_its_instants_not_its_tasks(connection: Connection) -> None:
    key = (scheduled(connection).id, NOON)
    scheduling.record_fires(connection, {key: Fired.MADE})
    pending_task(connection)
    assert scheduling.remove(connection, "s")
    assert not scheduling.remove(connection, "s")
    assert (count(connection, "task_schedule_fire"), count(connection, "task_pending")) == (0, 1)


def test_a_change_aims_anew_and_from_now_on(connection: Connection) -> None:
    scheduled(connection)
    late = NOON + 5 * HOUR + timedelta(minutes=1)

    same = scheduling.change(connection, "s", {"priority": 1}, now=late)
    disabled = scheduling.change(connection, "s", {"enabled": False}, now=late)
    enabled = scheduling.change(connection, "s", {"enabled": True}, now=late)

    assert same is not None
    assert disabled is not None
    assert enabled is not None
    assert (same.priority, same.next_run_at) == (1, NOON)
    assert disabled.next_run_at is None
    assert enabled.next_run_at == NOON + 6 * HOUR == next_at(enabled.timing, late, None)
    assert scheduling.change(connection, "nobody", {"enabled": True}) is None


@pytest.mark.parametrize(
    "column",
    [
        *("name = 'a b'", "task = ''", "queue = '-'", "priority = 10", "payload = '[]'"),
        *("options = '1'", "kind = 'never'", "missed = 'x'", "overlap = 'x'"),
        *("jitter = '-1s'", "jitter = '2 days'", "look_at = 'infinity'"),
        "starts_at = '2026-01-02Z', ends_at = '2026-01-01Z'",
    ],
)
def test_strangers_with_sql_are_held_to_the_rules(connection: Connection, column: str) -> None:
    scheduled(connection)
    with pytest.raises(IntegrityError):
        connection.execute(text(f"UPDATE task_schedule SET {column}"))
