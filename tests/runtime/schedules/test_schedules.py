"""What operators and applications do with schedules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy.orm import Session

from tasks_app import (
    InvalidScheduleError,
    InvalidTaskError,
    Schedule,
    backfill_schedule,
    change_schedule,
    create_schedule,
    disable_schedule,
    enable_schedule,
    fire_all,
    get_schedule,
    list_schedules,
    preview,
    preview_schedule,
    remove_calendar,
    remove_schedule,
    set_calendar,
)
from tasks_app.domain.schedules.days_off import DaysOff, OnDayOff
from tasks_app.pool import scheduling
from tasks_app.pool import scheduling as rows
from tasks_app.runtime.handlers.registry import HANDLERS, Registry, handler
from tasks_app.runtime.schedules.preview import preview_change
from tests.factory import some
from tests.runtime.bench import Bench
from tests.runtime.timetable import NOON, S, fires, scheduled, scheduler, standing, tasks

M, H, D = 60 * S, timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def session(bench: Bench) -> Any:
    with Session(bench.engine) as session:
        yield session


def test_a_schedule_exists_if_the_transaction_commits(bench: Bench, session: Session) -> None:
    made = create_schedule(
        session, "s", "t", {"n": 1}, cron="0 3 * * *", timezone="Asia/Tokyo", missed=fire_all(5)
    )
    assert get_schedule(session, "s") == made
    session.rollback()
    assert get_schedule(session, "s") is None


def test_the_life_of_a_schedule(bench: Bench, session: Session) -> None:
    create_schedule(session, "s", "t", every="10m", queue="q", retry="5s,10s")
    assert [each.name for each in list_schedules(session)] == ["s"]

    assert disable_schedule(session, "s")
    off = some(get_schedule(session, "s"))
    assert enable_schedule(session, "s")
    on = some(get_schedule(session, "s"))

    assert (off.enabled, off.next_run_at, on.enabled) == (False, None, True)
    assert on.next_run_at is not None
    assert remove_schedule(session, "s")
    assert not remove_schedule(session, "s")
    assert not enable_schedule(session, "s")
    assert not disable_schedule(session, "s")


def test_options_of_the_task_reach_the_task(bench: Bench, session: Session) -> None:
    create_schedule(
        session,
        "s",
        "t",
        {"n": 1},
        at=NOON + 10_000 * D,
        queue="q",
        priority=0,
        retry="5s,10s",
        biz_key="b",
        limit_key=["bank:acme", "tenant:7"],
        weight=7,
        locks="account:7",
        timeout=7,
        headers={"mine": 1},
        wait_first=True,
    )
    session.commit()
    scheduler(bench).run_once(now=NOON + 10_000 * D)

    row = bench.sql("SELECT to_jsonb(p) FROM task_pending p")

    wanted = {"queue": "q", "priority": 0, "retry": "5s,10s", "biz_key": "b", "retry_level": 1}
    wanted |= {"limit_key": "bank:acme", "more_limit_keys": ["tenant:7"], "weight": 7}
    wanted |= {"locks": {"exclusive": ["account:7"]}}
    assert wanted.items() <= row.items()
    assert (row["payload"], row["headers"]["mine"], row["timeout_ms"]) == ({"n": 1}, 1, 7000)
    assert datetime.fromisoformat(row["due_at"]) == NOON + 10_000 * D + 5 * S


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at": NOON}, "when never comes"),
        ({"every": 60, "ends_at": NOON}, "when never comes"),
        ({"every": 60, "starts_at": NOON + D, "ends_at": NOON}, "ends_at is before starts_at"),
        ({"every": 60, "starts_at": NOON.replace(tzinfo=None)}, "starts_at has no time zone"),
        ({"every": 60, "queue": "no queue"}, "queue"),
        ({"every": 60, "expires_at": NOON}, "expires_at is one instant"),
        ({"every": 60, "delay": 5, "run_at": NOON}, "delay"),
        ({"every": 60, "colour": "red"}, "colour is unknown"),
    ],
)
def test_what_makes_no_sense_is_refused(session: Session, options: dict, said: str) -> None:
    with pytest.raises(InvalidTaskError, match=said):
        create_schedule(session, "s", "t", **options)
    assert list_schedules(session) == []


def test_a_name_is_given_once(session: Session) -> None:
    create_schedule(session, "s", "t", every=60)
    with pytest.raises(InvalidScheduleError, match="name 's' is taken"):
        create_schedule(session, "s", "t", every=60)
    with pytest.raises(InvalidTaskError, match="name is 'a b'"):
        create_schedule(session, "a b", "t", every=60)


def test_a_change_touches_what_is_given(session: Session) -> None:
    create_schedule(
        session, "s", "t", {"n": 1}, cron="0 3 * * *", timezone="Asia/Tokyo", priority=0
    )

    changed = some(change_schedule(session, "s", overlap="skip", queue="q"))
    assert (changed.overlap, changed.queue, changed.priority) == ("skip", "q", 0)
    assert (changed.expression, changed.zone, changed.payload) == (
        "0 3 * * *",
        "Asia/Tokyo",
        '{"n": 1}',
    )
    timed = some(change_schedule(session, "s", cron="0 4 * * *", payload={"n": 2}))
    assert (timed.expression, timed.zone, timed.payload) == ("0 4 * * *", "Asia/Tokyo", '{"n": 2}')
    assert timed.next_run_at != changed.next_run_at
    every = some(change_schedule(session, "s", every="1h"))
    assert (every.kind, every.expression, every.overlap) == ("every", "1h", "skip")
    assert change_schedule(session, "nobody", queue="q") is None
    with pytest.raises(InvalidScheduleError, match=r"options\.retry stays"):
        change_schedule(session, "s", retry="5s")


def test_a_broken_one_is_mended_by_a_change(bench: Bench, session: Session) -> None:
    scheduled(bench, cron="* * * * *")
    bench.sql("UPDATE task_schedule SET expression = 'x'")
    scheduler(bench).run_once()
    assert standing(bench).last_outcome == "broken"
    changed = some(change_schedule(session, "s", cron="* * * * *"))
    assert changed.remark is None
    assert changed.next_run_at is not None


def test_a_preview_of_what_is_not_there_yet(session: Session) -> None:
    start = datetime(2030, 3, 30, 12, tzinfo=UTC)
    shown = preview(session, 3, cron="30 2 * * *", timezone="Europe/Berlin", starts_at=start)
    assert shown.words == "At 02:30 every day, by the clocks of Europe/Berlin"
    assert [f"{at:%d %H:%M}" for at in shown.instants] == ["31 01:00", "01 00:30", "02 00:30"]
    with pytest.raises(InvalidScheduleError):
        preview(session, 3, cron="nonsense")


def test_a_preview_of_a_schedule_is_what_it_then_fires(bench: Bench, session: Session) -> None:
    first = datetime.now(UTC).replace(microsecond=0) + D
    scheduled(bench, every="90s", starts_at=first, ends_at=first + 5 * M, now=first - D)
    shown = some(preview_schedule(session, "s", 9))
    session.rollback()
    for n in range(20):
        scheduler(bench).run_once(now=first + n * 30 * S)
    assert [task.fire_at for task in tasks(bench)] == [at.isoformat() for at in shown.instants]
    assert len(shown.instants) == 4
    assert "until" in shown.words
    assert preview_schedule(session, "nobody") is None


# -- backfill
def backfill(bench: Bench, start: datetime, end: datetime, now: datetime = NOON + D) -> list:
    return some(bench.do(backfill_schedule, "s", start, end, now=now))


def test_the_past_is_filled_where_nothing_was_made_and_never_twice(bench: Bench) -> None:
    scheduled(bench, cron="0 * * * *", missed="skip")
    scheduler(bench).run_once(now=NOON + 2 * H)
    made = backfill(bench, NOON, NOON + 4 * H)
    assert len(made) == 3
    assert [at for at, *_ in fires(bench)] == [0, 3600, 7200, 10800]
    assert backfill(bench, NOON, NOON + 4 * H) == []
    assert len({task.fire_at for task in tasks(bench)}) == len(tasks(bench)) == 4


def test_what_was_filled_is_not_fired_by_a_leader_of_yesterday(bench: Bench) -> None:
    scheduled(bench, cron="0 * * * *", missed="fire_all")
    backfill(bench, NOON + H, NOON + 3 * H)
    scheduler(bench).run_once(now=NOON + 3 * H)
    assert len({task.fire_at for task in tasks(bench)}) == len(tasks(bench)) == 3


def test_skipped_instants_can_be_filled(bench: Bench) -> None:
    scheduled(bench, overlap="skip")
    for n in (1, 2):
        scheduler(bench).run_once(now=NOON + n * M)
    assert len(backfill(bench, NOON + S, NOON + 3 * M)) == 1
    assert fires(bench) == [(60, "made", True), (120, "made", True)]


def test_a_range_that_cannot_be_is_refused(bench: Bench, session: Session) -> None:
    scheduled(bench, every=1, starts_at=NOON)
    for start, end, said in (
        (NOON, NOON + 2 * D, "end is not past"),
        (NOON + H, NOON, "end is not past"),
        (NOON, NOON + 23 * H, "end is too far away"),
        (NOON.replace(tzinfo=None), NOON, "start has no time zone"),
    ):
        with pytest.raises(InvalidScheduleError, match=said):
            backfill(bench, start, end)
    assert tasks(bench) == []
    assert backfill_schedule(session, "nobody", NOON, NOON) is None


def test_what_is_forgotten_is_not_filled_for_it_may_have_been_made(bench: Bench) -> None:
    scheduled(bench, cron="0 * * * *")
    for n in (1, 2, 3):
        scheduler(bench).run_once(now=NOON + n * H)
    bench.do(scheduling.prune_fires, H, 10, now=NOON + 4 * H)
    with pytest.raises(InvalidScheduleError, match="later than 2026-01-01T14:00"):
        backfill(bench, NOON, NOON + 4 * H)
    assert backfill(bench, NOON + 2 * H + S, NOON + 4 * H) == []


def test_a_backfill_stays_within_start_and_end(bench: Bench) -> None:
    scheduled(bench, cron="0 * * * *", starts_at=NOON + 2 * H, ends_at=NOON + 3 * H)
    assert len(backfill(bench, NOON, NOON + 9 * H)) == 2


def test_a_change_is_previewed_as_it_would_be(session: Session) -> None:
    over = {"starts_at": NOON, "ends_at": NOON + 2 * H, "enabled": False}
    create_schedule(session, "over", "t", every="1h", **over)
    shown = some(preview_change(session, "over", 5, every="30m"))
    assert shown.instants == [], "its end stays"
    create_schedule(session, "s", "t", every="1h")
    shown = some(preview_change(session, "s", 3, cron="0 6 * * mon", timezone="Asia/Tokyo"))
    assert "Asia/Tokyo" in shown.words
    assert preview_change(session, "nobody", every="1h") is None
    with pytest.raises(InvalidTaskError, match="every"):
        preview_change(session, "s", every="soon")
    unchanged = some(get_schedule(session, "s"))
    assert unchanged.expression == "1h"


def _takes(payload_type: type) -> Any:
    def takes(ctx: Any, payload: Any) -> None: ...

    takes.__annotations__["payload"] = payload_type
    return takes


def test_a_rule_is_changed_whatever_payload_its_handler_wants(session: Session) -> None:
    class Wanted(BaseModel):
        order: int

    create_schedule(session, "s", "typed.of_schedule", {"order": 1}, every="1h")
    registry = Registry()
    handler("typed.of_schedule", registry=registry)(_takes(Wanted))
    HANDLERS.specs.update(registry.specs)
    try:
        changed = some(change_schedule(session, "s", every="2h"))
    finally:
        del HANDLERS.specs["typed.of_schedule"]
    assert (changed.expression, changed.payload) == ("2h", '{"order": 1}')


DAY = timedelta(days=1)
EVE, XMAS = date(2030, 12, 24), date(2030, 12, 25)
"""Tuesday and Wednesday."""
START = datetime(2030, 12, 23, tzinfo=UTC)


def made(holidays: Session, **options: Any) -> Schedule:
    given = {"cron": "0 7 * * *", "starts_at": START, "calendar": "de", **options}
    return create_schedule(holidays, "s", "t", **given)


def days(holidays: Session, number: int = 3) -> list[int]:
    shown = some(preview_schedule(holidays, "s", number))
    return [at.day for at in shown.instants]


@pytest.fixture
def holidays(bench: Bench) -> Iterator[Session]:
    """A session in whose transaction there is a calendar."""
    with Session(bench.engine) as session:
        set_calendar(session, "de", [EVE, XMAS])
        yield session


def test_they_are_left_out(holidays: Session) -> None:
    schedule = made(holidays)
    assert schedule.days_off == DaysOff("de", OnDayOff.SKIP)
    assert days(holidays) == [23, 26, 27]
    assert schedule.explain().startswith(
        "At 07:00 every day, by the clocks of UTC, not on days of de, from 2030-12-23"
    )


def test_or_moved(holidays: Session) -> None:
    made(holidays, cron="0 7 * * tue,fri", on_day_off="next_working_day")
    assert days(holidays) == [26, 27, 31]


def test_the_first_instant_is_no_day_off(holidays: Session) -> None:
    assert made(holidays, starts_at=START + DAY).next_run_at == datetime(
        2030, 12, 26, 7, tzinfo=UTC
    )


@pytest.mark.parametrize("moved", [{}, {"on_day_off": "next_working_day"}])
def test_what_fires_is_what_the_preview_says(
    bench: Bench, holidays: Session, moved: dict[str, str]
) -> None:
    """Two instants that meet make one task."""
    holidays.commit()
    scheduled(bench, cron="0 7 * * *", calendar="de", now=START, **moved)
    for hours in range(0, 96, 6):
        scheduler(bench).run_once(now=START + timedelta(hours=hours))
    assert [task.fire_at[:10] for task in tasks(bench)] == ["2030-12-23", "2030-12-26"]


class TestAChange:
    def test_of_a_calendars_days_moves_the_next(self, holidays: Session) -> None:
        made(holidays, starts_at=START + DAY)
        set_calendar(holidays, "de", [EVE])
        schedule = some(get_schedule(holidays, "s"))
        assert schedule.next_run_at == datetime(2030, 12, 25, 7, tzinfo=UTC)

    def test_of_a_calendar_leaves_what_is_due(self, holidays: Session) -> None:
        schedule = made(holidays)
        late = datetime(2030, 12, 24, tzinfo=UTC)
        rows.recompute_next_fire(holidays.connection(), "de", now=late)
        again = some(get_schedule(holidays, "s"))
        assert again.next_run_at == schedule.next_run_at == datetime(2030, 12, 23, 7, tzinfo=UTC)

    def test_of_the_schedule_adds_and_removes_days_off(self, holidays: Session) -> None:
        made(holidays, calendar=None, retry="5s", headers={"mine": 1})
        assert days(holidays) == [23, 24, 25]
        change_schedule(holidays, "s", calendar="de", on_day_off="next_working_day")
        assert days(holidays) == [23, 26, 27]
        again = some(change_schedule(holidays, "s", priority=1))
        assert again.days_off == DaysOff("de", OnDayOff.NEXT_WORKING_DAY)
        last = some(change_schedule(holidays, "s", calendar=""))
        assert last.days_off is None
        assert last.options == '{"retry": "5s", "headers": {"mine": 1}, "max_attempts": 2}'
        assert days(holidays) == [23, 24, 25]

    def test_moves_the_next_instant(self, holidays: Session) -> None:
        made(holidays, calendar=None, starts_at=START + DAY)
        changed = some(change_schedule(holidays, "s", calendar="de"))
        assert changed.next_run_at == datetime(2030, 12, 26, 7, tzinfo=UTC)

    def test_is_shown_before(self, holidays: Session) -> None:
        made(holidays, calendar=None)
        shown = some(preview_change(holidays, "s", 2, calendar="de"))
        assert [at.day for at in shown.instants] == [23, 26]


def test_a_preview_of_what_is_not_there_yet_in_days_off(holidays: Session) -> None:
    shown = preview(holidays, 2, cron="0 7 * * *", starts_at=START, calendar="de")
    assert [at.day for at in shown.instants] == [23, 26]


def test_a_calendar_that_a_schedule_names_stays(holidays: Session) -> None:
    made(holidays)
    with pytest.raises(InvalidTaskError, match="is named by schedule s"):
        remove_calendar(holidays, "de")
    change_schedule(holidays, "s", calendar="")
    assert remove_calendar(holidays, "de")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"calendar": "fr"}, "calendar 'fr' does not exist. Allowed: de"),
        ({"calendar": None, "on_day_off": "skip"}, "on_day_off is given without a calendar"),
        ({"on_day_off": "never"}, "on_day_off is 'never'"),
        ({"calendar": 7}, "calendar is 7"),
        (
            {"cron": None, "every": "1d", "on_day_off": "next_working_day"},
            "on_day_off cannot move instants of every=",
        ),
        ({"cron": None, "at": datetime(2030, 12, 24, 7, tzinfo=UTC)}, "when never comes"),
    ],
)
def test_days_off_refuse_nonsense(holidays: Session, options: dict, said: str) -> None:
    with pytest.raises(InvalidScheduleError, match=said):
        made(holidays, **options)
    assert get_schedule(holidays, "s") is None


def test_an_unchecked_row_is_broken_then_mended(bench: Bench, holidays: Session) -> None:
    holidays.commit()
    scheduled(bench, cron="0 7 * * *", calendar="de", on_day_off="skip", now=START)
    bench.sql('UPDATE task_schedule SET options = options || \'{"on_day_off": "x"}\'')
    scheduler(bench).run_once(now=START + DAY)
    broken = standing(bench)
    assert (broken.last_outcome, broken.remark) == (
        "broken",
        "on_day_off is 'x'. Allowed: skip, next_working_day.",
    )

    mended = some(change_schedule(holidays, "s", on_day_off="next_working_day"))

    assert (mended.remark, mended.days_off) == (None, DaysOff("de", OnDayOff.NEXT_WORKING_DAY))
    assert mended.next_run_at is not None
