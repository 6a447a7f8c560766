"""What a check-up finds in a real database that is ill in one way at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from pydantic import ValidationError
from sqlalchemy import Connection, Engine, text

from tasks_app import Settings, create_task
from tasks_app.domain.finding import Finding
from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.monitor.checks import database, flow_control, work
from tasks_app.monitor.checks.checkup import examine, run_checks
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.dispatch import leader_lease, notifications
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.operations import diagnostics, maintenance
from tasks_app.pool.operations.diagnostics import due_work
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.operations.maintenance import RelationSize
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.schema import newest
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.pool.tables import database_now
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import Registry, handler
from tests.factory import claimed_task, ending, pending_task
from tests.pool.database import NAME, old_day
from tests.pool.test_statistics import KEPT, part, put
from tests.servers import named, not_of_a_given_server

FOR_EVER = {"keep_completed": "forever"}
GRANTS = "\n".join(grants_sql(kind, str(kind)) for kind in RoleKind)


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url)


def said(findings: list[Finding]) -> list[str]:
    return [f"{f.level} {f.subject}: {f.fact}" for f in findings]


def levels(findings: list[Finding]) -> list[str]:
    return [str(finding.level) for finding in findings]


Pretend = Callable[..., None]


@pytest.fixture
def pretend(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Make the server say something else of itself."""
    true = diagnostics.server(connection)

    def say(**other: object) -> None:
        monkeypatch.setattr(diagnostics, "server", lambda _: replace(true, **other))

    return say


def a_child(
    connection: Connection, owner: str = "w", node: str = "n@host", **given: list[str]
) -> None:
    known = {"queues": ["default"], "handlers": ["t"], **given}
    heartbeats.write_heartbeat(connection, owner=owner, node=node, **known)


def a_scan(connection: Connection, rank: leader_lease.Rank = leader_lease.Rank.BEAT) -> None:
    ttl = timedelta(seconds=5)
    token = uuid4()
    leader_lease.acquire_lease(
        connection, leader_lease.SCAN, holder="b@host", token=token, rank=rank, ttl=ttl
    )
    leader_lease.record_duty(connection, leader_lease.SCAN, token, ttl)


@pytest.mark.test_all
def test_a_healthy_database_has_nothing_to_complain_of(engine: Engine, settings: Settings) -> None:
    with engine.begin() as connection:
        a_child(connection)
        a_scan(connection)
    findings = examine(settings)
    assert set(levels(not_of_a_given_server(findings))) == {"ok"}, said(findings)
    assert [f.subject for f in findings] == [
        *("database", "schema", "privileges", "durability", "partitions", "retention"),
        *("autovacuum", "bloat", "transactions", "connections", "planner", "wake-ups"),
        *("handlers' SQL", "workers", "scan", "queues"),
        *("due tasks", "rescue", "runs", "failed", "schedules", "locks"),
    ]


def test_bloated_indexes_are_told(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        RelationSize("t", "fat", "index", 80 << 20, 10 << 20),
        RelationSize("t", "heap", "table", 80 << 20, 1),
    ]
    monkeypatch.setattr(database, "sizes", lambda _: found)
    assert said(database.bloat(connection, settings)) == ["warn bloat: 70 MB are wasted by fat"]


def test_old_servers_and_other_encodings_are_told(
    connection: Connection, settings: Settings, pretend: Pretend
) -> None:
    seen = []
    for other in ({"major": 13}, {"major": 14}, {"major": 19}, {"encoding": "SQL_ASCII"}, {}):
        pretend(**other)
        seen += levels(database.version(connection, settings))
    assert seen == ["fail", "ok", "warn", "fail", "ok"]


def test_another_schema_ends_the_check_up(engine: Engine, settings: Settings) -> None:
    with engine.begin() as connection:
        was = connection.execute(text("SELECT version_num FROM tasks_app_version")).scalar()
        connection.execute(text("UPDATE tasks_app_version SET version_num = '0000'"))
    try:
        findings = examine(settings)
    finally:
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE tasks_app_version SET version_num = :was"), {"was": was}
            )

    assert levels(findings) == ["ok", "fail"]
    assert (findings[1].subject, findings[1].advice) == ("schema", "Run: tasks-app migrate")


def test_a_newer_schema_that_admits_this_code_is_a_warning(
    connection: Connection, settings: Settings
) -> None:
    newer = text("UPDATE tasks_app_version SET version_num = '9999', oldest_code = :oldest")
    connection.execute(newer, {"oldest": newest()})
    admitted = database.schema(connection, settings)
    connection.execute(newer, {"oldest": "9999"})
    refused = database.schema(connection, settings)
    assert said(admitted)[0].startswith("warn schema: The schema has version 9999; this code is")
    assert said(refused)[0].startswith("fail schema: This code is older than the schema: ")
    assert [f.advice for f in (*admitted, *refused)] == [
        "Upgrade tasks_app soon.",
        "Upgrade tasks_app.",
    ]


def test_missing_privileges_are_named_until_they_are_granted(
    connection: Connection, settings: Settings
) -> None:
    for role in RoleKind:
        connection.exec_driver_sql(f"CREATE ROLE {role}")
    connection.exec_driver_sql("SET LOCAL ROLE worker")
    (before,) = database.privileges(connection, settings)
    connection.exec_driver_sql("RESET ROLE")
    connection.exec_driver_sql(GRANTS)
    connection.exec_driver_sql("SET LOCAL ROLE worker")
    (after,) = database.privileges(connection, settings)
    (blind,) = database.transactions(connection, settings)

    assert said([before])[0].startswith("fail privileges: worker lacks SELECT on task_pending")
    assert "and 81 more" in before.fact
    assert "need the owner of the tables" in after.fact
    assert "this role cannot see others" in blind.fact


def test_a_server_that_forgets_commits_is_told(connection: Connection, settings: Settings) -> None:
    good = database.durability(connection, settings)
    connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
    bad = database.durability(connection, settings)
    assert said([*good, *bad]) == [
        "ok durability: commits survive a crash of the server",
        "warn durability: synchronous_commit = off",
    ]


def test_a_pooler_that_drops_what_we_set_is_seen(
    connection: Connection, database_url: str, settings: Settings
) -> None:
    dropped = database.planner(connection, settings)  # a connection for which nothing was set
    ours = []
    for prepare in (True, False):
        ends = Database(database_url, prepare=prepare)
        with ends.begin() as connection_of_ours:
            ours += database.planner(connection_of_ours, settings)
        ends.dispose()
    assert levels([*dropped, *ours]) == ["warn", "ok", "ok"]
    assert "enable_seqscan = on" in dropped[0].fact
    assert "TASKS_APP_PREPARE=off" in dropped[0].advice


def test_it_says_who_is_told_of_new_tasks(connection: Connection, settings: Settings) -> None:
    found = database.wake_ups(connection, settings)
    found += database.wake_ups(connection, settings.model_copy(update={"hints": False}))
    notifications.install_trigger(connection)
    found += database.wake_ups(connection, settings)
    tells = "ok wake-ups: the database notifies tasks-app work and beat "
    assert said(found) == [
        f"{tells}not of those that SQL creates (tasks-app notify install)",
        "ok wake-ups: TASKS_APP_HINTS is off: tasks-app work polls every 1s",
        f"{tells}of all tasks",
    ]


def test_a_server_that_cuts_off_handlers_is_seen(
    connection: Connection, settings: Settings
) -> None:
    seen = database.handlers(connection, settings)
    for span in ("20s", "5min"):
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{span}'")
        seen += database.handlers(connection, settings)
    assert levels(seen) == ["ok", "warn", "ok"]
    assert seen[1].fact.endswith("cut off by idle_in_transaction_session_timeout = 20 s")


def test_partitions_that_run_out_and_strays_are_seen(
    connection: Connection, settings: Settings
) -> None:
    names = connection.execute(
        text("SELECT inhrelid::regclass::text FROM pg_inherits"
             " WHERE inhparent = 'task_completed'::regclass AND inhrelid::regclass::text"
             " ~ 'p2' ORDER BY 1 DESC")
    ).scalars().all()  # fmt: skip
    seen = levels(database.partitions(connection, settings))
    for name in names[:-2]:
        connection.exec_driver_sql(f"DROP TABLE {name}")
    seen += levels(database.partitions(connection, settings))
    for name in names[-2:]:
        connection.exec_driver_sql(f"DROP TABLE {name}")
    a_child(connection)
    task = claimed_task(connection)
    connection.execute(
        text("WITH gone AS (DELETE FROM task_pending WHERE id = :id RETURNING *)"
             " INSERT INTO task_completed (id, name, queue, priority, payload, enabled, attempt,"
             " failures, crashes, retry_level, due_at, idempotency_key, created_at, state,"
             " finished_at, at_most_once)"
             " SELECT id, name, queue, priority, payload, enabled, attempt, failures, crashes,"
             " retry_level, due_at, idempotency_key, created_at, 'SUCCEEDED', now(), at_most_once"
             " FROM gone"),
        {"id": task.task_id},
    )  # fmt: skip
    findings = database.partitions(connection, settings)

    assert seen == ["ok", "warn"]
    assert levels(findings) == ["fail", "warn"]
    assert "holds rows" in findings[1].fact


def test_vacuum_that_is_switched_off_is_seen(
    connection: Connection, settings: Settings, pretend: Pretend
) -> None:
    pretend(autovacuum=True)
    good = database.vacuum(connection, settings)
    connection.exec_driver_sql("ALTER TABLE task_pending SET (autovacuum_enabled = off)")
    (table,) = database.vacuum(connection, settings)
    pretend(autovacuum=False)
    (everywhere,) = database.vacuum(connection, settings)
    assert levels([*good, table, everywhere]) == ["ok", "fail", "fail"]
    assert table.advice == "ALTER TABLE task_pending RESET (autovacuum_enabled);"


@pytest.mark.parametrize(
    ("nodes", "told", "whose", "needed"),
    [
        (["celery@h"] * 4, {}, "4 children", 20),
        (["h"] * 4, {}, "4 children of tasks-app work", 24),
        (["h"] * 4, {"hints": False}, "4 children of tasks-app work", 20),
        (["h", "celery@h", "celery@i"], {}, "2 children of Celery and 1 of tasks-app work", 16),
        (["celery@h"] * 2, {"threads": 5}, "2 children", 18),
    ],
)
def test_more_children_than_connections_are_seen(
    connection: Connection,
    settings: Settings,
    pretend: Pretend,
    nodes: list[str],
    told: dict[str, object],
    whose: str,
    needed: int,
) -> None:
    for n, node in enumerate(nodes):
        a_child(connection, f"w{n}", node=node)
    settings, seen = settings.model_copy(update=told), []
    for most in (needed, needed - 1):
        pretend(connections=most)
        seen += said(database.connections(connection, settings))
    assert seen == [
        f"ok connections: {whose} take up to {needed} of {needed}",
        f"warn connections: {whose} take up to {needed} of {needed - 1}",
    ]


def test_the_limit_of_a_role_is_named(connection: Connection, settings: Settings) -> None:
    role = named("limited")
    connection.execute(text(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 5"))
    connection.execute(text(f"GRANT UPDATE ON task_pending TO {role}"))
    for n in range(2):
        a_child(connection, f"w{n}")
    (finding,) = database.connections(connection, settings)
    assert finding.fact == (
        f"2 children take up to 10, the connection limit of role {role} is 5, and 0 are in use"
    )
    assert finding.advice.startswith(f"ALTER ROLE {role} CONNECTION LIMIT …, start fewer")


def test_transactions_that_hold_vacuum_up_are_named(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.connect() as other, engine.connect() as mine:
        pid = other.execute(text("SELECT pg_backend_pid()")).scalar()
        patient = database.transactions(mine, settings)
        monkeypatch.setattr(database, "LONG_IDLE", timedelta(0))
        (finding,) = database.transactions(mine, settings)
    assert levels(patient) == ["ok"]
    assert finding.fact.startswith("idle and open: ")
    assert f"session {pid} of {engine.url.username} for 0 s" in finding.fact


def test_a_statement_that_runs_for_long_is_named(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = diagnostics.OpenTransaction(
        "session 7", "report", idle=False, open_for=timedelta(hours=3)
    )
    monkeypatch.setattr(diagnostics, "open_transactions", lambda _: [busy] * 5)
    (finding,) = database.transactions(connection, settings)
    assert finding.fact.startswith("long open: session 7 of report for 3 h, session 7")
    assert finding.fact.endswith("and 2 more")


def test_without_workers_what_is_due_is_a_failure(
    connection: Connection, settings: Settings
) -> None:
    idle = [
        *work.living(connection, settings),
        *work.reach(connection, settings, due_work(connection)),
    ]
    create_task(connection, "t", queue="mail")
    create_task(connection, "t", queue="mail", delay=60)
    (finding,) = work.reach(connection, settings, due_work(connection))

    assert levels(idle) == ["warn"]
    assert said([finding]) == ["fail queues: 1 due in mail, served by no worker"]
    assert finding.advice == (
        "Start one: celery -A tasks_app worker -E -Q mail, "
        "or without a broker: tasks-app work -q mail"
    )


def test_who_waits_behind_a_task_that_failed_for_good_is_told(
    connection: Connection, settings: Settings
) -> None:
    """Its scan looks again only when the key is free, so nothing else would show it."""
    held, passed = claimed_task(connection), claimed_task(connection)
    keys = text("UPDATE task_pending SET order_key = :key, order_skips = :skips WHERE id = :id")
    for task, key, skips in ((held, "tenant:7", None), (passed, "tenant:8", True)):
        connection.execute(keys, {"id": task.task_id, "key": key, "skips": skips})
    for key in ("tenant:7", "tenant:7", "tenant:8"):
        create_task(connection, "t", order_key=key)
    before = work.stuck(connection, settings)
    for task in (held, passed):
        settle_one(connection, ending(task, Event.FAIL, failures=1, cause=Cause("E", "no")))
    (finding,) = work.stuck(connection, settings)

    assert before == []
    (one,) = said([finding])
    assert one == (
        "warn order keys: 2 waiting behind tasks that failed for good: "
        f"order key tenant:7 is held by task {held.task_id}"
    )
    number = held.task_id
    assert finding.advice == f"tasks-app requeue {number}, or: tasks-app unblock {number}"


def test_handlers_that_no_worker_knows_are_named(
    connection: Connection, settings: Settings
) -> None:
    a_child(connection, handlers=["t", "mail.send"])
    a_child(connection, "v", queues=["post"], handlers=["ship"])
    for name in ("t", "mail.sent", "ship"):
        create_task(connection, name)
    connection.exec_driver_sql("UPDATE task_pending SET due_at = now() - interval '3 hours'")

    found = work.reach(connection, settings, due_work(connection))

    assert said(found) == [
        "fail handlers: 1 due for mail.sent, known to no worker; similar: mail.send",
        "fail handlers: 1 due for ship in default, whose workers do not know it",
    ]
    assert found[1].advice == "Workers of post do: one of them must serve default, too."
    more_workers = work.waiting(
        connection, settings, due_work(connection)
    )  # would help the first alone
    assert said(more_workers) == ["warn due tasks: 1 waiting, t in default for 3 h"]
    assert said(work.living(connection, settings)) == ["ok workers: 2 children of n@host"]


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


def test_services_that_share_a_queue_are_told(connection: Connection, settings: Settings) -> None:
    a_child(connection, queues=["default", "mail"], handlers=["t", "bill"])
    a_child(connection, "v", handlers=["t", "ship"])
    quiet = work.shared(connection, settings, due_work(connection))
    create_task(connection, "t")
    every_worker_knows_it = work.shared(connection, settings, due_work(connection))
    create_task(connection, "ship")
    (finding,) = work.shared(connection, settings, due_work(connection))

    assert said(quiet) == said(every_worker_knows_it)
    assert said(quiet) == [
        "ok queues: default is served by workers with different handlers; not all know bill, ship"
    ]
    assert said([finding]) == [
        "warn queues: default is served by workers with different handlers; not all know ship"
    ]
    assert finding.advice == "A task may make a detour. Give each service a queue of its own."


def test_who_scans_and_when_is_told(connection: Connection, settings: Settings) -> None:
    connection.exec_driver_sql("DELETE FROM task_lease")
    never = work.scanning(connection, settings)
    a_scan(connection, leader_lease.Rank.STANDBY)
    standby = work.scanning(connection, settings)
    a_scan(connection)
    beat = work.scanning(connection, settings)
    connection.exec_driver_sql("UPDATE task_lease SET done_at = now() - interval '3 minutes'")
    idle = work.scanning(connection, settings)
    create_task(connection, "t")
    connection.exec_driver_sql("UPDATE task_pending SET due_at = now() - interval '2 minutes'")
    late = work.scanning(connection, settings)

    assert said([*never, *standby, *beat, *idle, *late]) == [
        "warn scan: no process has scanned yet",
        "warn scan: the last one was 0 s ago, by b@host, which stands in",
        "ok scan: the last one was 0 s ago, by b@host",
        "warn scan: the last one was 3 min ago, by b@host",
        "fail scan: the last one was 3 min ago, by b@host",
    ]


def test_where_only_work_runs_nothing_of_celery_is_missed(
    connection: Connection, settings: Settings
) -> None:
    connection.exec_driver_sql("DELETE FROM task_lease")
    a_child(connection, node="host")
    alive = work.scanning(connection, settings)
    leader_lease.record_duty_without_lease(connection, leader_lease.SCAN, "work w")
    connection.exec_driver_sql("UPDATE task_lease SET done_at = now() - interval '3 minutes'")
    leader_lease.record_refusal(connection, leader_lease.SCAN, "of a time when Celery ran here")
    busy = [*work.scanning(connection, settings), *work.publishing(connection, settings)]
    heartbeats.remove_heartbeat(connection, "w")
    claimed_task(connection)
    connection.exec_driver_sql("UPDATE task_pending SET lease_until = now() - interval '2 minutes'")
    checks = work.living, work.rescue, work.scanning, work.publishing
    gone = [finding for check in checks for finding in check(connection, settings)]
    gone += work.reach(connection, settings, due_work(connection))

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


def test_a_task_that_no_scan_could_start_does_not_wait_for_more_workers(
    connection: Connection, settings: Settings
) -> None:
    a_child(connection, queues=["default", "mail"])
    create_task(connection, "t", queue="mail")
    queue_settings.pause(connection, "mail")
    assert said(work.waiting(connection, settings, due_work(connection))) == [
        "ok due tasks: none waits that could run"
    ]


def test_failed_tasks_are_told_by_cause(connection: Connection, settings: Settings) -> None:
    none = work.failed(connection, settings)
    for kind in ("OSError", "OSError", "ValueError"):
        task = claimed_task(connection)
        cause = Cause(kind, "the bank\nis away")
        settle_one(connection, ending(task, Event.FAIL, failures=1, cause=cause))

    found = work.failed(connection, settings)

    assert said(none) == ["ok failed: no task is in the error pool, or none that has a cause"]
    assert said(found) == [
        "warn failed: 2 of t: OSError: the bank",
        "warn failed: 1 of t: ValueError: the bank",
    ]
    assert found[0].advice.startswith("To see it: tasks-app errors show ")


def test_a_failed_task_may_have_no_text(connection: Connection, settings: Settings) -> None:
    task = claimed_task(connection)
    settle_one(connection, ending(task, Event.FAIL, failures=1, cause=Cause("OSError", "away")))
    connection.exec_driver_sql("UPDATE task_error SET error = NULL")
    assert said(work.failed(connection, settings)) == ["warn failed: 1 of t: without a text"]


def test_days_that_should_be_gone_are_told(connection: Connection, settings: Settings) -> None:
    none = database.retention(connection, settings)
    old_day(connection)
    late = database.retention(connection, settings)
    wished = database.retention(connection, settings.model_copy(update=FOR_EVER))
    connection.exec_driver_sql("CREATE ROLE stranger")
    connection.exec_driver_sql("SET LOCAL ROLE stranger")
    stranger = database.retention(connection, settings)

    assert said([*none, *late, *wished[:1]])[:2] == [
        "ok retention: completed tasks are kept 30d, and none is older",
        f"warn retention: completed tasks are kept 30d, but older days are left: {NAME}",
    ]
    assert said(wished)[0].startswith("ok retention: completed tasks are kept for ever: ")
    assert late[0].advice.startswith("Run tasks-app prune: it shows")
    assert "as the owner of the tables" in stranger[0].advice


def test_queues_that_somebody_stopped_are_told(connection: Connection, settings: Settings) -> None:
    none = flow_control.paused(connection, settings)
    queue_settings.pause(connection, "mail", "the provider is down")
    (finding,) = flow_control.paused(connection, settings)
    assert none == []
    assert finding.fact.startswith("mail is paused since 20")
    assert finding.fact.endswith("Z: the provider is down")
    assert finding.advice == "To resume: tasks-app resume mail"


def test_a_pause_of_all_ends_with_a_command_that_a_shell_leaves_alone(
    connection: Connection, settings: Settings
) -> None:
    queue_settings.pause(connection, "*")
    (finding,) = flow_control.paused(connection, settings)
    assert finding.advice == "To resume: tasks-app resume --all"


def test_what_waits_for_long_is_told(connection: Connection, settings: Settings) -> None:
    a_child(connection)
    create_task(connection, "t")
    fresh = work.waiting(connection, settings, due_work(connection))
    connection.exec_driver_sql("UPDATE task_pending SET due_at = now() - interval '3 hours'")
    late = work.waiting(connection, settings, due_work(connection))
    assert said([*fresh, *late]) == [
        "ok due tasks: 1 waiting, t in default for 0 s",
        "warn due tasks: 1 waiting, t in default for 3 h",
    ]


def test_leases_that_nobody_takes_back_are_seen(connection: Connection, settings: Settings) -> None:
    claimed_task(connection)
    good = work.rescue(connection, settings)
    connection.exec_driver_sql("UPDATE task_pending SET lease_until = now() - interval '20 s'")
    leader_lease.record_duty_without_lease(connection, leader_lease.SCAN, "work w")
    soon = work.rescue(connection, settings)
    connection.exec_driver_sql("UPDATE task_lease SET done_at = now() - interval '40 s'")
    connection.exec_driver_sql("UPDATE task_pending SET lease_until = now() - interval '2 minutes'")
    bad = [*work.rescue(connection, settings), *work.scanning(connection, settings)]
    a_child(connection, node="host")
    just_started = work.rescue(connection, settings)

    assert said([*good, *soon, *bad]) == [
        "ok rescue: no task runs beyond its lease",
        "warn rescue: 1 running beyond the lease, for 20 s",
        "fail rescue: 1 running beyond the lease, for 2 min",
        "warn scan: the last one was 40 s ago, by work w",
    ]
    assert said(just_started) == ["warn rescue: 1 running beyond the lease, for 2 min"]
    assert "Start" not in just_started[0].advice


def test_runs_that_had_no_end_are_counted(connection: Connection, settings: Settings) -> None:
    good = work.left(connection, settings)
    at = database_now(connection)
    put(connection, "a", part(at, 3, outcome=CountedOutcome.LEFT))
    roll_up(connection, None, KEPT, now=at + timedelta(minutes=2))
    bad = work.left(connection, settings)
    assert said([*good, *bad]) == [
        "ok runs: each run of the last day has ended",
        "warn runs: 3 runs of the last day had no end, and went back",
    ]


def test_ids_that_will_be_given_twice_are_told_and_migrate_sets_them_forward(
    connection: Connection, settings: Settings
) -> None:
    task_id = pending_task(connection)
    good = database.sequences(connection, settings)
    connection.execute(text("SELECT setval('task_pending_id_seq', 1, false)"))
    (bad,) = database.sequences(connection, settings)
    maintenance.advance_sequences(connection)
    fact = f"task_pending_id_seq gives 1 next, but {task_id} is taken: ids would repeat"
    assert (good, bad.fact) == ([], fact)
    assert database.sequences(connection, settings) == []
    assert pending_task(connection) > task_id


def test_every_sequence_of_ours_is_compared(connection: Connection) -> None:
    query = "SELECT sequencename FROM pg_sequences WHERE schemaname = current_schema()"
    there = connection.exec_driver_sql(query).scalars().all()
    assert sorted(maintenance.GIVEN) == sorted(name for name in there if name.startswith("task"))


def test_rows_that_the_database_refuses_are_told(
    connection: Connection, settings: Settings
) -> None:
    row_by_row(connection, [7], lambda _: connection.exec_driver_sql("SELECT 1 / 0"), "rescue")
    (found,) = work.refused(connection, settings)
    assert found.fact.startswith("rescue refused: 7 (DivisionByZero 22012), the last at 2")
    assert found.level == "fail"


def test_a_run_that_takes_far_longer_than_others_of_its_name_is_told(
    connection: Connection, settings: Settings
) -> None:
    task = claimed_task(connection)
    begun = text("UPDATE task_pending SET started_at = now() - make_interval(mins => :m)")
    at = connection.execute(text("SELECT date_trunc('minute', now())")).scalar_one()
    counted = at - timedelta(minutes=5)
    for number in (work.LEAST_RUNS - 1, 1):  # ended within 4 ms
        put(connection, f"s{number}", part(counted, number))
        roll_up(connection, None, KEPT, now=counted + timedelta(minutes=2))
        connection.execute(begun, {"m": 10})
        found = work.slow_runs(connection, settings)
        assert bool(found) == (number == 1), "of few runs nothing is known"
    (long,) = found

    assert long.fact.startswith(f"task {task.task_id} (t) has run for 10 min; 99 of 100 of its")
    assert f"tasks-app explain {task.task_id}" in long.advice
    connection.execute(begun, {"m": 0})
    assert work.slow_runs(connection, settings) == []


def test_breakers_that_somebody_keeps_by_hand_are_told(
    connection: Connection, settings: Settings
) -> None:
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["t"]}, ["t"])
    told = []
    for mode in (BreakerMode.OPEN, BreakerMode.CLOSED, BreakerMode.AUTO):
        circuit_breakers.override(connection, "bank", mode)
        told += [flow_control.dependencies(connection, settings)]
    (kept_open,), (kept_closed,), left_alone = told

    assert kept_open.fact.startswith("bank is kept open by hand since 2")
    assert kept_closed.fact.startswith("bank is kept closed by hand since 2")
    assert {kept_open.advice, kept_closed.advice} == {
        "To leave it to the outcomes again: tasks-app breakers auto bank"
    }
    assert left_alone == []


def test_a_breaker_that_probes_and_holds_nothing_needs_nobody(
    connection: Connection, settings: Settings
) -> None:
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["t"]}, ["t"])
    circuit_breakers.override(connection, "bank", BreakerMode.OPEN)
    circuit_breakers.override(connection, "bank", BreakerMode.AUTO)
    (finding,) = flow_control.dependencies(connection, settings)
    assert said([finding])[0].startswith("ok breakers: bank is probing since 2")
    assert finding.advice == "Nothing to do: the next task decides."


def test_nobody_at_the_other_end_is_one_finding() -> None:
    (finding,) = examine(Settings(database_url="postgresql+psycopg://u:secret@127.0.0.1:1/x"))
    assert (finding.subject, finding.away) == ("database", True)
    assert "secret" not in str(finding)


@pytest.mark.parametrize("url", ["nonsense:secret", "nonsense://me:secret@host/x"])
def test_a_url_that_is_none_is_said_without_its_secret(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(database_url=url)
    assert "secret" not in str(refused.value)


def test_a_check_that_is_forbidden_is_a_warning(engine: Engine, settings: Settings) -> None:
    def peep(connection: Connection, _: Settings) -> list[Finding]:
        connection.exec_driver_sql("CREATE ROLE nobody_may")
        connection.exec_driver_sql("SET LOCAL ROLE nobody_may")
        connection.exec_driver_sql("SELECT FROM task_pending")
        return []

    findings = run_checks([peep], engine, settings)
    assert said(findings) == ["warn peep: could not be checked (SQLSTATE 42501)"]


@pytest.mark.parametrize(("minutes_ago", "levels_"), [(11, ["warn"]), (13, [])])
def test_messages_of_another_pool_are_told_until_none_came_for_long(
    connection: Connection, settings: Settings, minutes_ago: int, levels_: list[str]
) -> None:
    a_scan(connection)
    now = connection.execute(text("SELECT statement_timestamp()")).scalar_one()
    then = now - timedelta(minutes=minutes_ago)
    leader_lease.count_foreign_messages(connection, leader_lease.SCAN, 3, now=then)
    assert levels(work.strangers(connection, settings)) == levels_
