"""Windows and instants for tests of time windows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from tasks_app.domain.queues import Window, parse_window

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


CHANGES = {
    "Europe/Berlin": (date(2026, 3, 29), date(2026, 10, 25)),
    "America/New_York": (date(2026, 3, 8), date(2026, 11, 1)),
    "Australia/Lord_Howe": (date(2026, 4, 5), date(2026, 10, 4)),
    "Asia/Beirut": (date(2026, 3, 29), date(2026, 10, 25)),
    "America/Santiago": (date(2026, 4, 5), date(2026, 9, 6)),
    "UTC": (date(2026, 3, 29), date(2026, 10, 25)),
}
"""The days of a year on which clocks are changed; in Beirut and Santiago at midnight."""


WRITTEN = (
    *("22:00-06:00", "02:15-02:45", "01:30-03:10", "00:00-24:00", "00:30-00:30", "23:00-00:00"),
    *("sat,sun 00:00-24:00", "sat 20:00-04:00", "sun 02:30-03:00", "mon-fri 22:00-06:00"),
    *("sun 00:00-01:00 not on off", "sat 23:30-02:30 not on off"),
)


def brute_force(written: str, zone: str, at: datetime, off: set[date]) -> bool:
    """Read the clock on the wall, and the window's text, as a person would."""
    words = written.split()
    times = next(word for word in words if ":" in word)
    days = words[0] if not words[0][0].isdigit() else "mon-sun"
    names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    wanted = set()
    for part in days.split(","):
        first, _, last = part.partition("-")
        wanted |= set(names[names.index(first) : names.index(last or first) + 1])
    hands = at.astimezone(ZoneInfo(zone))
    shown, (opens, closes) = hands.strftime("%H:%M"), times.split("-")

    def counts(day: date) -> bool:
        return names[day.weekday()] in wanted and not ("not on" in written and day in off)

    if opens < closes:
        return opens <= shown < closes and counts(hands.date())
    since_today = shown >= opens and counts(hands.date())
    return since_today or (shown < closes and counts(hands.date() - DAY))


def minutes_around(zone: str, day: date) -> list[datetime]:
    """Every fifth minute of the day before, the day and the day after: all edges are among them."""
    start = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC) - DAY
    return [start + number * MINUTE for number in range(0, 3 * 24 * 60, 5)]


def in_zone(written: str, zone: str) -> Window:
    head, _, tail = written.partition(" not on ")
    return parse_window(f"{head} {zone}" + (f" not on {tail}" if tail else ""))
