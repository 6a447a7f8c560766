"""One process looks at a time; its thread runs only where a channel is configured."""

from __future__ import annotations

import threading
from datetime import timedelta
from uuid import uuid4

from sqlalchemy import Connection, text

from tasks_app import Settings
from tasks_app.domain.alerts.alert import Alert
from tasks_app.domain.tasks.run import Cause, ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.alerts import alerts
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import ALERTS, Rank
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.alerts import watcher as module
from tasks_app.runtime.alerts.channels import to_webhook
from tasks_app.runtime.alerts.watcher import Watcher
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.duties import Duties
from tests.factory import claimed_task, ending
from tests.runtime.alerts.hook import Hook
from tests.waiting import until

THREAD = "tasks_app alerts"
AGE = text("UPDATE task_alert SET sending_until = '-infinity' WHERE opened_sent_at IS NULL")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD]


def a_watcher(database: Database, hook: Hook, settings: Settings, **options: object) -> Watcher:
    return Watcher(settings, database, "w", to={"webhook": to_webhook(hook.url)}, **options)


def test_the_second_one_finds_that_somebody_looked(database: Database, hook: Hook) -> None:
    settings = Settings()
    first, second = (a_watcher(database, hook, settings) for _ in range(2))
    first.watch_once()
    with database.begin() as connection:
        done = leader_lease.read(connection, ALERTS)
    second.watch_once()

    with database.begin() as connection:
        again = leader_lease.read(connection, ALERTS)
    assert done is not None
    assert again is not None
    assert again.idle >= done.idle  # nobody did it again
    assert again.free


def test_who_lost_the_lease_writes_nothing(database: Database, hook: Hook, monkeypatch) -> None:
    settings = Settings()

    def slow_look(*_: object) -> tuple[list[Alert], list[str]]:
        with database.begin() as connection:
            connection.execute(text("UPDATE task_lease SET held_until = NULL"))
            leader_lease.hold(
                connection,
                ALERTS,
                holder="other",
                token=uuid4(),
                rank=Rank.STANDBY,
                ttl=timedelta(minutes=1),
            )
        return [Alert("scan", "f", "a")], []

    monkeypatch.setattr(module, "look", slow_look)
    a_watcher(database, hook, settings).watch_once()

    with database.begin() as connection:
        assert alerts.open_keys(connection) == set()


def test_errors_are_told_by_cause_and_without_their_message(database: Database, hook: Hook) -> None:
    with database.begin() as connection:
        for number in range(2):
            _fail(connection, claimed_task(connection), Cause("ValueError", f"card {number}"))
    watcher = a_watcher(database, hook, Settings(alert_errors=2), every=timedelta(0))

    for _ in range(2):
        watcher.watch_once()
        with database.begin() as connection:
            connection.execute(AGE)  # none lives, for long enough

    keys = [key.partition(":")[0] for _, key in hook.said]
    assert keys.count("new-error") == keys.count("error-burst") == 1
    assert keys.count("workers") == 1
    assert "card" not in str(hook.got)


def test_many_new_errors_at_once_are_one_message_more(database: Database, hook: Hook) -> None:
    with database.begin() as connection:
        for number in range(8):
            _fail(connection, claimed_task(connection), Cause(f"Error{number}", "m"))
    a_watcher(database, hook, Settings()).watch_once()

    news = [each for each in hook.got if each["key"].startswith("new-error:")]
    assert len(news) == 6
    assert news[-1]["fact"] == "3 more new errors were seen at once"


def test_a_leader_watches_without_being_told_to(
    database: Database, database_url: str, hook: Hook
) -> None:
    duties = Duties(Settings(database_url=database_url, alert_webhook=hook.url), database, "l")
    duties.look()
    try:
        until(lambda: _opened(database) == {"workers"})
        with database.begin() as connection:
            connection.execute(AGE)
    finally:
        duties.stop()
    assert threads() == []


def test_without_a_channel_nobody_watches(database: Database, database_url: str) -> None:
    duties = Duties(Settings(database_url=database_url), database, "l")
    duties.look()

    assert threads() == []


def _opened(database: Database) -> set[str]:
    with database.begin() as connection:
        return alerts.open_keys(connection)


def _fail(connection: Connection, task: ClaimedTask, cause: Cause) -> None:
    settle_one(connection, ending(task, Event.FAIL, failures=1, cause=cause))
