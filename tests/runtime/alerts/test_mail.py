"""Mail by a real SMTP server: with and without a password, refused, away, without TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self
from uuid import uuid4

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from sqlalchemy import Connection, Engine, text

from tasks_app import Flow, Settings, create_flow, create_schedule, event, send_event
from tasks_app.domain.alerts import Alert, MailServer, read_mail
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import SCAN, Rank
from tasks_app.pool.flow_control import queue_settings
from tasks_app.pool.retention import DAYS_AHEAD
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.pool.tables import database_now
from tasks_app.runtime.alerts import rules
from tasks_app.runtime.alerts.channels import channels, to_mail
from tasks_app.runtime.alerts.rules import user
from tasks_app.runtime.alerts.watcher import check_rules, deliver, record
from tests.cases import in_one_test
from tests.factory import claimed_task, do, ending, pending_task, run_sql
from tests.pool.test_statistics import KEPT, part, put

MESSAGE = {"id": 7, "status": "firing", "key": "scan", "fact": "nobody", "advice": "Start beat."}
ADDRESSES = "/?from=tasks@example.org&to=ops@example.org,boss@example.org"


class Post:
    """A server that keeps what it got; it wants a password for whoever gives one."""

    def __init__(self, port: int) -> None:
        self.got: list[EmailMessage] = []
        self.to: list[list[str]] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.answer = "250 OK"
        self._controller = Controller(
            self, hostname="127.0.0.1", port=port, authenticator=self._login, auth_require_tls=False
        )
        self.port = port

    def __enter__(self) -> Self:
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()

    def url(self, login: str = "") -> str:
        return f"smtp://{login}127.0.0.1:{self.port}{ADDRESSES}"

    def _login(self, _server: Any, _session: Any, _envelope: Any, _how: str, data: Any) -> Any:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"s3cret!", handled=False)

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        if self.answer.startswith("250"):
            self.got.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]
            self.to.append(envelope.rcpt_tos)
        return self.answer


@pytest.fixture
def post(free_port: int) -> Iterator[Post]:
    with Post(free_port) as server:
        yield server


def test_a_mail_says_what_and_what_to_do(post: Post) -> None:
    assert to_mail(read_mail(post.url("bob:s3cret%21@")))(MESSAGE)
    assert post.logins == [(b"bob", b"s3cret!")]
    assert post.to == [["ops@example.org", "boss@example.org"]]
    (mail,) = post.got
    assert (mail["Subject"], mail["From"]) == ("[tasks_app] firing: scan", "tasks@example.org")
    assert mail["Message-ID"] == "<alert-7-firing@tasks-app.invalid>"
    assert mail.get_content().splitlines()[:3] == ["nobody", "", "Start beat."]


def test_beginning_and_end_are_mailed_once(engine: Engine, post: Post) -> None:
    configured = channels(Settings(alert_mail=post.url()))
    for found in ([Alert("scan", "nobody", "Start beat.")], [], []):
        do(engine, record, found, [])
        deliver(engine, configured)
    subjects = [mail["Subject"] for mail in post.got]
    assert subjects == ["[tasks_app] firing: scan", "[tasks_app] resolved: scan"]


def test_a_key_with_a_line_break_is_no_header(post: Post) -> None:
    send = to_mail(read_mail(post.url()))
    assert send({**MESSAGE, "key": "rule:x\r\nBcc: evil@example.org"})
    assert r"rule:x\r\nBcc: evil" in post.got[0]["Subject"]
    assert post.got[0]["Bcc"] is None


def test_a_wrong_password_is_not_logged(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    assert not to_mail(read_mail(post.url("bob:wr0ng@")))(MESSAGE)
    assert f"not taken by smtp://127.0.0.1:{post.port}: SMTPAuthenticationError" in caplog.text
    assert "wr0ng" not in caplog.text
    assert "bob" not in caplog.text


def test_a_server_that_takes_none_now_is_asked_again(post: Post) -> None:
    send = to_mail(read_mail(post.url()))
    post.answer = "451 later"
    assert not send(MESSAGE)
    post.answer = "250 OK"
    assert send(MESSAGE)


def test_a_server_that_is_away(free_port: int, caplog: pytest.LogCaptureFixture) -> None:
    url = f"smtp://127.0.0.1:{free_port}{ADDRESSES}"
    assert not to_mail(read_mail(url))(MESSAGE)
    assert "ConnectionRefusedError" in caplog.text


def test_no_password_without_tls_to_another_machine(
    post: Post, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks_app.runtime.alerts.channels.is_local", lambda _host: False)
    server: MailServer = read_mail(post.url("bob:s3cret%21@"))
    assert not to_mail(server)(MESSAGE)
    assert post.logins == []
    assert "SMTPNotSupportedError" in caplog.text


Find = Callable[..., dict[str, str]]
LATE = timedelta(minutes=5)


@pytest.fixture
def find(connection: Connection, database_url: str) -> Find:
    """Ask a rule: the facts by key."""

    def ask(rule: rules.Rule, **given: object) -> dict[str, str]:
        settings = Settings(database_url=database_url, **given)  # type: ignore[arg-type]
        return {alert.key: alert.fact for alert in rule(connection, settings)}

    return ask


def sql(connection: Connection, statement: str, **values: object) -> None:
    connection.execute(text(statement), values)


def a_worker(connection: Connection, node: str = "n", **given: object) -> None:
    known = {"queues": ["default"], "handlers": ["t"], **given}
    heartbeats.write_heartbeat(connection, owner=node, node=node, **known)  # type: ignore[arg-type]


def silent(connection: Connection, node: str) -> None:
    late = "UPDATE task_worker SET seen_at = now() - interval '40 s' WHERE node = :node"
    sql(connection, late, node=node)


def due_since(connection: Connection, ago: timedelta = LATE, **options: object) -> None:
    pending_task(connection, now=database_now(connection) - ago, **options)  # type: ignore[arg-type]


def scanned(connection: Connection, ago: timedelta, rank: Rank = Rank.BEAT) -> None:
    token, at, ttl = uuid4(), database_now(connection) - ago, timedelta(seconds=5)
    leader_lease.acquire_lease(
        connection, SCAN, holder="b", token=token, rank=rank, ttl=ttl, now=at
    )
    leader_lease.record_duty(connection, SCAN, token, ttl, now=at)


def test_nobody_scans(connection: Connection, find: Find) -> None:
    assert find(rules.scan) == {}  # nobody ever did: `tasks-app work` alone, perhaps
    scanned(connection, timedelta(seconds=34))
    assert find(rules.scan) == {}
    assert list(find(rules.scan, alert_scan="20s")) == ["scan"]


def test_a_worker_that_stands_in_is_told_if_it_lasts(connection: Connection, find: Find) -> None:
    scanned(connection, timedelta(0), Rank.BEAT)
    assert find(rules.beat) == {}
    sql(connection, "DELETE FROM task_lease")
    scanned(connection, timedelta(0), Rank.STANDBY)
    (alert,) = rules.beat(connection, Settings())
    assert (alert.key, alert.settle) == ("beat", rules.STANDS_IN)


def test_a_broker_that_takes_nothing(connection: Connection, find: Find) -> None:
    scanned(connection, timedelta(0))
    now = database_now(connection)
    leader_lease.record_refusal(connection, SCAN, "no", now=now - timedelta(seconds=50))
    assert find(rules.broker) == {}
    leader_lease.clear_refusal(connection, SCAN)
    leader_lease.record_refusal(connection, SCAN, "no", now=now - timedelta(seconds=70))
    assert list(find(rules.broker)) == ["broker"]


def test_no_worker_is_alive(connection: Connection, find: Find) -> None:
    (ended,) = rules.workers(connection, Settings())
    assert ended.settle == rules.STARTS
    a_worker(connection)
    assert find(rules.workers) == {}
    silent(connection, "n")
    (stopped,) = rules.workers(connection, Settings())
    assert (stopped.fact, stopped.settle) == ("no worker is alive; n fell silent", timedelta(0))


def test_one_of_two_workers_falls_silent(connection: Connection, find: Find) -> None:
    a_worker(connection, "a")
    a_worker(connection, "b")
    assert find(rules.silent) == {}
    silent(connection, "a")
    assert find(rules.silent) == {
        "silent:a": "a sent its last heartbeat 40 s ago, and did not stop in order"
    }
    assert find(rules.workers) == {}


def test_what_no_worker_serves_or_knows(connection: Connection, find: Find) -> None:
    due_since(connection, queue="mail")
    for name in ("odd", "t"):
        due_since(connection, name=name)
    sql(
        connection,
        "UPDATE task_pending SET parked = name, parked_kind = 'handler', parked_for = name"
        " WHERE queue = 'default'",
    )
    assert find(rules.unserved) == {}  # no worker lives: that is told
    a_worker(connection)

    assert list(find(rules.unserved)) == ["unserved:mail"]
    assert list(find(rules.unknown)) == ["unknown:odd"]
    assert find(rules.unserved, alert_due="10m") == find(rules.unknown, alert_due="10m") == {}


def test_a_task_waits_while_a_worker_is_idle(connection: Connection, find: Find) -> None:
    due_since(connection)
    assert find(rules.due) == {}
    a_worker(connection)
    assert find(rules.due) == {
        "due:default": "t in default has waited for 5 min, and a worker is idle"
    }
    assert find(rules.due, alert_due="10m") == {}


@pytest.mark.parametrize("reason", ["busy", "moves", "paused", "parked", "unknown"])
def test_a_task_waits_for_a_reason(connection: Connection, find: Find, reason: str) -> None:
    due_since(connection)
    a_worker(connection, handlers=["other"] if reason == "unknown" else ["t"])
    match reason:
        case "busy":
            sql(connection, """UPDATE task_worker SET running = '[{"id": 1}]'""")
        case "moves":
            put(connection, "s", part(database_now(connection), 1)._replace(queue="default"))
        case "paused":
            queue_settings.pause(connection, "default")
        case "parked":
            sql(connection, "UPDATE task_pending SET parked = 'p', parked_kind = 'queue'")

    assert find(rules.due) == {}


def test_many_lose_their_process(connection: Connection, find: Find) -> None:
    at = database_now(connection)
    put(connection, "s", part(at, 3, outcome=CountedOutcome.RESCUED), part(at, 9))
    put(connection, "o", part(at - timedelta(minutes=12), 9, outcome=CountedOutcome.RESCUED))
    assert find(rules.rescues, alert_rescues=4) == {}
    assert list(find(rules.rescues, alert_rescues=3)) == ["rescues"]


def test_each_schedule_has_an_alert(connection: Connection, find: Find) -> None:
    for name in ("missed", "broken", "off", "well"):
        create_schedule(connection, name, "t", every="1h")
    late = "next_run_at = now() - interval '2 min'"
    sql(connection, f"UPDATE task_schedule SET {late} WHERE name IN ('missed', 'off')")
    sql(connection, "UPDATE task_schedule SET enabled = false WHERE name = 'off'")
    sql(connection, "UPDATE task_schedule SET remark = 'no' WHERE name = 'broken'")
    assert find(rules.schedule) == {
        "schedule:broken": "broken is broken",
        "schedule:missed": "missed should have fired 2 min ago",
    }


def test_a_batch_stands_still(connection: Connection, find: Find) -> None:
    sql(
        connection,
        "INSERT INTO task_batch (job, identity, params, status, run, created_at, started_at)"
        " VALUES ('pay', 'i', '{}', 'RUNNING', 1, now(), now() - interval '1 h')",
    )
    assert [fact.partition(" of ")[2] for fact in find(rules.batch).values()] == [
        "pay has not moved for 30 min"
    ]
    assert find(rules.batch, alert_batch="2h") == {}
    sql(
        connection,
        "INSERT INTO task_partition"
        " (program_id, partition_no, key_type, num_range, batch_id, changed_at)"
        " SELECT 'p', 1, 'integer', '[,)', id, now() - interval '10 min' FROM task_batch",
    )
    assert find(rules.batch) == {}
    assert list(find(rules.batch, alert_batch="5m"))
    sql(connection, "UPDATE task_batch SET status = 'STOPPING'")
    assert find(rules.batch, alert_batch="5m") == {}


def test_an_event_is_not_sent(connection: Connection, find: Find) -> None:
    flow = Flow("order")
    flow.step("ship", "t", needs=event("order:7/fraud"))
    create_flow(connection, flow)
    assert find(rules.events) == {}
    sql(connection, "UPDATE task_event_wait SET since = now() - interval '8 days'")
    assert find(rules.events) == {"events": "a task has waited for an event for 8 d"}
    assert find(rules.events, alert_events="9d") == {}
    send_event(connection, "order:7/fraud")
    assert find(rules.events) == {}


def test_flows_stand(connection: Connection, find: Find) -> None:
    flow = Flow("order")
    flow.step("ship", "t", needs=flow.step("pay", "t"))
    task_id = create_flow(connection, flow).task_ids["pay"]
    assert find(rules.flows) == {}
    cause = Cause("ValueError", "refused")
    settle_one(connection, ending(claimed_task(connection, int(task_id)), Event.FAIL, cause=cause))
    assert find(rules.flows) == {"flows": "1 flow stands because a step failed"}
    create_flow(connection, flow)
    assert find(rules.flows) == {"flows": "1 flow stands because a step failed"}


def test_partitions_run_out(connection: Connection, find: Find) -> None:
    assert find(rules.partitions, alert_partitions=DAYS_AHEAD) == {}
    assert find(rules.partitions, alert_partitions=DAYS_AHEAD + 1) == {
        "partitions": "partitions reach 14 days ahead"
    }


def test_rows_in_the_default_partition(connection: Connection, find: Find) -> None:
    assert find(rules.default_partition) == {}
    task = claimed_task(connection)
    columns = (
        "id, name, queue, priority, payload, enabled, attempt, failures, crashes, retry_level,"
        " due_at, idempotency_key, created_at, at_most_once"
    )
    sql(
        connection,
        f"INSERT INTO task_completed ({columns}, state, finished_at)"
        f" SELECT {columns}, 'SUCCEEDED', now() - interval '9 days'"
        " FROM task_pending WHERE id = :id",
        id=task.task_id,
    )
    assert list(find(rules.default_partition)) == ["default-partition"]


def test_a_held_snapshot(engine: Engine, database_url: str) -> None:
    given = Settings(database_url=database_url, alert_snapshot=2)
    with engine.connect() as holder:
        holder.execution_options(isolation_level="REPEATABLE READ")
        holder.execute(text("SELECT pg_current_xact_id()"))
        for _ in range(3):
            run_sql(engine, "SELECT pg_current_xact_id()")
        held = {alert.key for alert in check_rules(engine, given)[0]}
    assert "snapshot" in held


def test_a_rule_that_may_not_read_is_named(engine: Engine, database_url: str) -> None:
    run_sql(engine, "ALTER TABLE task_schedule RENAME TO hidden")
    try:
        found, unread = check_rules(engine, Settings(database_url=database_url))
    finally:
        run_sql(engine, "ALTER TABLE hidden RENAME TO task_schedule")
    assert unread == {"schedule"}
    assert "workers" in {alert.key for alert in found}


FindUserRules = Callable[[str], dict[str, str]]


@pytest.fixture
def find_of_user_rules(connection: Connection) -> FindUserRules:
    def ask(rules: str) -> dict[str, str]:
        settings = Settings(alerts=rules)
        return {alert.key: alert.fact for alert in user(connection, settings)}

    return ask


@pytest.fixture
def counted(connection: Connection) -> None:
    """Four failed and six done in this minute, three failed of another name, ten an hour ago."""
    now = database_now(connection)
    before = now - timedelta(hours=1)
    put(connection, "old", part(before, 10, outcome=CountedOutcome.FAILED), part(before, 10))
    roll_up(connection, None, KEPT, now=before + timedelta(minutes=5))
    put(
        connection,
        "new",
        *(part(now, 4, outcome=CountedOutcome.FAILED), part(now, 6)),
        part(now, 3, "other", CountedOutcome.FAILED),
    )


@pytest.mark.usefixtures("counted")
@in_one_test(
    "rule, fact",
    [
        ("failed name=t > 3 in 5m", "4 of name=t failed in 5 min"),
        ("failed name=t > 4 in 5m", ""),
        ("failed name=t > 13 in 2h", "14 of name=t failed in 2 h"),
        ("failed queue=q > 6 in 5m", "7 of queue=q failed in 5 min"),
        ("failed queue=r > 0 in 5m", ""),
        ("ratio name=t > 39% in 5m", "40% of 10 runs of name=t did not succeed in 5 min"),
        ("ratio name=t > 40% in 5m", ""),
        ("ratio name=other > 1% in 5m", ""),  # too few runs to say
        ("silence name=t > 5m", ""),
        ("silence name=other > 5m", "none of name=other has succeeded for 5 min"),
        ("silence queue=q > 4d", ""),  # in hours: minutes are gone by then
    ],
)
def test_failures_their_share_and_silence_in_a_span(
    find_of_user_rules: FindUserRules, rule: str, fact: str
) -> None:
    key = f"rule:{rule.partition(' >')[0]}"
    assert find_of_user_rules(rule) == ({key: fact} if fact else {})


def test_silence_counts_whole_hours(
    connection: Connection, find_of_user_rules: FindUserRules
) -> None:
    before = database_now(connection) - timedelta(days=3)
    put(connection, "old", part(before, 1))
    roll_up(connection, None, KEPT, now=before + timedelta(minutes=5))
    assert find_of_user_rules("silence name=t > 4d") == {}
    assert list(find_of_user_rules("silence name=t > 50h")) == ["rule:silence name=t"]


def test_age_and_number_of_what_waits(
    connection: Connection, find_of_user_rules: FindUserRules
) -> None:
    now = database_now(connection)
    pending_task(connection, "a", queue="pay", now=now - timedelta(minutes=3))
    pending_task(connection, "b", queue="pay", now=now)

    assert find_of_user_rules("age queue=pay > 2m; age queue=mail > 2m") == {
        "rule:age queue=pay": "a task of queue=pay is due for 3 min"
    }
    assert find_of_user_rules("age queue=pay > 5m") == {}
    assert find_of_user_rules("pending queue=pay > 1; pending name=a > 1; pending name=b > 0") == {
        "rule:pending queue=pay": "more than 1 of queue=pay wait",
        "rule:pending name=b": "more than 0 of name=b wait",
    }
