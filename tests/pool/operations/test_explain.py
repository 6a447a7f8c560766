"""Explain: each reason, found in a real row of a real database."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import click
import pytest
from sqlalchemy import Connection, text

from tasks_app.cli.output import finding_with_program_name
from tasks_app.domain.explain import explanation, waiting
from tasks_app.domain.explain.explanation import RULES, Explanation, explain, why_last_attempt
from tasks_app.domain.explain.facts import MOST_AHEAD
from tasks_app.domain.finding import Finding, Level
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.flows import Flow, failed
from tasks_app.domain.locks import LockRequest, lock_parts
from tasks_app.domain.queues import parse_window
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.dispatch import leader_lease, set_aside
from tasks_app.pool.flow_control import order_and_limits, queue_settings
from tasks_app.pool.locks.acquire import acquire, insert_resources
from tasks_app.pool.locks.holders import release
from tasks_app.pool.operations.explain import read_facts
from tasks_app.pool.runs import heartbeats, leases, settle
from tasks_app.pool.runs.claim import Claims, claim
from tasks_app.pool.tables import database_now
from tasks_app.pool.tasks import cancel
from tasks_app.runtime.api.amend_waiting import hold_task
from tasks_app.runtime.api.flows import create_flow
from tests.cases import in_one_test
from tests.factory import LEASE, claimed_task, claimer, ending, pending_task, unknown
from tests.pool.database import prepared
from tests.servers import named

NOON = datetime(2040, 1, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CAUSE = Cause("ConnectionError", "refused\nby the other side")


def ask(connection: Connection, task_id: int, now: datetime = NOON) -> Explanation:
    return explain(read_facts(connection, task_id, lease=LEASE, late_after=MINUTE, now=now))


def answer(connection: Connection, task_id: int, now: datetime = NOON) -> Finding:
    return ask(connection, task_id, now).findings[0]


def subjects(connection: Connection, task_id: int, now: datetime = NOON) -> list[str]:
    return [finding.subject for finding in ask(connection, task_id, now).findings]


def a_child(connection: Connection, owner: str = "w1", now: datetime = NOON, **given: object):
    known = {"queues": ["default"], "handlers": ["t"], "node": "celery@host", **given}
    heartbeats.write_heartbeat(connection, owner=owner, now=now, **known)


def a_scan(connection: Connection, now: datetime = NOON, **depths: int) -> None:
    token = uuid4()
    leader_lease.acquire_lease(
        connection, "scan", holder="beat h:1", token=token, rank=2, ttl=LEASE, now=now
    )
    leader_lease.record_duty(connection, "scan", token, LEASE, depths, now=now)


@pytest.fixture
def healthy(connection: Connection) -> Connection:
    """A worker that knows the name, and a scan a moment ago."""
    a_child(connection)
    a_scan(connection)
    return connection


def waits(connection: Connection, ago: timedelta = timedelta(0), **options: object) -> int:
    """A task that has been due for that long at noon."""
    return pending_task(connection, now=NOON - ago, **options)


def test_every_rule_is_in_the_list() -> None:
    listed = [rule for _, rules in RULES for rule in rules]
    written = [
        value
        for room in (explanation, waiting)
        for value in vars(room).values()
        if callable(value)
        and getattr(value, "__annotations__", {}).get("return") == "Finding | None"
        and "row" in "".join(value.__annotations__)
    ]
    assert sorted(map(repr, listed)) == sorted(map(repr, written))


class TestSteps:
    def test_of_many_needs_the_first_are_named(self, healthy: Connection) -> None:
        flow = Flow("order")
        needs = [flow.step(f"s{n}", "t", delay="3h") for n in range(8)]
        flow.step("last", "t", needs=needs)
        made = create_flow(healthy, flow)
        said = answer(healthy, made.task_ids["last"], now=database_now(healthy) + MINUTE)
        named = ", ".join(
            f"step s{n} (task {made.task_ids[f's{n}']}, due in 2 h)" for n in range(5)
        )
        assert said.fact == (f"It waits for {named} and 3 more: tasks-app flows show {made.id}")
        assert said.level is Level.OK
        assert said.advice.endswith(f"tasks-app explain {made.task_ids['s0']}")

    def test_its_other_reasons_name_no_date_that_is_none(self, healthy: Connection) -> None:
        now = database_now(healthy)
        flow = Flow("order")
        pay = flow.step("pay", "t")
        flow.step("ship", "t", needs=pay, enabled=False, expires_at=now + timedelta(days=1))
        ship = create_flow(healthy, flow).task_ids["ship"]
        hold_task(healthy, ship, by="anna")
        said = ask(healthy, ship, now=now)
        assert [f.subject for f in said.findings][:4] == ["held", "needs", "disabled", "expired"]
        _, _, disabled, expired = said.findings[:4]
        assert disabled.fact == "It is disabled: it is skipped when it is due"
        assert expired.fact.endswith("Z), unless its needs are met before")
        assert "not due" not in subjects(healthy, ship, now=now)
        assert said.facts["held"]

    def test_a_step_that_its_flow_does_not_need_is_not_to_be_enabled(
        self, healthy: Connection
    ) -> None:
        flow = Flow("order")
        flow.step("sorry", "t", needs=failed(flow.step("pay", "t")))
        made = create_flow(healthy, flow)
        settle.settle_one(healthy, ending(claimed_task(healthy, made.task_ids["pay"])))
        found = ask(healthy, made.task_ids["sorry"]).findings
        (said,) = (finding for finding in found if finding.subject == "disabled")
        assert said.level is Level.OK
        assert said.fact == "Its flow does not need it any more"
        assert "enable" not in said.advice


class TestOver:
    def test_unknown(self, healthy: Connection) -> None:
        said = ask(healthy, 987_654_321)
        assert [f.subject for f in said.findings] == ["unknown"]
        assert said.findings[0].fact == "There is no task 987654321 in any pool"
        assert not said.known

    def test_ended(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON - HOUR)
        settle.settle_one(healthy, ending(task, run_ms=20), now=NOON - HOUR)
        said = answer(healthy, task.task_id)
        assert said.fact == (
            "It succeeded 60 min ago (2040-01-01 11:00:00Z) at attempt 1 after 20 ms"
        )
        assert f"tasks-app requeue {task.task_id}" in said.advice
        assert subjects(healthy, task.task_id) == ["ended"]

    @pytest.mark.parametrize(
        ("event", "word"), [(Event.SKIP, "was skipped"), (Event.CANCEL, "was cancelled")]
    )
    def test_ended_with_its_cause(self, healthy: Connection, event: Event, word: str) -> None:
        task = claimed_task(healthy, now=NOON)
        settle.settle_one(healthy, ending(task, event, cause=CAUSE), now=NOON)
        fact = answer(healthy, task.task_id).fact
        assert word in fact
        assert "ConnectionError: refused" in fact

    def test_failed(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON)
        settle.settle_one(healthy, ending(task, Event.FAIL, failures=1, cause=CAUSE), now=NOON)
        said = answer(healthy, task.task_id)
        assert said.level is Level.FAIL
        assert said.fact.startswith(
            "It failed for good just now (2040-01-01 12:00:00Z), 1 of at most 3 failures charged:"
            " ConnectionError: refused"
        )
        assert "restart the workers" in said.advice
        assert said.advice.endswith(f"tasks-app requeue {task.task_id}")

    @pytest.mark.parametrize(
        ("failures", "kind", "why"),
        [
            (3, "ValueError", "its retries are used up, with 3 of 3 attempts"),
            (1, "Fail", "Fail allows no retry"),
            (1, "Retry", "its Retry allows no more attempts"),
            (1, "ValueError", "its handler has no retry for ValueError, or may run at most once"),
            (0, "outcome unknown", "it may run at most once, and that run's outcome is unknown"),
        ],
    )
    def test_why_it_was_the_last(
        self, healthy: Connection, failures: int, kind: str, why: str
    ) -> None:
        task = claimed_task(healthy, now=NOON)
        cause = Cause(kind, "no")
        over = ending(task, Event.FAIL, failures=failures, cause=cause)
        settle.settle_one(healthy, over, now=NOON)
        facts = read_facts(healthy, task.task_id, lease=LEASE, late_after=MINUTE, now=NOON)
        assert facts.row is not None
        assert why_last_attempt(facts.row, facts.last) == why
        if kind != "outcome unknown":
            assert f"It was not retried: {why}. Read" in explain(facts).findings[0].advice

    def test_failed_with_an_unknown_outcome(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON)
        cause = Cause("outcome unknown", "The worker stopped.")
        settle.settle_one(healthy, ending(task, Event.FAIL, cause=cause), now=NOON)
        assert answer(healthy, task.task_id).advice.startswith("Check on the other side")


class TestRunning:
    def test_running(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON - timedelta(seconds=20))
        runs = {"id": task.task_id, "name": "t", "seconds": 20, "fraction": 0.5, "note": "half"}
        a_child(healthy, running=[runs])

        said = ask(healthy, task.task_id)

        assert [f.subject for f in said.findings] == ["running"]
        assert said.findings[0].fact == (
            "It runs: attempt 1 began 20 s ago (2040-01-01 11:59:40Z) on w1, and is at 50%, half"
        )
        assert said.facts["lease_until"] == NOON + timedelta(seconds=10)
        assert said.facts["node"] == "celery@host"
        assert said.facts["heartbeat_at"] == NOON

    def test_when_its_hard_limit_ends_it(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON - timedelta(seconds=20))
        runs = {"id": task.task_id, "name": "t", "seconds": 20, "hard_timeout": 80}
        a_child(healthy, running=[runs])
        assert answer(healthy, task.task_id).advice == (
            "Nothing to do: its hard limit ends it and its process in 60 s "
            f"(2040-01-01 12:01:00Z); to stop it before: tasks-app cancel {task.task_id}"
        )

    def test_a_hard_limit_that_did_not_end_it(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON - timedelta(seconds=20))
        runs = {"id": task.task_id, "name": "t", "seconds": 100, "hard_timeout": 80}
        a_child(healthy, running=[runs])
        said = answer(healthy, task.task_id)
        assert said.level is Level.WARN
        assert said.advice == (
            "Its hard limit should have ended it and its process 20 s ago (2040-01-01 11:59:40Z): "
            "check that process, and kill it."
        )

    def test_the_hard_limit_of_one_that_was_told_to_stop(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON - timedelta(seconds=20))
        cancel.cancel(healthy, task.task_id, now=NOON)
        a_child(healthy, running=[{"id": task.task_id, "seconds": 20, "hard_timeout": 80}])
        said = {f.subject: f.advice for f in ask(healthy, task.task_id).findings}
        assert said["running"] == (
            "Nothing to do: its cancel is requested, and its hard limit ends it and its process "
            "in 60 s (2040-01-01 12:01:00Z)."
        )

    def test_lease_over(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON - MINUTE)
        said = answer(healthy, task.task_id)
        assert (said.subject, said.level) == ("lease over", Level.WARN)
        assert "the lease ended 30 s ago (2040-01-01 11:59:30Z)" in said.fact

    def test_lease_over_and_nobody_rescues(self, connection: Connection) -> None:
        task = claimed_task(connection, now=NOON - MINUTE)
        said = answer(connection, task.task_id)
        assert said.level is Level.FAIL
        assert said.advice.startswith("No process has scanned for due tasks yet, so it is not res")

    def test_nobody_is_left_to_rescue_it_nor_to_scan(self, healthy: Connection) -> None:
        """Long before a scan would be late: the lead is free, and no child is heard of."""
        task = claimed_task(healthy, now=NOON - timedelta(seconds=15))
        due = pending_task(healthy, now=NOON)
        healthy.execute(text("UPDATE task_lease SET held_until = NULL"))
        since = "No process scans for due tasks; beat h:1 did last, {} (2040-01-01 12:00:00Z)"

        silent = answer(healthy, task.task_id, NOON + timedelta(seconds=12))
        waits = ask(healthy, due, NOON + timedelta(seconds=12)).findings
        over = answer(healthy, task.task_id, NOON + timedelta(seconds=20))

        assert (silent.subject, over.subject) == ("silent", "lease over")
        assert [f.subject for f in waits] == ["no scan"]
        assert waits[0].fact == since.format("12 s ago")
        assert silent.advice.startswith(since.format("12 s ago"))
        assert over.advice.startswith(since.format("20 s ago"))
        assert "celery -A tasks_app beat" in over.advice

    def test_a_child_that_lives_may_take_the_free_lead(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON - timedelta(seconds=15))
        healthy.execute(text("UPDATE task_lease SET held_until = NULL"))
        later = NOON + timedelta(seconds=20)
        a_child(healthy, "w2", now=later)
        assert answer(healthy, task.task_id, later).advice.startswith("Nothing to do")

    def test_cancel_requested(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON)
        cancel.cancel(healthy, task.task_id, now=NOON)
        said = ask(healthy, task.task_id).findings
        assert [f.subject for f in said] == ["cancel requested", "running"]
        assert said[0].advice.endswith(f"tasks-app cancel {task.task_id} --kill-after 0s")
        assert "tasks-app cancel" not in said[1].advice  # again, without a kill

    def test_silent(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON)
        later = NOON + timedelta(seconds=12)

        said = ask(healthy, task.task_id, later)

        assert [f.subject for f in said.findings] == ["silent"]
        assert said.findings[0].level is Level.WARN
        assert said.findings[0].fact == (
            "Its worker w1 has sent no heartbeat for 12 s (2040-01-01 12:00:00Z);"
            " a live one sends one every 10 s"
        )
        assert said.findings[0].advice == (
            "Nothing to do: if no heartbeat comes, its lease ends in 18 s,"
            " and the next scan after that takes it back, uncharged."
        )

    def test_a_heartbeat_that_may_still_come_is_not_missed(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON)
        assert subjects(healthy, task.task_id, NOON + timedelta(seconds=10)) == ["running"]

    def test_silent_after_its_cancel(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON)
        cancel.cancel(healthy, task.task_id, now=NOON)
        silent = ask(healthy, task.task_id, NOON + timedelta(seconds=12)).findings
        a_child(healthy, "w2", now=NOON + MINUTE)
        over = ask(healthy, task.task_id, NOON + MINUTE).findings
        assert [f.subject for f in silent] == ["silent", "cancel requested"]
        assert [f.subject for f in over] == ["lease over", "cancel requested"]
        for first in (silent[0], over[0]):
            assert first.advice.endswith("cancels it, as requested.")


class TestWaiting:
    """Whatever stops a task, due or not."""

    def test_disabled(self, healthy: Connection) -> None:
        task_id = waits(healthy, enabled=False, delay="1h")
        assert subjects(healthy, task_id) == ["disabled", "not due"]
        assert "is skipped when it is due, in 60 min" in answer(healthy, task_id).fact
        assert subjects(healthy, task_id, NOON + HOUR)[0] == "disabled"

    def test_expired(self, healthy: Connection) -> None:
        task_id = waits(healthy, HOUR, expires_at=NOON - MINUTE)
        assert answer(healthy, task_id).fact == "It expired 60 s ago (2040-01-01 11:59:00Z)"
        assert subjects(healthy, task_id) == ["expired"]

    def test_expired_before_it_is_due(self, healthy: Connection) -> None:
        task_id = waits(healthy, expires_at=NOON + HOUR)
        healthy.execute(
            text("UPDATE task_pending SET due_at = :at, scan_at = :at WHERE id = :id"),
            {"id": task_id, "at": NOON + 2 * HOUR},
        )
        assert "expires in 60 min" in answer(healthy, task_id).fact
        assert "before it is due" in answer(healthy, task_id).fact

    def test_a_task_that_expires_later_is_not_called_expired(self, healthy: Connection) -> None:
        task_id = waits(healthy, expires_at=NOON + HOUR)
        assert subjects(healthy, task_id) == ["in line"]

    def test_not_due_by_its_creation(self, healthy: Connection) -> None:
        task_id = waits(healthy, delay="1h")
        said = answer(healthy, task_id)
        assert said.subject == "not due"
        assert said.fact == (
            "It is due in 60 min (2040-01-01 13:00:00Z): it was created with run_at or delay"
        )
        assert said.level is Level.OK

    def test_not_due_by_the_first_wait_of_its_policy(self, healthy: Connection) -> None:
        task_id = waits(healthy, retry="1h,2h", wait_first=True)
        assert "its policy waits before the first run" in answer(healthy, task_id).fact

    def test_not_due_by_a_retry(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON)
        retry = ending(task, Event.RETRY, failures=1, retry_level=1, wait=HOUR, cause=CAUSE)
        settle.settle_one(healthy, retry, now=NOON)
        assert answer(healthy, task.task_id).fact.endswith(
            "attempt 1 failed with ConnectionError: refused; it is in wait 1 of its policy,"
            " 1 of at most 3 failures charged"
        )

    def test_not_due_by_a_snooze(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON)
        retry = ending(task, Event.RETRY, failures=1, retry_level=1, cause=CAUSE)
        settle.settle_one(healthy, retry, now=NOON)
        task = claimed_task(healthy, task.task_id, now=NOON)
        settle.settle_one(healthy, ending(task, Event.SNOOZE, wait=HOUR, cause=CAUSE), now=NOON)
        assert "attempt 2 asked for a later run (Snooze)" in answer(healthy, task.task_id).fact

    def test_not_due_by_the_distance_of_a_rescue(self, healthy: Connection) -> None:
        task = claimed_task(healthy, now=NOON - MINUTE)
        leases.rescue_expired(healthy, lease=LEASE, max_crashes=5, now=NOON)
        healthy.execute(
            text("UPDATE task_pending SET due_at = :at, scan_at = :at WHERE id = :id"),
            {"id": task.task_id, "at": NOON + timedelta(seconds=3)},
        )
        fact = answer(healthy, task.task_id).fact
        assert "attempt 1 ended without an outcome (worker vanished), and it comes back" in fact
        assert "crashes: 1" in fact

    @pytest.mark.parametrize(
        ("queue", "fact", "advice"),
        [
            ("default", "Its queue default was paused", "tasks-app resume default"),
            ("*", "Every queue was paused", "tasks-app resume --all"),
        ],
    )
    def test_paused(self, healthy: Connection, queue: str, fact: str, advice: str) -> None:
        task_id = waits(healthy)
        queue_settings.pause(healthy, queue, "provider is down", now=NOON - HOUR)
        said = answer(healthy, task_id)
        assert said.subject == "paused"
        assert said.fact == f"{fact} 60 min ago (2040-01-01 11:00:00Z): provider is down"
        assert said.advice.endswith(advice)

    def test_the_pause_of_another_queue_is_no_reason(self, healthy: Connection) -> None:
        task_id = waits(healthy)
        queue_settings.pause(healthy, "mail", now=NOON)
        assert "paused" not in subjects(healthy, task_id)

    def test_no_connection(self, healthy: Connection) -> None:
        role = named("limited")
        task_id = waits(healthy)
        healthy.execute(text(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 2"))
        healthy.execute(text(f"GRANT UPDATE ON task_pending TO {role}"))
        enough = subjects(healthy, task_id)
        healthy.execute(text(f"ALTER ROLE {role} CONNECTION LIMIT 1"))

        said = answer(healthy, task_id)

        assert "no connection" not in enough
        assert (said.subject, said.level) == ("no connection", Level.WARN)
        assert said.fact.startswith(f"The connection limit of role {role} is 1, and 0 are in use")
        assert said.advice.startswith(f"ALTER ROLE {role} CONNECTION LIMIT … ")

    def test_no_worker(self, connection: Connection) -> None:
        a_scan(connection)
        a_child(connection, now=NOON - HOUR)
        a_child(connection, "w2", queues=["mail"])
        task_id = waits(connection)

        said = answer(connection, task_id)

        assert (said.subject, said.level) == ("no worker", Level.FAIL)
        assert said.fact == (
            "No live worker serves its queue default;"
            " one that was killed, or lost the database, did until"
            " 60 min ago (2040-01-01 11:00:00Z)"
        )
        assert said.advice == (
            "Workers of mail have its handler. Start one: celery -A tasks_app worker -E -Q default"
        )

    def test_no_handler(self, connection: Connection) -> None:
        a_scan(connection)
        a_child(connection, handlers=["mail.sent", "other"])
        task_id = pending_task(connection, "mail.send", now=NOON)
        said = answer(connection, task_id)
        assert (said.subject, said.level) == ("no handler", Level.FAIL)
        assert said.fact == (
            "1 live child serves default, none knows mail.send; similar: mail.sent"
        )
        assert "TASKS_APP_IMPORTS" in said.advice

    def test_no_handler_here_but_elsewhere(self, connection: Connection) -> None:
        a_scan(connection)
        a_child(connection, handlers=["other"])
        a_child(connection, "w2", queues=["mail"])
        task_id = waits(connection)
        assert answer(connection, task_id).advice == (
            "Workers of mail have its handler: one of them must serve default, too."
        )

    def test_messages_that_do_not_go_out(self, healthy: Connection) -> None:
        task_id = waits(healthy, MINUTE)
        why = "The broker did not take a message (ConnectionRefusedError)"
        leader_lease.record_refusal(healthy, "scan", "Another reason", now=NOON - HOUR)
        leader_lease.record_refusal(healthy, "scan", why, now=NOON)

        said = ask(healthy, task_id)

        assert [f.subject for f in said.findings] == ["broker"]
        assert said.findings[0].level is Level.FAIL
        assert said.findings[0].fact == (
            f"No message could be published since 60 min ago (2040-01-01 11:00:00Z): {why}"
        )
        assert said.facts["unpublished_since"] == NOON - HOUR

    def test_messages_that_go_out_again(self, healthy: Connection) -> None:
        task_id = waits(healthy)
        leader_lease.record_refusal(healthy, "scan", "It is away", now=NOON - HOUR)
        leader_lease.clear_refusal(healthy, "scan")
        assert subjects(healthy, task_id) == ["in line"]

    def test_nobody_says_of_the_broker_what_was_long_ago(self, connection: Connection) -> None:
        a_child(connection)
        a_scan(connection, now=NOON - HOUR)
        leader_lease.record_refusal(connection, "scan", "It is away", now=NOON - HOUR)
        task_id = waits(connection, HOUR)
        assert answer(connection, task_id).subject == "no scan"
        assert "broker" not in subjects(connection, task_id)

    def test_no_scan(self, connection: Connection) -> None:
        a_child(connection)
        task_id = waits(connection, HOUR)
        never = answer(connection, task_id)
        a_scan(connection, now=NOON - HOUR)
        late = answer(connection, task_id)
        assert (never.subject, late.subject) == ("no scan", "no scan")
        assert never.fact == "No process has scanned for due tasks yet"
        assert late.fact.endswith("beat h:1 did last, 60 min ago (2040-01-01 11:00:00Z)")

    def test_parking_it_lately_was_a_look_without_a_scan(self, connection: Connection) -> None:
        """As ``tasks-app work`` does, which needs no scan."""
        a_child(connection)
        task_id = waits(connection, HOUR)
        set_aside.park_tasks(connection, [task_id], unknown("new.name"), LEASE, now=NOON)
        assert subjects(connection, task_id) == ["parked"]
        a_child(connection, now=NOON + HOUR)
        assert "no scan" in [f.subject for f in ask(connection, task_id, NOON + HOUR).findings]


class TestDue:
    def test_parked(self, healthy: Connection) -> None:
        task_id = waits(healthy, MINUTE)
        set_aside.park_tasks(healthy, [task_id], unknown("new.name"), LEASE, now=NOON)
        assert subjects(healthy, task_id) == ["parked"]
        assert answer(healthy, task_id).fact == (
            "It was set aside: no live worker of this queue has a handler named new.name;"
            " the scan looks at it again in 30 s (2040-01-01 12:00:30Z)"
        )

    def test_in_line_behind_others(self, healthy: Connection) -> None:
        before = [waits(healthy, MINUTE), waits(healthy, priority=0), waits(healthy)]
        task_id = waits(healthy)
        _after = [
            waits(healthy, HOUR, priority=9),
            waits(healthy),
            waits(healthy, HOUR, queue="mail"),
            waits(healthy, priority=0, delay="1h"),
            claimed_task(healthy, now=NOON - timedelta(seconds=1)),
        ]

        said = ask(healthy, task_id)

        assert said.facts["ahead"] == len(before)
        assert [f.subject for f in said.findings] == ["in line"]
        assert (
            "3 tasks of queue default, of a better priority or due before, go first"
            in said.findings[0].fact
        )
        assert said.findings[0].level is Level.OK

    def test_in_line_for_long(self, healthy: Connection) -> None:
        waits(healthy, HOUR, priority=0)
        task_id = waits(healthy, HOUR)
        said = answer(healthy, task_id)
        assert said.level is Level.WARN
        assert "Start more workers" in said.advice

    def test_first_in_line(self, healthy: Connection) -> None:
        said = ask(healthy, waits(healthy))
        assert [f.subject for f in said.findings] == ["in line"]
        assert said.findings[0].fact == (
            "It became due just now (2040-01-01 12:00:00Z) and is first in its line:"
            " the next scan publishes it"
        )
        assert said.findings[0].level is Level.OK
        assert "messages" not in said.facts

    @pytest.mark.parametrize(("number", "words"), [(1, "1 message"), (2, "2 messages")])
    def test_first_while_messages_wait(self, healthy: Connection, number: int, words: str) -> None:
        a_scan(healthy, default=number, mail=7)
        said = ask(healthy, waits(healthy))
        verb = "waits" if number == 1 else "wait"
        assert [f.subject for f in said.findings] == ["in line"]
        assert said.findings[0].fact.endswith(
            f": {words} of its queue {verb} in the broker for a child with room"
        )
        assert said.facts["messages"] == f"{number} of the queue in the broker, at the last scan"

    def test_messages_of_other_queues_are_none_of_it(self, healthy: Connection) -> None:
        a_scan(healthy, mail=7)
        said = ask(healthy, waits(healthy))
        assert said.findings[0].fact.endswith("the next scan publishes it")
        assert "messages" not in said.facts

    def test_who_cannot_run_is_not_told_of_the_line(self, connection: Connection) -> None:
        a_scan(connection)
        task_id = waits(connection, crashes=1)
        assert subjects(connection, task_id) == ["no worker"]

    def test_behind_more_than_are_counted(self, healthy: Connection) -> None:
        many(healthy, MOST_AHEAD + 5)
        task_id = waits(healthy)
        said = ask(healthy, task_id)
        assert "more than 10,000 tasks of queue default, of a better" in said.findings[0].fact
        assert said.facts["ahead"] == "more than 10,000"

    @pytest.mark.parametrize(
        ("column", "why"),
        [
            ({"crashes": 2}, "2 workers vanished while it ran"),
            ({"at_most_once": True}, "it may run at most once"),
        ],
    )
    def test_alone(self, healthy: Connection, column: dict, why: str) -> None:
        task_id = waits(healthy, **column)
        said = ask(healthy, task_id).findings
        assert [f.subject for f in said] == ["in line", "alone"]
        assert said[1].fact == f"It is only claimed alone, because {why}"


def many(connection: Connection, number: int) -> None:
    """So many tasks, created in one statement, so with one and the same ``scan_at``."""
    connection.execute(
        text("""
            INSERT INTO task_pending (name, due_at, scan_at)
            SELECT 't', :at, :at FROM generate_series(1, :number)
        """),
        {"at": NOON, "number": number},
    )


@pytest.mark.test_all
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_backlog_is_counted_to_ten_thousand_at_most(healthy: Connection, place: str) -> None:
    """By the plan: neither the rows behind it nor all before it are read."""
    first = waits(healthy)
    many(healthy, 40_000)
    task_id = first if place == "first" else waits(healthy)
    healthy.exec_driver_sql("ANALYZE task_pending")  # all are of one queue and priority
    from tasks_app.pool.operations import explain as room

    row = read_facts(healthy, task_id, lease=LEASE, late_after=MINUTE, now=NOON).row
    plan = prepared(healthy, f"ahead_{place}", lambda c: room._ahead(c, row, NOON)).run(healthy)
    assert plan.whole == ()
    assert plan.rows <= (100 if place == "first" else 5 * MOST_AHEAD)


class TestLocks:
    def denied(self, connection: Connection, *, times: int = 1) -> tuple[int, LockRequest]:
        """A task that was snoozed after a denial, and who was in its way."""
        holder = LockRequest(uuid4(), lock_parts("account:7"), "teller", LEASE)
        insert_resources(connection, holder)
        acquire(connection, holder, now=NOON - timedelta(seconds=25))
        task_id = pending_task(connection, now=NOON - HOUR)
        for number in range(times, 0, -1):
            now = NOON - number * timedelta(seconds=10)
            task = claimed_task(connection, task_id, now=now)
            ask = LockRequest(uuid4(), lock_parts("account:7"), "t", LEASE, task.fence)
            acquire(connection, ask, now=now)
            snoozed = ending(task, Event.SNOOZE, wait=timedelta(seconds=5))
            settle.settle_one(connection, snoozed, now=now)
        return task_id, holder

    def test_who_was_in_its_way(self, healthy: Connection) -> None:
        task_id, _ = self.denied(healthy, times=2)
        found = answer(healthy, task_id)
        assert (found.subject, found.level) == ("lock held", Level.OK)
        assert re.match(
            r"Attempt 2 was denied a lock 10 s ago \(.*\), 2 times since 20 s ago \(.*\): "
            r"account:7 is held by teller, exclusive$",
            found.fact,
        )
        assert found.advice.endswith("tasks-app locks list account:7")

    def test_nobody_is_any_more(self, healthy: Connection) -> None:
        task_id, holder = self.denied(healthy)
        release(healthy, holder.token)
        assert answer(healthy, task_id).fact.endswith("exclusive; it is free now")

    def test_that_was_an_earlier_run(self, healthy: Connection) -> None:
        task_id, _ = self.denied(healthy)
        task = claimed_task(healthy, task_id, now=NOON)
        settle.settle_one(healthy, ending(task, Event.SNOOZE, wait=MINUTE), now=NOON)
        assert "lock held" not in subjects(healthy, task_id)


class TestGates:
    def test_order(self, healthy: Connection) -> None:
        first, second = (waits(healthy, order_key="k") for _ in range(2))
        assert "order" not in subjects(healthy, first)
        assert f"held by task {first}, which is due before it" in answer(healthy, second).fact
        (task,) = claim(healthy, [first], claimer(), uuid4(), Claims.ADMITTED, now=NOON)
        assert f"held by task {first}, which runs" in answer(healthy, second).fact
        failed = ending(task, Event.FAIL, failures=1, cause=CAUSE)
        settle.settle_one(healthy, failed, now=NOON)
        said = answer(healthy, second)
        assert f"held by task {first}, which failed for good" in said.fact
        assert f"tasks-app unblock {first}" in said.advice

    def test_limit(self, healthy: Connection) -> None:
        order_and_limits.set_limit(healthy, Limit(GateKind.NAME, "t", 0))
        assert answer(healthy, waits(healthy)).fact == "The limit of name t is reached: 0 at a time"
        assert "tasks-app limits set name t" in answer(healthy, waits(healthy)).advice

    def test_rate(self, healthy: Connection) -> None:
        order_and_limits.set_limit(healthy, Limit(GateKind.KEY, "k*", None, 10, MINUTE, 1))
        healthy.execute(
            text("INSERT INTO task_gate VALUES ('limit key k1', NULL, 0, :at)"), {"at": NOON}
        )
        said = answer(healthy, waits(healthy, limit_key="k1"))
        assert said.fact == "The limit of key k1 is reached: 10 in 1m"
        said = answer(healthy, waits(healthy, limit_key=["free", "k1"]))
        assert said.fact == "The limit of key k1 is reached: 10 in 1m"
        heavy = ask(healthy, waits(healthy, limit_key="k1", weight=1500))
        assert heavy.findings[0].fact.endswith("is reached: 10 in 1m, of which it takes 1,500")
        assert heavy.facts["weight"] == 1500


def ask_of_queue(connection: Connection, task_id: int, now: datetime = NOON) -> Explanation:
    """As :func:`ask`, with what is said of the task's queue."""
    facts = read_facts(connection, task_id, lease=LEASE, late_after=MINUTE, now=now)
    (queue,) = queue_settings.find_queues(connection, now=now)
    return explain(replace(facts, queue=queue))


class TestQueues:
    def test_a_pause_that_ends(self, healthy: Connection) -> None:
        task_id = waits(healthy)
        queue_settings.pause(healthy, "default", resume_at=NOON + HOUR, now=NOON - HOUR)
        said = answer(healthy, task_id)
        assert said.advice == (
            "It resumes in 60 min (2040-01-01 13:00:00Z); to resume now: tasks-app resume default"
        )
        assert "paused" not in subjects(healthy, task_id, NOON + HOUR)

    def test_closed(self, healthy: Connection) -> None:
        task_id = waits(healthy)
        queue_settings.change_queue(healthy, "default", {"windows": (parse_window("22:00-06:00"),)})
        said = ask_of_queue(healthy, task_id).findings
        assert [finding.subject for finding in said] == ["closed"]
        assert said[0].fact == (
            "Its queue default is closed; its windows: 22:00-06:00 UTC;"
            " the next one opens in 10 h (2040-01-01 22:00:00Z)"
        )
        open_at = ask_of_queue(healthy, task_id, NOON + 10 * HOUR).findings
        assert "closed" not in [finding.subject for finding in open_at]

    def test_closed_for_ever(self, healthy: Connection) -> None:
        task_id = waits(healthy)
        days = [NOON.date() + timedelta(days=n) for n in range(-5, 500)]
        queue_settings.set_calendar(healthy, "off", days)
        queue_settings.change_queue(
            healthy, "default", {"windows": (parse_window("01:00-02:00 not on off"),)}
        )
        said = ask_of_queue(healthy, task_id).findings[0]
        assert (said.subject, said.level) == ("closed", Level.WARN)
        assert said.fact.endswith("none opens within a year")

    def test_gate(self, healthy: Connection) -> None:
        task_id = waits(healthy)
        waits(healthy, queue="other", ago=HOUR)
        queue_settings.change_queue(healthy, "default", {"waiting_below": MINUTE})
        queue_settings.update_load_gates(healthy, now=NOON)

        said = ask_of_queue(healthy, task_id).findings

        assert [finding.subject for finding in said] == ["gate"]
        assert said[0].fact == (
            "Its queue default gives way: it runs only while"
            " no due task of another queue has waited for 1m"
        )
        assert said[0].advice.endswith("tasks-app queues set default --waiting-below none")


def rescued_by_nobody(connection: Connection) -> int:
    """It was claimed by somebody who has been killed since, with all others."""
    task = claimed_task(connection, now=NOON - MINUTE)
    connection.execute(text("UPDATE task_worker SET seen_at = :at"), {"at": NOON - HOUR})
    connection.execute(text("UPDATE task_lease SET done_at = :at"), {"at": NOON - HOUR})
    return task.task_id


def scanned_by_nobody(connection: Connection) -> int:
    """The same, of one that waits; its queue is served by a child that was just killed."""
    rescued_by_nobody(connection)
    dead = {"at": NOON - timedelta(seconds=20)}
    connection.execute(text("UPDATE task_worker SET seen_at = :at"), dead)
    return waits(connection, HOUR)


def ended(event: Event) -> Callable[[Connection], int]:
    def end(connection: Connection) -> int:
        task = claimed_task(connection, now=NOON)
        settle.settle_one(connection, ending(task, event, cause=CAUSE, wait=HOUR), now=NOON)
        return task.task_id

    return end


def cancelling(connection: Connection) -> int:
    task = claimed_task(connection, now=NOON)
    cancel.cancel(connection, task.task_id, now=NOON)
    return task.task_id


def held(connection: Connection) -> int:
    task_id = waits(connection)
    far = "held_due_at = due_at, due_at = '9899-01-01', scan_at = '9899-01-01'"
    connection.execute(text(f"UPDATE task_pending SET {far} WHERE id = :id"), {"id": task_id})
    return task_id


def paused(connection: Connection) -> int:
    queue_settings.pause(connection, "default", now=NOON)
    return waits(connection)


def behind_another(connection: Connection) -> int:
    waits(connection, order_key="k")
    return waits(connection, order_key="k")


def limited(connection: Connection) -> int:
    order_and_limits.set_limit(connection, Limit(GateKind.NAME, "t", 0))
    return waits(connection)


def set_aside_before(connection: Connection) -> int:
    task_id = waits(connection)
    set_aside.park_tasks(connection, [task_id], unknown("new.name"), LEASE, now=NOON)
    return task_id


def refused_long_ago(connection: Connection) -> int:
    """What was noted when Celery ran here tells nothing of tasks that need no broker."""
    leader_lease.record_refusal(connection, "scan", "It is away", now=NOON - HOUR)
    return waits(connection)


def nobody_left(connection: Connection) -> int:
    connection.execute(text("DELETE FROM task_worker"))
    return waits(connection)


SITUATIONS: dict[str, tuple[Callable[[Connection], int], str]] = {
    "no such task": (lambda _: 987_654_321, "unknown"),
    "succeeded": (ended(Event.SUCCEED), "ended"),
    "cancelled": (ended(Event.CANCEL), "ended"),
    "failed": (ended(Event.FAIL), "failed"),
    "runs": (lambda c: claimed_task(c, now=NOON).task_id, "running"),
    "told to stop": (cancelling, "cancel requested"),
    "lease over": (lambda c: claimed_task(c, now=NOON - MINUTE).task_id, "lease over"),
    "lease over, nobody lives": (rescued_by_nobody, "lease over"),
    "held": (held, "held"),
    "disabled": (lambda c: waits(c, enabled=False), "disabled"),
    "expired": (lambda c: waits(c, HOUR, expires_at=NOON - MINUTE), "expired"),
    "not due": (lambda c: waits(c, delay="1h"), "not due"),
    "snoozed": (ended(Event.SNOOZE), "not due"),
    "paused": (paused, "paused"),
    "no worker of its queue": (lambda c: waits(c, queue="mail"), "no worker"),
    "all workers ended in order": (nobody_left, "no worker"),
    "unknown name": (lambda c: pending_task(c, "new.name", now=NOON), "no handler"),
    "nobody scans": (scanned_by_nobody, "no scan"),
    "order key": (behind_another, "order"),
    "limit": (limited, "limit"),
    "set aside": (set_aside_before, "parked"),
    "first in line": (waits, "in line"),
    "late in line": (lambda c: waits(c, HOUR), "in line"),
    "alone": (lambda c: waits(c, at_most_once=True), "in line"),
    "long ago refused": (refused_long_ago, "in line"),
}


def of_work(connection: Connection) -> None:
    a_child(connection, node="host")
    leader_lease.record_duty_without_lease(connection, "scan", "work w1", now=NOON)


def of_celery(connection: Connection) -> None:
    a_child(connection)
    a_scan(connection)


WAYS = {
    "work": (of_work, "tasks-app", ("celery", "start beat", "broker", "manage.py")),
    "celery": (of_celery, "tasks-app", ("tasks-app work", "manage.py")),
    "django": (of_work, "manage.py tasks_app", ("tasks-app", "celery", "start beat", "broker")),
}
"""Who runs tasks, how the command was called, and what no advice may name."""


@in_one_test("situation, way", ((one, way) for one in SITUATIONS for way in WAYS))
def test_each_reason_is_the_same_and_advises_what_runs_here(
    connection: Connection, situation: str, way: str
) -> None:
    arrange, subject = SITUATIONS[situation]
    processes, program, foreign = WAYS[way]
    before = connection.begin_nested()
    processes(connection)
    task_id = arrange(connection)

    with click.Context(click.Command(None), info_name=program):
        said = [finding_with_program_name(finding) for finding in ask(connection, task_id).findings]

    before.rollback()
    if (situation, way) == ("long ago refused", "celery"):
        subject = "broker"
    assert said[0].subject == subject
    words = " ".join(f"{finding.fact} {finding.advice}" for finding in said).lower()
    assert not [word for word in foreign if word in words], words
    assert "scanned for due tasks yet" not in words
