"""Windows: what they are written as, and when they open by the clocks of a zone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.queues import next_opening, parse_window
from tests.domain.queues.windows import CHANGES, DAY, WRITTEN, brute_force, in_zone, minutes_around


@pytest.mark.parametrize("zone", CHANGES)
def test_windows_on_the_days_when_clocks_are_changed(zone: str) -> None:
    for day in CHANGES[zone]:
        off = {day}
        for written in WRITTEN:
            window = in_zone(written, zone)
            for at in minutes_around(zone, day):
                expected = brute_force(written, zone, at, off)
                assert window.is_open(at, {"off": off}) == expected, (written, at)


@pytest.mark.parametrize("zone", CHANGES)
def test_the_next_opening_is_the_first_minute_that_is_open(zone: str) -> None:
    for day in CHANGES[zone]:
        off, minutes = {day}, minutes_around(zone, day)
        for written in WRITTEN:
            window = in_zone(written, zone)
            is_open = [brute_force(written, zone, at, off) for at in minutes]
            closed = [i for i, each in enumerate(is_open) if not each][::20]
            for i in closed:
                if True in is_open[i:]:
                    first = minutes[is_open.index(True, i)]
                    assert next_opening([window], {"off": off}, minutes[i]) == first


def test_of_several_windows_the_nearest_opens_whatever_its_zone() -> None:
    windows = [parse_window("09:00-10:00 Pacific/Kiritimati"), parse_window("09:00-10:00")]

    opens = next_opening(windows, {}, datetime(2026, 6, 1, 12, tzinfo=UTC))

    assert opens == datetime(2026, 6, 1, 19, tzinfo=UTC)


def test_a_window_on_days_that_are_all_holidays_never_opens() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    off = {now.date() + n * DAY for n in range(-9, 500)}

    assert next_opening([parse_window("01:00-02:00 not on off")], {"off": off}, now) is None


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("22:00-06:00", "22:00-06:00 UTC"),
        ("mon-fri 09:00-17:00 Europe/Berlin", "mon-fri 09:00-17:00 Europe/Berlin"),
        ("sat,sun  00:00-24:00", "sat-sun 00:00-24:00 UTC"),
        ("fri-mon 00:00-24:00", "mon,fri-sun 00:00-24:00 UTC"),
        ("00:00-24:00 not on de", "00:00-24:00 UTC not on de"),
        ("mon 22:00-06:00 Asia/Tokyo not on jp", "mon 22:00-06:00 Asia/Tokyo not on jp"),
    ],
)
def test_windows_are_read_and_written(text: str, written: str) -> None:
    assert str(parse_window(text)) == written
    assert parse_window(written) == parse_window(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "22-06", "22:00", "25:00-26:00", "22:60-23:00", "24:00-01:00", "22:00-24:01", None),
        *("mon-xyz 22:00-23:00", "mon-tue-wed 22:00-23:00", "22:00-23:00 Mars/Olympus"),
        *("22:00-23:00 not on", "22:00-23:00 not on a/b", "22:00-23:00 UTC and more"),
    ],
)
def test_what_is_no_window_is_refused(text: object) -> None:
    with pytest.raises(InvalidTaskError):
        parse_window(text)
