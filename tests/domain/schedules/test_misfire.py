"""Which instants fire now, against lists of instants that were counted off one by one."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.misfire import (
    ON_TIME,
    PER_PASS,
    FireAll,
    MisfirePolicy,
    due_instants,
    fire_all,
    first_at,
    parse_missed,
)
from tasks_app.domain.schedules.timing import Cron, Every, Timing

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)
S, M, H, D = (timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1))
HOURLY = Every(H, NOON - 100 * D)
EVERY_SECOND = Every(S, NOON - 4000 * D)


def fires(timing: Timing, policy: str, since: datetime, now: datetime = NOON, until=None) -> list:
    return due_instants(timing, parse_missed(policy), since=since, now=now, until=until).instants


@pytest.mark.parametrize("policy", ["skip", "fire_once", "fire_all"])
def test_what_is_on_time_fires_whatever_the_policy(policy: str) -> None:
    for late in (0 * S, S, ON_TIME):
        assert fires(HOURLY, policy, NOON, NOON + late) == [NOON]
    assert fires(EVERY_SECOND, policy, NOON - 3 * S) == [NOON - n * S for n in (3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("skip", []),
        ("fire_once", [NOON - H]),
        ("fire_all", [NOON - n * H for n in (5, 4, 3, 2, 1)]),
        ("fire_all(2)", [NOON - n * H for n in (2, 1)]),
        ("fire_all(9, 3h)", [NOON - n * H for n in (3, 2, 1)]),
        ("fire_all(1, 4h)", [NOON - 1 * H]),
    ],
)
def test_of_what_was_missed_the_policy_chooses(policy: str, expected: list) -> None:
    now = NOON - 30 * M

    due = due_instants(HOURLY, parse_missed(policy), since=NOON - 5 * H, now=now, until=None)

    assert due.instants == expected
    assert due.next_at == NOON


def test_one_for_all_is_none_if_one_comes_on_time_anyway() -> None:
    assert fires(HOURLY, "fire_once", NOON - 5 * H, NOON + S) == [NOON]


def test_the_end_is_the_last_that_fires() -> None:
    end = NOON - 2 * H

    due = due_instants(HOURLY, FireAll(), since=NOON - 4 * H, now=NOON, until=end)

    assert due.instants == [NOON - n * H for n in (4, 3, 2)]
    assert due.next_at is None
    assert fires(HOURLY, "skip", NOON, NOON + S, until=NOON) == [NOON]


def test_many_are_fired_in_parts_and_none_twice_or_never() -> None:
    since, policy, all_ = NOON - 1500 * S, fire_all(2_000), []
    while since <= NOON:
        due = due_instants(EVERY_SECOND, policy, since=since, now=NOON, until=None)
        assert len(due.instants) <= PER_PASS
        all_ += due.instants
        assert due.next_at is not None
        since = due.next_at

    assert all_ == [NOON - n * S for n in range(1500, -1, -1)]


@pytest.mark.test_all
@pytest.mark.parametrize("policy", ["skip", "fire_once", "fire_all(100)"])
def test_years_of_missed_seconds_are_not_counted_off(policy: str) -> None:
    began = time.process_time()

    instants = fires(EVERY_SECOND, policy, NOON - 3000 * D)

    assert instants[-1] == NOON
    assert time.process_time() - began < 1


@pytest.mark.test_all
def test_any_span_gives_what_counting_off_gives() -> None:
    """The search for the newest goes back in growing steps: none may be lost between two."""
    rng = Random(7)
    timing = Cron("0,7,8,59 1-5,13 * * 1-4")
    for _ in range(60):
        since = NOON - rng.randrange(1, 20_000) * M
        most = rng.choice([1, 2, 30, 1000])
        counted, at = [], timing.next_after(since - S)
        while at is not None and at <= NOON:
            counted.append(at)
            at = timing.next_after(at)
        missed = [at for at in counted if at < NOON - ON_TIME][-most:]
        on_time = [at for at in counted if at >= NOON - ON_TIME]

        assert fires(timing, f"fire_all({most})", since) == missed + on_time


def test_the_first_instant_is_not_before_the_start() -> None:
    assert first_at(HOURLY, NOON, None, None) == NOON + H
    assert first_at(HOURLY, NOON, NOON + 5 * H, None) == NOON + 5 * H
    assert first_at(HOURLY, NOON, NOON + 5 * H + S, None) == NOON + 6 * H
    assert first_at(HOURLY, NOON, NOON - D, NOON + M) is None


@pytest.mark.parametrize("text", ["skip", "fire_once", "fire_all(100)", "fire_all(7, 1d)"])
def test_policies_are_written_as_they_are_read(text: str) -> None:
    assert str(parse_missed(text)) == text
    assert parse_missed(parse_missed(text)) == parse_missed(text)
    assert parse_missed("fire_all") == fire_all()
    assert parse_missed(MisfirePolicy.SKIP) is MisfirePolicy.SKIP


@pytest.mark.parametrize(
    "text", ["", "never", "fire_all()", "fire_all(0)", "fire_all(10001)", "fire_all(1, x)", None, 3]
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(InvalidScheduleError, match=r"missed .* Allowed: skip, fire_once or"):
        parse_missed(text)
