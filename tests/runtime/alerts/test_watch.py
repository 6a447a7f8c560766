"""Watchers: one looks and one tells; what is over is told to those who know that it began."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app import Settings
from tasks_app.domain.alerts import Alert
from tasks_app.domain.tasks.run import Cause, ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool import alerts
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tables import database_now
from tasks_app.runtime.alerts import watcher as module
from tasks_app.runtime.alerts.channels import InTime, to_log, to_webhook
from tasks_app.runtime.alerts.watcher import Watcher, deliver, record
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.leader import Duties
from tasks_app.runtime.leader.maintainer import Maintainer
from tests.clock import until
from tests.factory import claimed_task, do, ending, run_sql, some
from tests.runtime.alerts.conftest import Hook

DEAD = Alert("scan", "the last one was 5 min ago", "Start beat.")
AGAIN = text("UPDATE task_alert SET sending_until = '-infinity'")
WAIT = text("SELECT extract(epoch FROM sending_until - statement_timestamp()) FROM task_alert")


def tell(engine: Engine, *found: Alert) -> None:
    do(engine, record, found, [])


def post(engine: Engine, hook: Hook) -> int:
    return deliver(engine, {"log": to_log, "webhook": to_webhook(hook.url)})


def again(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(AGAIN)


def test_of_two_watchers_one_sends(engine: Engine, hook: Hook) -> None:
    with engine.connect() as one, engine.connect() as two:
        with one.begin():
            assert alerts.open_alert(one, DEAD)
        with two.begin():
            assert not alerts.open_alert(two, DEAD)
        with one.begin():
            taken = some(alerts.take_notice(one))
            with two.begin():
                assert alerts.take_notice(two) is None  # while the first has not committed
        with two.begin():
            assert alerts.take_notice(two) is None  # nor after
        with one.begin():
            assert alerts.mark_sent(one, taken, ["webhook"], whole=True)
    assert post(engine, hook) == 0


def test_what_a_dead_sender_left_is_sent_again(engine: Engine, hook: Hook) -> None:
    tell(engine, DEAD)
    do(engine, alerts.take_notice, timedelta(0))
    assert post(engine, hook) == 1
    assert hook.said == [("firing", "scan")]


def test_of_what_a_dead_sender_perhaps_sent_the_end_is_told(engine: Engine, hook: Hook) -> None:
    tell(engine, DEAD)
    do(engine, alerts.take_notice)
    tell(engine)
    assert post(engine, hook) == 0  # it may be at work
    again(engine)
    assert post(engine, hook) == 1
    assert post(engine, hook) == 0
    assert hook.said == [("resolved", "scan")]


def test_a_sender_that_is_slow_lets_the_end_wait(engine: Engine, hook: Hook) -> None:
    tell(engine, DEAD)
    notice = some(do(engine, alerts.take_notice))
    tell(engine)
    do(engine, alerts.mark_sent, notice, ["log", "webhook"], whole=True)
    assert post(engine, hook) == 1
    assert hook.said == [("resolved", "scan")]


def test_it_is_told_that_it_is_over(engine: Engine, hook: Hook) -> None:
    for found in ([DEAD], [DEAD], [], []):
        tell(engine, *found)
        post(engine, hook)
    assert hook.said == [("firing", "scan"), ("resolved", "scan")]


def test_what_does_not_last_is_not_told(engine: Engine, hook: Hook) -> None:
    tell(engine, Alert("workers", "none", "Start one.", timedelta(hours=1)))
    assert post(engine, hook) == 0
    tell(engine)
    assert post(engine, hook) == 0
    assert hook.said == []


def test_what_lasts_is_told(engine: Engine, hook: Hook) -> None:
    tell(engine, Alert("workers", "none", "Start one.", timedelta(hours=1)))
    again(engine)
    assert post(engine, hook) == 1


def test_what_could_not_be_looked_at_is_not_over(engine: Engine) -> None:
    tell(engine, DEAD)
    with engine.begin() as connection:
        record(connection, [], ["scan"])
        assert alerts.open_keys(connection) == {"scan"}


def test_a_refusal_is_logged_without_the_secret(
    engine: Engine, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.status = 500
    tell(engine, DEAD)
    assert post(engine, hook) == 0
    assert f"http://127.0.0.1:{hook.server_port}: HTTPError 500" in caplog.text
    assert "token" not in caplog.text


def test_each_refusal_doubles_the_wait(engine: Engine, hook: Hook) -> None:
    hook.status = 500
    tell(engine, DEAD)
    waits = []
    for _ in range(9):
        post(engine, hook)
        with engine.begin() as connection:
            waits.append(round(float(connection.execute(WAIT).scalar_one()), -1))
        again(engine)
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_who_took_it_does_not_get_it_again(engine: Engine, hook: Hook) -> None:
    mailed: list[str] = []

    def mail(message: dict) -> bool:
        mailed.append(message["status"])
        return True

    channels = {"mail": mail, "webhook": to_webhook(hook.url)}
    hook.status = 500
    tell(engine, DEAD)
    assert deliver(engine, channels) == 0
    hook.status = 200
    again(engine)

    assert deliver(engine, channels) == 1
    assert mailed == ["firing"]
    assert hook.said == [("firing", "scan")] * 2  # the first was refused


def test_alerts_that_are_over_are_kept_for_a_time(database: Database) -> None:
    ages = "UPDATE task_alert SET closed_at = now() - interval '9 days' WHERE key <> 'open'"
    maintainer = Maintainer(database, settings=Settings(keep_alerts="10d"))
    with database.begin() as connection:
        for key in ("open", "over"):
            alerts.open_alert(connection, Alert(key, "f", "a"))
        connection.execute(text(ages))
    maintainer.run_once()
    with database.begin() as connection:
        kept = [row.key for row in alerts.find_alerts(connection)]
    Maintainer(database, settings=Settings(keep_alerts="8d")).run_once()

    with database.begin() as connection:
        assert (kept, [row.key for row in alerts.find_alerts(connection)]) == (
            ["open", "over"],
            ["open"],
        )


def test_a_channel_that_refuses_is_asked_once_a_time(engine: Engine, hook: Hook) -> None:
    mailed: list[str] = []

    def mail(message: dict) -> bool:
        mailed.append(message["key"])
        return True

    hook.status = 500
    tell(engine, *(Alert(key, "f", "a") for key in "abc"))
    deliver(engine, {"webhook": to_webhook(hook.url), "mail": mail})
    assert (mailed, len(hook.got)) == (["a", "b", "c"], 1)


def test_of_its_end_learns_who_learned_of_its_beginning(engine: Engine, hook: Hook) -> None:
    mailed: list[str] = []

    def mail(message: dict) -> bool:
        mailed.append(message["status"])
        return True

    hook.status = 500
    tell(engine, DEAD)
    deliver(engine, {"mail": mail, "webhook": to_webhook(hook.url)})
    hook.status = 200
    tell(engine)
    deliver(engine, {"mail": mail, "webhook": to_webhook(hook.url)})

    assert mailed == ["firing", "resolved"]
    assert hook.said == [("firing", "scan")]  # which it had refused


THREAD = "tasks_app alerts"
AGE = text("UPDATE task_alert SET sending_until = '-infinity' WHERE opened_sent_at IS NULL")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD]


def looked(database: Database) -> datetime | None:
    with database.begin() as connection:
        return connection.execute(text("SELECT done_at FROM task_alert_look")).scalar()


def a_watcher(database: Database, hook: Hook, settings: Settings, **options: object) -> Watcher:
    return Watcher(settings, database, "w", to={"webhook": to_webhook(hook.url)}, **options)


def test_the_second_one_finds_that_somebody_looked(database: Database, hook: Hook) -> None:
    first, second = (a_watcher(database, hook, Settings()) for _ in range(2))
    first.watch_once()
    done = looked(database)
    second.watch_once()
    assert looked(database) == done is not None


def test_a_turn_ends_by_itself(connection: Connection) -> None:
    now, minute = database_now(connection), timedelta(minutes=1)
    one, two = uuid4(), uuid4()

    def takes(token: UUID, after: timedelta) -> bool:
        every = timedelta(seconds=10)
        return alerts.begin_check(
            connection, holder="w", token=token, every=every, ttl=minute, now=now + after
        )

    assert takes(one, timedelta(0))
    assert not takes(two, minute / 2)
    assert takes(two, minute)
    assert not alerts.finish_check(connection, one, now=now + minute)
    assert alerts.finish_check(connection, two, now=now + minute)
    assert not takes(one, minute + timedelta(seconds=9))
    assert takes(one, minute + timedelta(seconds=10))


def test_who_lost_the_turn_writes_nothing(
    database: Database, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_check(*_: object) -> tuple[list[Alert], set[str]]:
        with database.begin() as connection:
            later = database_now(connection) + timedelta(hours=1)
            ttl = timedelta(minutes=1)
            assert alerts.begin_check(
                connection, holder="o", token=uuid4(), every=ttl, ttl=ttl, now=later
            )
        return [Alert("scan", "f", "a")], set()

    monkeypatch.setattr(module, "check_rules", slow_check)
    a_watcher(database, hook, Settings()).watch_once()

    assert _opened(database) == set()


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
    facts = {each["fact"] for each in hook.got}
    assert "2 tasks failed in ten minutes: ValueError in t, queue default" in facts
    assert "a new error: ValueError in t, queue default" in facts


def test_many_new_errors_at_once_are_one_message_more(database: Database, hook: Hook) -> None:
    with database.begin() as connection:
        for number in range(8):
            _fail(connection, claimed_task(connection), Cause(f"Error{number}", "m"))
    a_watcher(database, hook, Settings()).watch_once()
    news = [each for each in hook.got if each["key"].startswith("new-error:")]
    assert len(news) == 6
    assert news[-1]["fact"] == "3 more new errors were seen at once"


def test_a_leader_watches_by_default(database: Database, database_url: str, hook: Hook) -> None:
    duties = Duties(Settings(database_url=database_url, alert_webhook=hook.url), database, "l")
    duties.check()
    try:
        until(lambda: _opened(database) == {"workers"})
        with database.begin() as connection:
            connection.execute(AGE)
    finally:
        duties.stop()
    assert threads() == []


def test_without_a_channel_nobody_watches(database: Database, database_url: str) -> None:
    duties = Duties(Settings(database_url=database_url), database, "l")
    duties.check()
    assert threads() == []


def _opened(database: Database) -> set[str]:
    with database.begin() as connection:
        return alerts.open_keys(connection)


def _fail(connection: Connection, task: ClaimedTask, cause: Cause) -> None:
    settle_one(connection, ending(task, Event.FAIL, failures=1, cause=cause))


def test_a_server_that_takes_for_ever_keeps_nobody_from_looking() -> None:
    go_on, sent = threading.Event(), []

    def trickles(message: dict) -> bool:
        sent.append(message["id"])
        return go_on.wait(20)

    channel = InTime(trickles, within_s=0.05)
    assert [channel({"id": 1}), channel({"id": 2})] == [False, False]
    assert sent == [1]  # the second is not begun while the first hangs
    go_on.set()
    until(lambda: channel({"id": 3}))


def test_a_rule_that_cannot_be_read_is_said_once(
    engine: Engine, database: Database, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = a_watcher(database, hook, Settings(), every=timedelta(0))
    run_sql(engine, "ALTER TABLE task_schedule RENAME TO hidden")
    try:
        for _ in range(2):
            watcher.watch_once()
    finally:
        run_sql(engine, "ALTER TABLE hidden RENAME TO task_schedule")
    said = [r.getMessage() for r in caplog.records if "cannot be read" in r.getMessage()]
    assert len(said) == 1
    assert "schedule" in said[0]


def test_a_key_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    to_log({"status": "firing", "key": "silent:a\nalert firing: b", "fact": "x\x1b[2J"})
    assert "\n" not in caplog.records[-1].getMessage()
    assert "\x1b" not in caplog.records[-1].getMessage()
