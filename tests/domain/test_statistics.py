"""Buckets, sums and percentiles of histograms."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_app.domain.statistics import (
    BOUNDS_MS,
    BUCKETS,
    FINAL,
    LAST_BUCKET,
    CountedOutcome,
    bucket_of,
    merge_histograms,
    outcome_of,
    percentile,
    state_of,
    trim_histogram,
)
from tasks_app.domain.tasks.states import TERMINAL, TRANSITIONS, Event, State

HISTOGRAMS = st.lists(st.integers(0, 1000), max_size=BUCKETS)


@pytest.mark.parametrize(
    ("ms", "bucket"),
    [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (1 << 23, 24), (1 << 40, 24)],
)
def test_the_bucket_of(ms: int, bucket: int) -> None:
    assert bucket_of(ms) == bucket


@given(st.integers(0, 1 << 30))
def test_a_bucket_lies_between_its_bounds(ms: int) -> None:
    bucket = bucket_of(ms)
    assert bucket == LAST_BUCKET or ms < BOUNDS_MS[bucket]
    assert bucket == 0 or ms >= BOUNDS_MS[bucket - 1]


@given(HISTOGRAMS, HISTOGRAMS)
def test_merging_loses_nothing(one: list[int], other: list[int]) -> None:
    assert sum(merge_histograms(one, other)) == sum(one) + sum(other)
    assert merge_histograms(one, other) == merge_histograms(other, one)
    assert trim_histogram(merge_histograms(one, other)) == trim_histogram(
        merge_histograms(trim_histogram(one), trim_histogram(other))
    )


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 0.5) is None
    assert percentile([0, 0], 0.5) is None


def test_a_percentile_is_interpolated() -> None:
    assert percentile([0, 0, 0, 10], 0.5) == 6  # the middle of 4 .. 8
    assert percentile([10, 0, 0, 10], 0.5) == 1
    assert percentile([10, 0, 0, 10], 1.0) == 8


def test_the_last_bucket_has_no_upper_bound() -> None:
    assert percentile([0] * LAST_BUCKET + [3], 0.99) == 1 << 23


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_percentile_is_off_by_less_than_twice(share: float) -> None:
    rng = random.Random(7)
    values = sorted(int(rng.lognormvariate(5, 1.5)) + 1 for _ in range(10_000))
    histogram = [0] * BUCKETS
    for value in values:
        histogram[bucket_of(value)] += 1
    true, found = values[int(share * len(values)) - 1], percentile(histogram, share)
    assert found is not None
    assert true / 2 < found < true * 2


def test_the_numbers_are_those_that_are_stored() -> None:
    assert {outcome.name: outcome.value for outcome in CountedOutcome} == {
        "DONE": 1, "SKIPPED": 2, "CANCELLED": 3, "EXPIRED": 4, "FAILED": 5, "RETRIED": 6,
        "RELEASED": 7, "RESCUED": 8, "SNOOZED": 9, "STALE": 11, "DUPLICATE": 12, "UNKEPT": 13,
        "LEFT": 14,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("event", "state"),
    [(event, to) for (source, event), to in TRANSITIONS.items() if source is State.RUNNING],
)
def test_every_way_out_of_running_is_counted(event: Event, state: State) -> None:
    assert outcome_of(state, event) in CountedOutcome


def test_a_task_that_was_cancelled_meanwhile_is_cancelled() -> None:
    assert outcome_of(State.CANCELLED, Event.RETRY) is CountedOutcome.CANCELLED


def test_the_final_ones() -> None:
    assert [state_of(outcome) for outcome in FINAL] == list(TERMINAL)
    assert state_of(CountedOutcome.RETRIED) is None
