"""What a beat fires when it takes over: what is due since the last one fired, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Engine, text

from tasks_app.broker.beat import PoolScheduler
from tasks_app.runtime.hooks import HOOKS
from tests.environment import NEWEST_CELERY

LONG_AGO = timedelta(hours=2)
EARLIER = "UPDATE task_lease SET notes = jsonb_build_object('hourly', now() - :ago)"
HOLDER = text("SELECT holder FROM task_lease WHERE name = 'scan' AND held_until > now()")
NOTED = text("SELECT notes ->> 'hourly' FROM task_lease WHERE name = 'scan'")


class Scheduler(PoolScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sent: list[str] = []
        super().__init__(*args, **kwargs)

    def send_task(self, name: str, *args: Any, **kwargs: Any) -> None:
        self.sent.append(name)

    def age(self, span: timedelta = LONG_AGO) -> None:
        """Let its entry look as if it had last fired, or been made, so long ago."""
        self.schedule["hourly"].last_run_at -= span

    def trust(self) -> None:
        """Renew no more, as in the second after a renewal."""
        self._leader.lead._renew_at = float("inf")

    def turn(self) -> list[str]:
        """Tick until nothing is due; return what was sent."""
        self.sent = []
        while self.tick() == 0:
            pass
        return self.sent


@pytest.fixture
def make(
    engine: Engine, database_url: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Scheduler]]:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", database_url)
    monkeypatch.setenv("TASKS_APP_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(HOOKS, "_subscribers", HOOKS._subscribers)  # a beat's stays to the end
    made: list[Scheduler] = []

    def start() -> Scheduler:
        app = Celery("t", broker="redis://127.0.0.1:1/0", set_as_current=False)
        app.conf.beat_schedule = {"hourly": {"task": "mine", "schedule": 3600.0}}
        made.append(Scheduler(app))
        return made[-1]

    yield start
    for scheduler in made:
        scheduler.close()
        scheduler._leader.database.dispose()


def ask(engine: Engine, statement: Any) -> Any:
    with engine.begin() as connection:
        return connection.execute(statement).scalar()


@pytest.mark.test_all
def test_a_standby_fires_nothing_and_not_again_what_the_leader_fired(make) -> None:
    first, second = make(), make()
    first.age()
    second.age()
    assert first.turn() == ["mine"]
    assert second.turn() == []
    first.close()
    assert second.turn() == []
    if NEWEST_CELERY:  # older ones look past the heap
        second.age()
        assert second.turn() == []  # in the heap it waits for its hour


def test_what_became_due_while_nobody_led_is_fired_by_the_next(make, engine: Engine) -> None:
    """The leader died before four o'clock; the next one started after."""
    first = make()
    first.age()
    first.turn()
    first.close()
    with engine.begin() as connection:
        connection.execute(text(EARLIER), {"ago": LONG_AGO})
    second = make()
    assert second.turn() == ["mine"]


def test_a_leader_that_lost_the_lease_unawares_fires_nothing(make, engine: Engine) -> None:
    first = make()
    first.turn()
    first.age()
    first._heap = None
    first.trust()
    with engine.begin() as connection:
        connection.execute(text("UPDATE task_lease SET token = gen_random_uuid()"))
    assert first.turn() == []
    assert ask(engine, NOTED) is None


@pytest.mark.test_all
def test_a_leader_without_its_database_fires_rather_twice_than_never(
    make, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make()
    first.turn()
    first.age()
    first._heap = None
    first.trust()
    with engine.begin() as connection:
        connection.execute(text("LOCK task_lease"))  # nobody answers within its second
        assert first.turn() == ["mine"]


@pytest.mark.parametrize("nonsense", ["", "yesterday", "7"])
def test_a_note_that_is_none_is_passed_over(make, engine: Engine, nonsense: str) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO task_lease (name, holder, token, rank, notes) VALUES ('scan', 'x',"
                " gen_random_uuid(), 2, jsonb_build_object('hourly', CAST(:note AS text)))"
            ),
            {"note": nonsense},
        )
    assert make().turn() == []


def test_who_ends_in_good_order_holds_nothing(make, engine: Engine) -> None:
    first = make()
    first.turn()
    assert ask(engine, HOLDER).startswith("beat ")
    first.close()
    assert ask(engine, HOLDER) is None
