"""Of two watchers one tells; what is over is told to those who know that it began."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from tasks_app import Settings
from tasks_app.domain.alerts import Alert
from tasks_app.pool import alerts
from tasks_app.runtime.alerts.channels import to_log, to_webhook
from tasks_app.runtime.alerts.watcher import deliver, record
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.maintainer import Maintainer
from tests.factory import do
from tests.runtime.alerts.hook import Hook

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
            taken = alerts.take_notice(one)
            with two.begin():
                assert alerts.take_notice(two) is None  # while the first has not committed
        with two.begin():
            assert alerts.take_notice(two) is None  # nor after
        assert taken is not None
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
    notice = do(engine, alerts.take_notice)
    tell(engine)
    assert notice is not None
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
