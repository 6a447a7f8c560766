"""Spans as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_app.domain.durations import LONGEST, format_duration, parse_duration

SPANS = st.timedeltas(timedelta(0), LONGEST)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0),
        (30, 30),
        (1.5, 1.5),
        ("30", 30),
        ("30s", 30),
        ("250ms", 0.25),
        ("1.5h", 5400),
        (" 10 m ", 600),
        ("1d", 86400),
        (timedelta(minutes=2), 120),
        ("0", 0),
    ],
)
def test_a_duration_is_read_in_every_way_that_people_write_it(written, seconds) -> None:
    assert parse_duration(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "s",
        "5 seconds",
        "-5s",
        "+5s",
        "1e3",
        "5s\x00",
        "1h30m",
        "5s,30s",
        "nan",
        "inf",
        "٣ fortnights",
        "9" * 400,
        "9" * 400 + "d",
        -1,
        -0.001,
        float("nan"),
        float("inf"),
        -float("inf"),
        10**400,
        10**5000,
        1e300,
        True,
        False,
        None,
        [],
        {},
        b"5s",
        timedelta(seconds=-1),
        timedelta.max,
        timedelta.min,
        LONGEST + timedelta(microseconds=1),
        "3661d",
    ],
    ids=lambda value: (
        f"{type(value).__name__}-{str(value)[:12] if value != 10**5000 else '10^5000'}"
    ),
)
def test_what_is_no_duration_is_a_value_error(wrong) -> None:
    with pytest.raises(ValueError, match=r"duration|outside 0 \.\. 3660 days"):
        parse_duration(wrong)


def test_a_refusal_repeats_only_the_beginning_of_a_long_value() -> None:
    with pytest.raises(ValueError, match="not a duration") as refused:
        parse_duration("secret " * 10_000)

    assert len(str(refused.value)) < 200


@given(SPANS)
def test_every_span_survives_being_written_and_read(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (30, "30s"),
        (90, "90s"),
        (600, "10m"),
        (86400, "1d"),
        (7200, "2h"),
    ],
)
def test_a_span_is_written_in_the_largest_unit_that_fits(seconds: float, written: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == written


@given(st.text(max_size=20) | st.floats() | st.integers() | st.none() | st.binary(max_size=4))
def test_anything_at_all_is_a_span_within_bounds_or_a_value_error(value) -> None:
    try:
        span = parse_duration(value)
    except ValueError:
        return

    assert timedelta(0) <= span <= LONGEST
