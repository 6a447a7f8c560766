"""What pg_cron can fire is read by it as by us; what it would read otherwise is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.cron import SHORTHANDS, check_cron, next_cron, zone_of
from tasks_app.domain.schedules.pg_cron import (
    offset_of,
    why_pg_cron_cannot_fire,
    written_for_pg_cron,
)
from tasks_app.domain.schedules.schedule import Schedule, plan_of
from tests.vixie import UnreadError, Vixie

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
UTC_ZONE = zone_of("UTC")
MINUTE = timedelta(minutes=1)


def schedule(options: dict[str, Any] | None = None, **when: Any) -> Schedule:
    when = {"cron": "0 3 * * *", **when}
    if not when["cron"]:
        del when["cron"]
    plan = plan_of(validate_task(NewTask("t", None, options or {}), None, 65536), when)  # type: ignore[arg-type]
    state = dict.fromkeys(
        (
            *("next_run_at", "queued_at", "last_run_at", "last_task_id", "last_outcome", "remark"),
            *("forgotten_until", "declared", "declared_in"),
        )
    )
    named = {"id": 1, "name": "s", "retired": False, "changed_by": "", "created_at": NOW}
    return Schedule(**vars(plan), **state, **named)


def _field(low: int, high: int, names: str = "") -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(
        lambda pair: f"{min(pair)}-{max(pair)}"
    )
    step = st.integers(1, 70).map(str)
    stepped = st.tuples(st.one_of(st.just("*"), number, span), step).map("/".join)
    named = [st.sampled_from(names.split())] if names else []
    term = st.one_of(st.just("*"), number, span, stepped, *named)
    return st.one_of(st.just("*"), term, st.lists(term, min_size=2, max_size=3).map(",".join))


CRON = st.one_of(
    st.tuples(
        _field(0, 59),
        _field(0, 23),
        _field(1, 31),
        _field(1, 12, "jan MAR dec feb-APR"),
        _field(0, 7, "mon SUN mon-FRI mon-fri/2 5-7 tue#2 5L"),
    ).map(" ".join),
    st.sampled_from(sorted(SHORTHANDS)),
)
MINUTES = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda at: at.replace(second=0, microsecond=0)
)


@settings(max_examples=300, deadline=None)
@given(CRON, MINUTES)
def test_an_expression_that_is_admitted_starts_by_pg_cron_when_we_fire(
    expression: str, start: datetime
) -> None:
    try:
        check_cron(expression)
    except InvalidScheduleError:
        assume(False)
    assume(why_pg_cron_cannot_fire(schedule(cron=expression), NOW, "GMT") is None)
    read = Vixie(written_for_pg_cron(expression))
    for _ in range(3):
        following = next_cron(expression, UTC_ZONE, start)
        assert following is not None
        assert read.starts(following)
        between = min((following - start) // MINUTE, 1500)
        assert not any(read.starts(start + n * MINUTE) for n in range(1, between))
        start = following


@pytest.mark.parametrize(
    ("expression", "term", "at"),
    [
        ("5/20 * * * *", "5/20", None),
        ("10-10/20 * * * *", "10-10/20", NOW + 30 * MINUTE),
        ("10-010/20 * * * *", "10-010/20", NOW + 30 * MINUTE),
        ("0 3 * * mon-1/2", "MON-1/2", datetime(2026, 3, 4, 3, tzinfo=UTC)),
        ("*/90 * * * *", "*/90", None),
        ("0 3 * * tue#2", "TUE#2", datetime(2026, 3, 3, 3, tzinfo=UTC)),
        ("0 3 * * 5L", "5L", None),
        ("0 3 L * *", "L", None),
        ("0 3 LW * *", "LW", None),
    ],
)
def test_what_pg_cron_reads_otherwise_or_not_at_all_is_refused(
    expression: str, term: str, at: datetime | None
) -> None:
    """``at``: when the two differ; None: it does not read it."""
    why = why_pg_cron_cannot_fire(schedule(cron=expression), NOW, "GMT")
    assert why is not None
    assert why.upper() == f"pg_cron does not read {term} as we do".upper()

    if at is None:
        with pytest.raises(UnreadError):
            Vixie(expression)
    else:
        due = next_cron(expression, UTC_ZONE, at - MINUTE) == at
        assert Vixie(expression).starts(at) != due


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ({"cron": "", "every": "15m"}, "it has no cron expression"),
        ({"cron": "", "at": NOW}, "it has no cron expression"),
        ({"cron": "0 0 3 * * *"}, "it has seconds"),
        ({"calendar": "de"}, "it has days off"),
        ({"overlap": "queue"}, "overlap=queue"),
        ({"overlap": "replace"}, "overlap=replace"),
        ({"missed": "fire_all(3)"}, "fire_all: pg_cron catches up with nothing"),
        ({"timezone": "Europe/Berlin"}, "the clocks of Europe/Berlin change"),
        ({"timezone": "Asia/Kolkata"}, "its zone is Asia/Kolkata, that of pg_cron is GMT"),
        ({"options": {"strict_order": True, "order_key": "o"}}, "its option strict_order"),
        ({"timezone": "Etc/UTC", "overlap": "skip", "missed": "skip", "jitter": "5s"}, None),
        ({"options": {"delay": 3, "unique_key": "u", "max_attempts": 2}}, None),
    ],
)
def test_what_is_left_to_beat_says_why(when: dict[str, Any], why: str | None) -> None:
    assert why_pg_cron_cannot_fire(schedule(**when), NOW, "GMT") == why


def test_a_row_that_bypassed_the_checks_says_why() -> None:
    broken = replace(schedule(), expression="0 25 * * *")
    assert str(why_pg_cron_cannot_fire(broken, NOW)).startswith("it cannot be read: cron")
    other = replace(schedule(), options=json.dumps({"colour": 1}))
    assert why_pg_cron_cannot_fire(other, NOW) == "its option colour"


def test_the_zone_of_pg_cron_may_be_another_one_of_the_same_clocks() -> None:
    india = schedule(timezone="Asia/Kolkata")
    assert why_pg_cron_cannot_fire(india, NOW, "Asia/Calcutta") is None
    assert why_pg_cron_cannot_fire(india, NOW) is None  # whoever calls it knows the zone
    assert why_pg_cron_cannot_fire(india, NOW, "Europe/Berlin") is not None
    assert why_pg_cron_cannot_fire(india, NOW, "no/zone") is not None
    assert offset_of("Asia/Kolkata", NOW) == timedelta(hours=5, minutes=30)
