"""What a check-up finds of workers, due tasks, locks, schedules and what holds tasks back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from tasks_app import Settings, create_schedule, create_task
from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode
from tasks_app.domain.locks import LockRequest, lock_parts
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.monitor.checks import flow_control, work
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.locks.acquire import acquire, insert_resources
from tasks_app.pool.operations.diagnostics import due_work
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.pool.tables import database_now
from tasks_app.runtime.handlers.registry import Registry, handler
from tests.factory import claimed_task, ending
from tests.monitor.conftest import Run, a_child, a_scan, levels, said
from tests.pool.test_statistics import KEPT, part, put


def test_without_workers_what_is_due_is_a_failure(connection: Connection, run: Run) -> None:
    idle = run(work.living, work.reach)
    create_task(connection, "t", queue="mail")
    create_task(connection, "t", queue="mail", delay=60)
    (finding,) = run(work.reach)
    assert levels(idle) == ["warn"]
    assert said([finding]) == ["fail queues: 1 due in mail, served by no worker"]
    assert finding.advice == (
        "Start one: celery -A tasks_app worker -E -Q mail, "
        "or without a broker: tasks-app work -q mail"
    )


def test_tasks_behind_one_that_failed_for_good_are_told(connection: Connection, run: Run) -> None:
    """Its scan looks again only when the key is free, so nothing else would show it."""
    held, passed = claimed_task(connection), claimed_task(connection)
    keys = text("UPDATE task_pending SET order_key = :key, order_skips = :skips WHERE id = :id")
    for task, key, skips in ((held, "tenant:7", None), (passed, "tenant:8", True)):
        connection.execute(keys, {"id": task.task_id, "key": key, "skips": skips})
    for key in ("tenant:7", "tenant:7", "tenant:8"):
        create_task(connection, "t", order_key=key)
    before = run(work.stuck)
    for task in (held, passed):
        settle_one(connection, ending(task, Event.FAIL, failures=1, cause=Cause("E", "no")))
    (finding,) = run(work.stuck)

    assert before == []
    (one,) = said([finding])
    assert one == (
        "warn order keys: 2 waiting behind tasks that failed for good: "
        f"order key tenant:7 is held by task {held.task_id}"
    )
    number = held.task_id
    assert finding.advice == f"tasks-app requeue {number}, or: tasks-app unblock {number}"


def test_handlers_that_no_worker_knows_are_named(connection: Connection, run: Run) -> None:
    a_child(connection, handlers=["t", "mail.send"])
    a_child(connection, "v", queues=["post"], handlers=["ship"])
    for name in ("t", "mail.sent", "ship"):
        create_task(connection, name)
    connection.exec_driver_sql("UPDATE task_pending SET due_at = now() - interval '3 hours'")

    found = run(work.reach)

    assert said(found) == [
        "fail handlers: 1 due for mail.sent, known to no worker; similar: mail.send",
        "fail handlers: 1 due for ship in default, whose workers do not know it",
    ]
    assert found[1].advice == "Workers of post do: one of them must serve default, too."
    more_workers = run(work.waiting)  # would help the first alone
    assert said(more_workers) == ["warn due tasks: 1 waiting, t in default for 3 h"]
    assert said(run(work.living)) == ["ok workers: 2 children of n@host"]


def test_tasks_in_another_queue_than_their_handlers_are_listed(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry()
    monkeypatch.setattr(work, "HANDLERS", registry)
    for name, queue in (("t", "default"), ("mail.send", "mail")):
        handler(name, queue=queue, registry=registry)(lambda ctx: None)
    for name, queue in (("t", "default"), ("mail.send", "mail"), ("mail.send", "default")):
        create_task(connection, name, queue=queue)

    meant = work.elsewhere(connection, due_work(connection))
    queue_settings.pause(connection, "mail")
    past_its_pause = work.elsewhere(connection, due_work(connection))

    fact = "queues: 1 due for mail.send in default, its handler's is mail"
    assert said([*meant, *past_its_pause]) == [f"ok {fact}", f"warn {fact}, which stands still"]
    assert meant[0].advice.endswith("tasks-app move --name mail.send --queue default --to mail")


def test_services_that_share_a_queue_are_told(connection: Connection, run: Run) -> None:
    a_child(connection, queues=["default", "mail"], handlers=["t", "bill"])
    a_child(connection, "v", handlers=["t", "ship"])
    quiet = run(work.shared)
    create_task(connection, "t")
    every_worker_knows_it = run(work.shared)
    create_task(connection, "ship")
    (finding,) = run(work.shared)

    assert said(quiet) == said(every_worker_knows_it)
    assert said(quiet) == [
        "ok queues: default is served by workers with different handlers; not all know bill, ship"
    ]
    assert said([finding]) == [
        "warn queues: default is served by workers with different handlers; not all know ship"
    ]
    assert finding.advice == "A task may make a detour. Give each service a queue of its own."


def test_who_scans_and_when_is_told(connection: Connection, run: Run) -> None:
    connection.exec_driver_sql("DELETE FROM task_lease")
    never = run(work.scanning)
    a_scan(connection, leader_lease.Rank.STANDBY)
    standby = run(work.scanning)
    a_scan(connection)
    beat = run(work.scanning)
    connection.exec_driver_sql("UPDATE task_lease SET done_at = now() - interval '3 minutes'")
    idle = run(work.scanning)
    create_task(connection, "t")
    connection.exec_driver_sql("UPDATE task_pending SET due_at = now() - interval '2 minutes'")
    late = run(work.scanning)

    assert said([*never, *standby, *beat, *idle, *late]) == [
        "warn scan: no process has scanned yet",
        "warn scan: the last one was 0 s ago, by b@host, which stands in",
        "ok scan: the last one was 0 s ago, by b@host",
        "warn scan: the last one was 3 min ago, by b@host",
        "fail scan: the last one was 3 min ago, by b@host",
    ]


def test_where_only_work_runs_nothing_of_celery_is_missed(
    connection: Connection, settings: Settings, run: Run
) -> None:
    connection.exec_driver_sql("DELETE FROM task_lease")
    a_child(connection, node="host")
    alive = run(work.scanning)
    leader_lease.record_duty_without_lease(connection, leader_lease.SCAN, "work w")
    connection.exec_driver_sql("UPDATE task_lease SET done_at = now() - interval '3 minutes'")
    leader_lease.record_refusal(connection, leader_lease.SCAN, "of a time when Celery ran here")
    busy = run(work.scanning, work.publishing)
    heartbeats.remove_heartbeat(connection, "w")
    claimed_task(connection)
    connection.exec_driver_sql("UPDATE task_pending SET lease_until = now() - interval '2 minutes'")
    checks = work.living, work.rescue, work.scanning, work.publishing
    gone = [finding for check in checks for finding in check(connection, settings)]
    gone += run(work.reach)

    assert said([*alive, *busy]) == ["ok scan: tasks-app work polls for due tasks by itself"] * 2
    assert said(gone) == [
        "warn workers: none is alive",
        "fail rescue: 1 running beyond the lease, for 2 min",
        "warn scan: the last one was 3 min ago, by work w",
    ]
    assert [finding.advice for finding in gone] == [
        "Start one: tasks-app work",
        "No scan has rescued them. Start tasks-app work, and read its log.",
        "Start tasks-app work, and read its log.",
    ]


def test_a_task_of_a_paused_queue_does_not_wait_for_workers(
    connection: Connection, run: Run
) -> None:
    a_child(connection, queues=["default", "mail"])
    create_task(connection, "t", queue="mail")
    queue_settings.pause(connection, "mail")
    assert said(run(work.waiting)) == ["ok due tasks: none waits that could run"]


def test_failed_tasks_are_told_by_cause(connection: Connection, run: Run) -> None:
    none = run(work.failed)
    for kind in ("OSError", "OSError", "ValueError"):
        task = claimed_task(connection)
        cause = Cause(kind, "the bank\nis away")
        settle_one(connection, ending(task, Event.FAIL, failures=1, cause=cause))

    found = run(work.failed)

    assert said(none) == ["ok failed: no task is in the error pool, or none that has a cause"]
    assert said(found) == [
        "warn failed: 2 of t: OSError: the bank",
        "warn failed: 1 of t: ValueError: the bank",
    ]
    assert found[0].advice.startswith("To see it: tasks-app errors show ")


def test_a_failed_task_may_have_no_text(connection: Connection, run: Run) -> None:
    task = claimed_task(connection)
    settle_one(connection, ending(task, Event.FAIL, failures=1, cause=Cause("OSError", "away")))
    connection.exec_driver_sql("UPDATE task_error SET error = NULL")
    assert said(run(work.failed)) == ["warn failed: 1 of t: without a text"]


def test_queues_that_somebody_stopped_are_told(connection: Connection, run: Run) -> None:
    none = run(flow_control.paused)
    queue_settings.pause(connection, "mail", "the provider is down")
    (finding,) = run(flow_control.paused)
    assert none == []
    assert finding.fact.startswith("mail is paused since 20")
    assert finding.fact.endswith("Z: the provider is down")
    assert finding.advice == "To resume: tasks-app resume mail"


def test_a_pause_of_all_ends_with_a_command_for_a_shell(connection: Connection, run: Run) -> None:
    queue_settings.pause(connection, "*")
    (finding,) = run(flow_control.paused)
    assert finding.advice == "To resume: tasks-app resume --all"


def test_what_waits_for_long_is_told(connection: Connection, run: Run) -> None:
    a_child(connection)
    create_task(connection, "t")
    fresh = run(work.waiting)
    connection.exec_driver_sql("UPDATE task_pending SET due_at = now() - interval '3 hours'")
    late = run(work.waiting)
    assert said([*fresh, *late]) == [
        "ok due tasks: 1 waiting, t in default for 0 s",
        "warn due tasks: 1 waiting, t in default for 3 h",
    ]


def test_leases_that_nobody_takes_back_are_seen(connection: Connection, run: Run) -> None:
    claimed_task(connection)
    good = run(work.rescue)
    connection.exec_driver_sql("UPDATE task_pending SET lease_until = now() - interval '20 s'")
    leader_lease.record_duty_without_lease(connection, leader_lease.SCAN, "work w")
    soon = run(work.rescue)
    connection.exec_driver_sql("UPDATE task_lease SET done_at = now() - interval '40 s'")
    connection.exec_driver_sql("UPDATE task_pending SET lease_until = now() - interval '2 minutes'")
    bad = run(work.rescue, work.scanning)
    a_child(connection, node="host")
    just_started = run(work.rescue)

    assert said([*good, *soon, *bad]) == [
        "ok rescue: no task runs beyond its lease",
        "warn rescue: 1 running beyond the lease, for 20 s",
        "fail rescue: 1 running beyond the lease, for 2 min",
        "warn scan: the last one was 40 s ago, by work w",
    ]
    assert said(just_started) == ["warn rescue: 1 running beyond the lease, for 2 min"]
    assert "Start" not in just_started[0].advice


def test_runs_that_had_no_end_are_counted(connection: Connection, run: Run) -> None:
    good = run(work.left)
    at = database_now(connection)
    put(connection, "a", part(at, 3, outcome=CountedOutcome.LEFT))
    roll_up(connection, None, KEPT, now=at + timedelta(minutes=2))
    bad = run(work.left)
    assert said([*good, *bad]) == [
        "ok runs: each run of the last day has ended",
        "warn runs: 3 runs of the last day had no end, and went back",
    ]


def test_rows_that_the_database_refuses_are_told(connection: Connection, run: Run) -> None:
    row_by_row(connection, [7], lambda _: connection.exec_driver_sql("SELECT 1 / 0"), "rescue")
    (found,) = run(work.refused)
    assert found.fact.startswith("rescue refused: 7 (DivisionByZero 22012), the last at 2")
    assert found.level == "fail"


def test_a_run_far_longer_than_others_of_its_name_is_told(connection: Connection, run: Run) -> None:
    task = claimed_task(connection)
    begun = text("UPDATE task_pending SET started_at = now() - make_interval(mins => :m)")
    at = connection.execute(text("SELECT date_trunc('minute', now())")).scalar_one()
    counted = at - timedelta(minutes=5)
    for number in (work.LEAST_RUNS - 1, 1):  # ended within 4 ms
        put(connection, f"s{number}", part(counted, number))
        roll_up(connection, None, KEPT, now=counted + timedelta(minutes=2))
        connection.execute(begun, {"m": 10})
        found = run(work.slow_runs)
        assert bool(found) == (number == 1), "of few runs nothing is known"
    (long,) = found

    assert long.fact.startswith(f"task {task.task_id} (t) has run for 10 min; 99 of 100 of its")
    assert f"tasks-app explain {task.task_id}" in long.advice
    connection.execute(begun, {"m": 0})
    assert run(work.slow_runs) == []


def test_breakers_that_somebody_keeps_by_hand_are_told(connection: Connection, run: Run) -> None:
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["t"]}, ["t"])
    told = []
    for mode in (BreakerMode.OPEN, BreakerMode.CLOSED, BreakerMode.AUTO):
        circuit_breakers.override(connection, "bank", mode)
        told += [run(flow_control.dependencies)]
    (kept_open,), (kept_closed,), left_alone = told

    assert kept_open.fact.startswith("bank is kept open by hand since 2")
    assert kept_closed.fact.startswith("bank is kept closed by hand since 2")
    assert {kept_open.advice, kept_closed.advice} == {
        "To leave it to the outcomes again: tasks-app breakers auto bank"
    }
    assert left_alone == []


def test_a_breaker_that_probes_and_holds_nothing_is_ok(connection: Connection, run: Run) -> None:
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["t"]}, ["t"])
    circuit_breakers.override(connection, "bank", BreakerMode.OPEN)
    circuit_breakers.override(connection, "bank", BreakerMode.AUTO)
    (finding,) = run(flow_control.dependencies)
    assert said([finding])[0].startswith("ok breakers: bank is probing since 2")
    assert finding.advice == "Nothing to do: the next task decides."


@pytest.mark.parametrize(("minutes_ago", "levels_"), [(11, ["warn"]), (13, [])])
def test_messages_of_another_pool_are_told_until_none_came_for_long(
    connection: Connection, run: Run, minutes_ago: int, levels_: list[str]
) -> None:
    a_scan(connection)
    now = connection.execute(text("SELECT statement_timestamp()")).scalar_one()
    then = now - timedelta(minutes=minutes_ago)
    leader_lease.count_foreign_messages(connection, leader_lease.SCAN, 3, now=then)
    assert levels(run(work.strangers)) == levels_


SPAN = timedelta(minutes=5)


def wanted(connection: Connection, who: str) -> None:
    ask = LockRequest(uuid4(), lock_parts("a"), who, SPAN)
    insert_resources(connection, ask)
    acquire(connection, ask, waits=True)


def test_all_is_well_with_locks(connection: Connection, run: Run) -> None:
    wanted(connection, "one")
    wanted(connection, "two")
    assert said(run(flow_control.held)) == ["ok locks: 1 held, 1 waited for"]


def test_a_lease_that_is_over(connection: Connection, run: Run) -> None:
    wanted(connection, "one")
    connection.execute(text("UPDATE task_lock_holder SET lease_until = now() - interval '3 min'"))
    assert said(run(flow_control.held)) == ["warn locks: one holds a 3 min beyond its lease"]


def test_a_long_wait(connection: Connection, run: Run) -> None:
    for who in ("one", "two", "three"):
        wanted(connection, who)
    connection.execute(text("UPDATE task_lock_holder SET asked_at = now() - interval '4 min'"))
    assert said(run(flow_control.held)) == ["warn locks: two has waited for a for 4 min and 1 more"]


Firing = Callable[[], list[str]]


@pytest.fixture
def firing(connection: Connection, run: Run) -> Firing:
    """The findings, when a schedule of ``t`` is there and a worker that knows it."""
    a_child(connection)
    create_schedule(connection, "s", "t", every="1h")
    return lambda: said(run(flow_control.firing))


def change(connection: Connection, what: str) -> None:
    connection.execute(text(f"UPDATE task_schedule SET {what}"))


def test_all_is_well_in_schedules(firing: Firing) -> None:
    assert firing() == ["ok schedules: 1 enabled, none is late"]


def test_one_that_is_late(firing: Firing, connection: Connection) -> None:
    change(connection, "next_run_at = statement_timestamp() - interval '61 min'")
    (finding,) = firing()
    assert finding.startswith("fail schedules: s should have fired 61 min")
    change(connection, "enabled = false")
    assert firing() == ["ok schedules: 0 enabled, none is late"]


def test_one_that_is_broken(firing: Firing, connection: Connection) -> None:
    change(connection, "remark = 'cron is x', next_run_at = NULL")
    assert firing() == ["fail schedules: s is broken"]


def test_one_whose_task_nobody_knows(firing: Firing, connection: Connection) -> None:
    heartbeats.remove_heartbeat(connection, "w")
    assert firing() == [
        "ok schedules: 1 enabled, none is late"
    ]  # without workers another check says it
    a_child(connection, "w2", handlers=["another"])
    assert firing() == ["warn schedules: s creates tasks of t, which no worker knows"]


def test_a_look_takes_no_notice_of_seconds(firing: Firing, connection: Connection) -> None:
    change(connection, "next_run_at = statement_timestamp() - interval '30 s'")
    assert firing() == ["ok schedules: 1 enabled, none is late"]
