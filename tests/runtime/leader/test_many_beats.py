"""Promise P8: five beats, 10,000 instants, and again and again one stopped in its transaction."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import datetime, timedelta
from random import Random

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.domain.schedules.timing import instants_between
from tasks_app.runtime.db import database
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.schedules.scheduler import Scheduler
from tests.clock import until
from tests.runtime.bench import Bench
from tests.runtime.timetable import NOON, S, scheduled, standing, tasks

pytestmark = pytest.mark.test_all

TICK = timedelta(microseconds=1)
BEATS = 5
STOPS = 6
INSTANTS = 10_000
PATIENCE_MS = "700"
"""How long the server suffers a transaction that stands still; five seconds in earnest."""


class Clock:
    """The time of all beats; it only goes on when the test says so."""

    def __init__(self) -> None:
        self.now = NOON

    def move(self, span: timedelta) -> None:
        self.now += span


class Stop:
    """A beat's stop, and its end."""

    def __init__(self, bench: Bench) -> None:
        self.reached, self.over = threading.Event(), bench.event()


class Beat(threading.Thread):
    """One that fires as fast as it can, until it is told to end."""

    def __init__(self, bench: Bench, clock: Clock, ends: threading.Event) -> None:
        super().__init__(daemon=True)
        self._database = Database(bench.url)
        self._scheduler = Scheduler(self._database)
        self._clock, self._ends = clock, ends
        self.looked_at = self.lost = 0
        self.stop: Stop | None = None
        event.listen(self._database.engine, "after_cursor_execute", self._note)
        event.listen(self._database.engine, "commit", self._pause)

    def run(self) -> None:
        while not self._ends.wait(0.002):
            try:
                self.looked_at += self._scheduler.run_once(now=self._clock.now)
            except DBAPIError:
                self.lost += 1
        self._database.dispose()

    def _note(self, connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if "INSERT INTO task_schedule_fire" in statement:
            connection.info["fired"] = True

    def _pause(self, connection: Connection) -> None:
        """Stop where all is written and nothing committed."""
        if connection.info.pop("fired", False) and self.stop is not None:
            stop, self.stop = self.stop, None
            stop.reached.set()
            assert stop.over.wait(30)


def expected(bench: Bench, until_: datetime) -> Counter:
    found: Counter = Counter()
    for name in NAMES:
        schedule = standing(bench, name)
        for at in instants_between(schedule.timing, NOON + S, until_ + TICK):
            found[schedule.id, at.isoformat()] += 1
    return found


def made(bench: Bench) -> Counter:
    return Counter((task.schedule_id, task.fire_at) for task in tasks(bench))


NAMES = ("every1", "every2", "every3", "every4", "every5", "cron", "berlin")


def arrange(bench: Bench) -> None:
    everything = {"missed": "fire_all(10000)"}
    for n in range(1, 6):
        scheduled(bench, f"every{n}", every=n, **everything)
    scheduled(bench, "cron", cron="*/2 * * * * *", **everything)
    scheduled(bench, "berlin", cron="* * * * *", timezone="Europe/Berlin", **everything)


@pytest.mark.timeout(300)  # it is a matter of seconds where nothing else runs
def test_many_beats_make_each_task_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(database.OURS, "idle_in_transaction_session_timeout", PATIENCE_MS)
    rng, clock, ends = Random(8), Clock(), threading.Event()
    bench.at_end(ends.set)
    arrange(bench)
    beats = [Beat(bench, clock, ends) for _ in range(BEATS)]
    for beat in beats:
        beat.start()

    def caught_up() -> bool:
        return all(_is_beyond(standing(bench, name), clock.now) for name in NAMES)

    stops = 0
    while stops < STOPS or sum(expected(bench, clock.now).values()) < INSTANTS:
        stop = beats[rng.randrange(BEATS)].stop = Stop(bench)
        clock.move(rng.uniform(60, 600) * S)
        until(caught_up, 60, "the others' taking over")  # if one stands in its transaction, too
        stops += stop.reached.is_set()
        clock.move(rng.uniform(1, 90) * S)
        stop.over.set()
        until(caught_up, 60, "catching up")
    ends.set()
    for beat in beats:
        beat.join(30)

    wanted, found = expected(bench, clock.now), made(bench)
    assert sum(wanted.values()) >= INSTANTS
    assert [key for key, number in found.items() if number > 1] == []
    assert wanted - found == Counter()
    assert found - wanted == Counter()
    assert sum(beat.looked_at > 0 for beat in beats) == BEATS
    assert sum(beat.lost for beat in beats) >= STOPS  # what they had written was taken from them


def _is_beyond(schedule: Schedule, now: datetime) -> bool:
    return schedule.next_run_at is not None and schedule.next_run_at > now
