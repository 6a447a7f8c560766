"""The database's instants are those of Python: any expression and zone, around clock changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import SHORTHANDS, check_cron, next_change
from tasks_app.domain.schedules.timing import timing_of
from tasks_app.pool.db_scheduler import functions

ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"),
    *("America/St_Johns", "Africa/Casablanca", "Pacific/Apia", "Pacific/Chatham"),
)
_NEXT = text("SELECT task_next_instant(:kind, :expression, :zone, :anchor, :after)")
CASES = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def asked(shared_engine: Engine) -> Iterator[Connection]:
    """A transaction that has the functions, and is rolled back."""
    with shared_engine.connect() as connection:
        functions.create(connection, Settings())
        yield connection
        connection.rollback()


def _field(low: int, high: int, names: str = "") -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(
        lambda pair: f"{min(pair)}-{max(pair)}"
    )
    step = st.integers(1, high).map(str)
    stepped = st.tuples(st.one_of(st.just("*"), number, span), step).map("/".join)
    term = st.one_of(number, span, stepped, *([st.sampled_from(names.split())] if names else []))
    return st.one_of(st.just("*"), term, st.lists(term, min_size=2, max_size=3).map(",".join))


CRON = st.one_of(
    st.tuples(
        _field(0, 59),
        _field(0, 23),
        st.one_of(st.just("*"), _field(1, 31)),
        st.one_of(st.just("*"), _field(1, 12, "jan MAR dec")),
        st.one_of(st.just("*"), _field(0, 7, "mon SUN fri-sun")),
    ).map(" ".join),
    st.sampled_from(sorted(SHORTHANDS)),
)
INSTANTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def _both(asked: Connection, kind: str, expression: str, zone: str, after: datetime) -> tuple:
    anchor = datetime(2025, 3, 1, 1, 2, 3, 456789, tzinfo=UTC)
    values = {"kind": kind, "expression": expression, "zone": zone, "after": after}
    ours = timing_of(kind, expression, zone, anchor).next_after(after)
    return ours, asked.execute(_NEXT, {**values, "anchor": anchor}).scalar()


@pytest.mark.test_all
@CASES
@given(CRON, st.sampled_from(ZONES), INSTANTS, st.integers(-7300, 7300), st.booleans())
def test_cron(
    asked: Connection, expression: str, zone: str, at: datetime, beside_s: int, near: bool
) -> None:
    try:
        written = check_cron(expression)
    except InvalidScheduleError:
        assume(False)
    if near:  # a clock change, if the year has one
        change = next_change(ZoneInfo(zone), at, at + timedelta(days=366))
        at = (change or at) + timedelta(seconds=beside_s)

    for _ in range(3):
        ours, theirs = _both(asked, "cron", written, zone, at)
        assert theirs == ours
        if ours is None:
            break
        at = ours


@pytest.mark.parametrize(
    ("expression", "after", "following"),
    [
        ("30 2 * * *", "2026-10-25T01:10Z", "2026-10-26T01:30Z"),  # half past two was there before
        ("30 2 * * *", "2026-10-25T00:10Z", "2026-10-25T00:30Z"),
        ("*/30 2 * * *", "2026-10-25T01:10Z", "2026-10-25T01:30Z"),
        ("30 2 * * *", "2026-03-29T00:10Z", "2026-03-29T01:00Z"),  # right after the gap
        ("*/30 2 * * *", "2026-03-29T00:10Z", "2026-03-30T00:00Z"),
    ],
)
def test_the_days_on_which_clocks_change(
    asked: Connection, expression: str, after: str, following: str
) -> None:
    wanted = datetime.fromisoformat(following)
    at = datetime.fromisoformat(after)

    assert _both(asked, "cron", expression, "Europe/Berlin", at) == (wanted, wanted)


@pytest.mark.test_all
@CASES
@given(st.integers(60_000, 10**10), INSTANTS)
def test_intervals(asked: Connection, every_ms: int, at: datetime) -> None:
    ours, theirs = _both(asked, "every", f"{every_ms}ms", "UTC", at)

    assert theirs == ours


def test_a_single_instant(asked: Connection) -> None:
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)

    assert _both(asked, "once", at.isoformat(), "UTC", at - timedelta(seconds=1)) == (at, at)
    assert _both(asked, "once", at.isoformat(), "UTC", at) == (None, None)


@pytest.mark.parametrize(
    ("kind", "expression", "other", "why"),
    [
        ("cron", "*/5 * * * * *", {}, "seconds"),
        ("cron", "0 3 L * *", {}, "L and #"),
        ("cron", "0 3 * * 5L", {}, "L and #"),
        ("cron", "0 3 * * mon#1", {}, "L and #"),
        ("cron", "0 3 * * *", {"zone": "CET"}, "zone CET"),
        ("cron", "0 3 * * *", {"zone": "Mars/Olympus"}, "cannot be read"),
        ("cron", "0 3 * * *", {"overlap": "replace"}, "replace"),
        ("cron", "0 3 * * *", {"missed": "fire_all(5000)"}, "fire_all"),
        ("cron", "0 3 * * *", {"options": '{"calendar": "de"}'}, "days off"),
        ("cron", "0 3 * * *", {"options": '{"strict_order": true}'}, "strict_order"),
        ("every", "30s", {}, "below a minute"),
        ("every", "90s", {"overlap": "skip", "options": '{"delay_s": 3}'}, None),
        ("cron", "0 3 * jul mon", {"zone": "Europe/Berlin", "missed": "fire_all(1000)"}, None),
    ],
)
def test_what_the_database_does_not_fire_says_why(
    asked: Connection, kind: str, expression: str, other: dict[str, str], why: str | None
) -> None:
    plain = {"zone": "UTC", "missed": "skip", "overlap": "allow", "options": "{}"}
    said = asked.execute(
        text("""SELECT task_why_not_fired(
            :kind, :expression, :zone, :missed, :overlap, CAST(:options AS jsonb))"""),
        {"kind": kind, "expression": expression, **plain, **other},
    ).scalar()

    assert said is None if why is None else why in said
