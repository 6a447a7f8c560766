"""The estimate of a start: right for even queues, wide for uneven ones, none for guesses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from tasks_app.domain.explain.estimate import LEAST_MINUTES, estimate

NOON = datetime(2040, 1, 1, 12, tzinfo=UTC)


def minutes(place: int, ended: tuple[int, ...]) -> tuple[float, float]:
    found = estimate(NOON, place, ended)
    assert found is not None
    return tuple(round((at - NOON) / timedelta(minutes=1), 2) for at in (found.p50, found.p95))  # type: ignore[return-value]


def test_an_even_queue_takes_as_long_as_it_took() -> None:
    assert minutes(1_000, (100,) * 15) == (10, 10.7)
    assert minutes(1, (100,) * 15) == (0.01, 0.04)
    found = estimate(NOON, 1_000, (100,) * 15)
    assert found
    assert (found.a_minute, found.minutes) == (100, 15)


def test_the_more_uneven_and_the_fewer_minutes_the_later_may_it_be() -> None:
    likely, late = minutes(1_000, (50, 150) * 5)
    assert likely == 10
    assert late > minutes(1_000, (90, 110) * 5)[1] > minutes(1_000, (100,) * 10)[1]
    assert minutes(1_000, (90, 110, 100))[1] > minutes(1_000, (90, 110, 100) * 5)[1]


@pytest.mark.parametrize(
    "ended",
    [
        *((), (100,) * (LEAST_MINUTES - 1), (0,) * 15),
        *((1, 0, 0), (0, 0, 500, 0, 0), (1, 0, 0, 0, 0, 0, 0, 0)),
    ],
)
def test_of_too_little_nothing_is_said(ended: tuple[int, ...]) -> None:
    assert estimate(NOON, 10, ended) is None


@pytest.mark.parametrize(("mean", "spread"), [(600, 60), (60, 30), (6, 3)])
def test_as_many_start_by_then_as_it_says(mean: int, spread: int) -> None:
    """Of queues whose minutes are independent, as far as 15 minutes tell what they are."""
    random, before, within, number = Random(7), 0, 0, 2_000
    for _ in range(number):
        ended = [max(0, round(random.gauss(mean, spread))) for _ in range(60)]
        place = 10 * mean
        found = estimate(NOON, place, tuple(ended[:15]))
        assert found
        took, left = 0.0, float(place)
        for more in ended[15:]:
            if more >= left:
                took += left / more
                break
            took, left = took + 1, left - more
        before += NOON + timedelta(minutes=took) <= found.p50
        within += NOON + timedelta(minutes=took) <= found.p95
    assert 0.4 < before / number < 0.6
    assert 0.92 < within / number < 0.99
