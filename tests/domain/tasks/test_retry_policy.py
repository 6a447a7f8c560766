"""Retry policies: their text, and how long each makes a task wait."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_app.domain.durations import LONGEST
from tasks_app.domain.tasks.retry_policy import Exponential, Fixed, Levels, parse_policy

SPANS = st.timedeltas(timedelta(0), LONGEST)
JITTERS = st.integers(0, 100)
POLICIES = st.one_of(
    st.builds(Levels, st.lists(SPANS, min_size=1, max_size=100).map(tuple), JITTERS),
    st.builds(Fixed, SPANS, jitter=JITTERS),
    st.builds(Exponential, SPANS, st.floats(0.001, 1000), SPANS),
)
NINE = "5s,30s,1m,10m,30m,1h,6h,1d,2d"


def seconds(*values: float) -> tuple[timedelta, ...]:
    return tuple(timedelta(seconds=value) for value in values)


@given(POLICIES)
def test_every_policy_survives_being_stored_as_text(policy) -> None:
    assert parse_policy(str(policy)) == policy


@given(POLICIES)
def test_a_policy_object_is_taken_as_it_is(policy) -> None:
    assert parse_policy(policy) is policy


def test_the_level_table_of_the_design_is_read() -> None:
    policy = parse_policy(NINE)

    assert policy == Levels(seconds(5, 30, 60, 600, 1800, 3600, 21600, 86400, 172800))
    assert policy.max_attempts == 10
    assert str(policy) == NINE


def test_a_sequence_of_durations_is_a_table_of_levels() -> None:
    assert parse_policy([5, "30s", timedelta(minutes=1)]) == Levels(seconds(5, 30, 60))


def test_a_single_duration_is_a_table_of_one_level() -> None:
    assert parse_policy("5s") == Levels(seconds(5))


def test_beyond_its_end_a_level_table_repeats_the_last_wait() -> None:
    policy = Levels(seconds(5, 30, 60))

    waits = [policy.wait(level, Random(1)) for level in (1, 2, 3, 4, 30_000)]

    assert waits == list(seconds(5, 30, 60, 60, 60))


def test_a_fixed_policy_waits_the_same_each_time() -> None:
    policy = parse_policy("fixed 30s")

    assert [policy.wait(level, Random(1)) for level in (1, 2, 99)] == list(seconds(30, 30, 30))
    assert policy.max_attempts == 3


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        ("5s,30s,1m jitter 10%", Levels(seconds(5, 30, 60), jitter=10)),
        ("5s jitter 100%", Levels(seconds(5), jitter=100)),
        ("fixed 30s jitter 25%", Fixed(timedelta(seconds=30), jitter=25)),
    ],
)
def test_jitter_is_read_and_written(written: str, policy) -> None:
    assert parse_policy(written) == policy
    assert str(policy) == written


def test_no_jitter_is_not_written() -> None:
    assert str(parse_policy("5s,30s jitter 0%")) == "5s,30s"


def test_jitter_does_not_change_how_many_attempts_a_table_implies() -> None:
    """`task_create()` of SQL counts its commas, too."""
    assert parse_policy("5s,30s,1m jitter 10%").max_attempts == 4


@given(st.integers(1, 100), st.integers(1, 5), st.integers(0, 2**32))
def test_jitter_makes_a_wait_longer_up_to_its_share_and_never_shorter(
    jitter: int, level: int, seed: int
) -> None:
    said = (5, 30, 60)[min(level, 3) - 1]

    for policy in (Levels(seconds(5, 30, 60), jitter), Fixed(timedelta(seconds=said), 3, jitter)):
        wait = policy.wait(level, Random(seed)).total_seconds()
        assert said <= wait <= said * (1 + jitter / 100) + 0.000_001


def test_jitter_uses_the_whole_range() -> None:
    policy, rng = parse_policy("10s jitter 50%"), Random(7)

    waits = [policy.wait(1, rng).total_seconds() for _ in range(400)]

    assert min(waits) < 10.1
    assert max(waits) > 14.9
    assert 12 < sum(waits) / len(waits) < 13


@given(st.integers(1, 32_000), st.integers(0, 2**32), st.floats(1, 1000))
def test_full_jitter_stays_between_zero_and_the_ceiling_of_its_level(
    level: int, seed: int, factor: float
) -> None:
    policy = Exponential(timedelta(seconds=1), factor, timedelta(hours=1))
    ceiling = min(factor ** min(level - 1, 64), 3600)

    wait = policy.wait(level, Random(seed))

    assert 0 <= wait.total_seconds() <= ceiling + 0.000_001


def test_full_jitter_uses_the_whole_range_and_not_only_its_end() -> None:
    policy, rng = parse_policy("exponential 1s x2 cap 1h"), Random(7)

    waits = [policy.wait(4, rng).total_seconds() for _ in range(400)]

    assert min(waits) < 0.5
    assert 7.5 < max(waits) <= 8
    assert 3.4 < sum(waits) / len(waits) < 4.6


def test_the_cap_bounds_the_highest_levels() -> None:
    policy, rng = Exponential(timedelta(seconds=5), 2, timedelta(minutes=1)), Random(7)

    assert max(policy.wait(32_000, rng) for _ in range(200)) <= timedelta(minutes=1)


@given(POLICIES, st.integers(1, 32_000))
def test_no_admitted_policy_fails_at_any_level(policy, level: int) -> None:
    assert timedelta(0) <= parse_policy(policy).wait(level, Random(1)) <= LONGEST


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        ",",
        "5s,",
        "5s,,30s",
        "fixed",
        "fixed -5s",
        "fixed soon",
        "exponential",
        "exponential 1s",
        "exponential 1s x2",
        "exponential 1s x-2 cap 1h",
        "exponential 1s xnan cap 1h",
        "exponential 0s x" + "9" * 400 + " cap 1h",
        "exponential 1s x100000 cap 1h",
        "exponential 1s x2 cap 1h jitter 10%",
        "5s jitter",
        "5s jitter 10",
        "5s jitter 101%",
        "5s jitter -1%",
        "5s jitter 1.5%",
        "5s jitter 10% jitter 10%",
        "jitter 10%",
        " jitter 10%",
        ",".join(["1s"] * 101),
        [],
        [None],
        ["5s", -1],
        [True],
        b"5s",
        bytearray(b"5s"),
        5,
        None,
        {"5s": 1},
        {"5s"},
        Levels(()),
        Levels((timedelta(seconds=-1),)),
        Fixed(timedelta(seconds=-1)),
        Levels((timedelta(seconds=1),), jitter=101),
        Levels((timedelta(seconds=1),), jitter=-1),
        Levels((timedelta(seconds=1),), jitter=0.1),  # type: ignore[arg-type]
        Fixed(timedelta(seconds=1), jitter=True),
        Fixed("30s"),  # type: ignore[arg-type]
        Fixed(timedelta(seconds=1), max_attempts=0),
        Exponential(factor=float("nan")),
        Exponential(factor=float("inf")),
        Exponential(factor=-2.0),
        Exponential(base=timedelta.max),
    ],
    ids=lambda value: (
        f"{type(value).__name__}-{str(value)[:24]}"
        if isinstance(value, str | list)
        else type(value).__name__
    ),
)
def test_what_is_no_policy_is_a_value_error(wrong) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_policy(wrong)


@given(st.text(max_size=40))
def test_any_text_is_a_policy_or_a_value_error(text: str) -> None:
    try:
        policy = parse_policy(text)
    except ValueError:
        return

    assert parse_policy(str(policy)) == policy
