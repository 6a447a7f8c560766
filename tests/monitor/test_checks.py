"""What a check-up finds in a real database that is ill in one way at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic import ValidationError
from sqlalchemy import Connection, Engine, text

from tasks_app import Settings
from tasks_app.domain.finding import Finding
from tasks_app.monitor.checks import database
from tasks_app.monitor.checks.checkup import examine, run_checks
from tasks_app.pool.dispatch import notifications
from tasks_app.pool.operations import diagnostics, maintenance
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.operations.maintenance import RelationSize
from tasks_app.pool.schema import newest
from tasks_app.runtime.db.database import Database
from tests.clock import until
from tests.factory import claimed_task, pending_task
from tests.monitor.conftest import Run, a_child, a_scan, levels, said
from tests.pool.database import NAME, old_day
from tests.servers import named, not_of_a_given_server

FOR_EVER = {"keep_completed": "forever"}
GRANTS = "\n".join(grants_sql(kind, str(kind)) for kind in RoleKind)


Pretend = Callable[..., None]


@pytest.fixture
def pretend(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Make the server say something else of itself."""
    true = diagnostics.server(connection)

    def say(**other: object) -> None:
        monkeypatch.setattr(diagnostics, "server", lambda _: replace(true, **other))

    return say


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
        *("handler SQL", "workers", "scan", "queues"),
        *("due tasks", "rescue", "runs", "failed", "schedules", "locks"),
    ]


def test_bloated_indexes_are_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        RelationSize("t", "fat", "index", 80 << 20, 10 << 20),
        RelationSize("t", "heap", "table", 80 << 20, 1),
    ]
    monkeypatch.setattr(database, "sizes", lambda _: found)
    assert said(run(database.bloat)) == ["warn bloat: 70 MB are wasted by fat"]


def test_old_servers_and_other_encodings_are_told(run: Run, pretend: Pretend) -> None:
    seen = []
    for other in ({"major": 13}, {"major": 14}, {"major": 19}, {"encoding": "SQL_ASCII"}, {}):
        pretend(**other)
        seen += levels(run(database.version))
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


def test_a_newer_schema_that_admits_our_code_is_a_warning(connection: Connection, run: Run) -> None:
    newer = text("UPDATE tasks_app_version SET version_num = '9999', oldest_code = :oldest")
    connection.execute(newer, {"oldest": newest()})
    admitted = run(database.schema)
    connection.execute(newer, {"oldest": "9999"})
    refused = run(database.schema)
    assert said(admitted)[0].startswith("warn schema: The schema has version 9999; this code is")
    assert said(refused)[0].startswith("fail schema: This code is older than the schema: ")
    assert [f.advice for f in (*admitted, *refused)] == [
        "Upgrade tasks_app soon.",
        "Upgrade tasks_app.",
    ]


def test_missing_privileges_are_named_until_granted(connection: Connection, run: Run) -> None:
    for role in RoleKind:
        connection.exec_driver_sql(f"CREATE ROLE {role}")
    connection.exec_driver_sql("SET LOCAL ROLE worker")
    (before,) = run(database.privileges)
    connection.exec_driver_sql("RESET ROLE")
    connection.exec_driver_sql(GRANTS)
    connection.exec_driver_sql("SET LOCAL ROLE worker")
    (after,) = run(database.privileges)
    (blind,) = run(database.transactions)

    assert said([before])[0].startswith("fail privileges: worker lacks SELECT on task_pending")
    assert "and 81 more" in before.fact
    assert "need the owner of the tables" in after.fact
    assert "this role cannot see others" in blind.fact


def test_a_server_that_forgets_commits_is_told(connection: Connection, run: Run) -> None:
    good = run(database.durability)
    connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
    bad = run(database.durability)
    assert said([*good, *bad]) == [
        "ok durability: commits survive a crash of the server",
        "warn durability: synchronous_commit = off",
    ]


def test_a_pooler_that_drops_what_we_set_is_seen(
    connection: Connection, database_url: str, settings: Settings, run: Run
) -> None:
    dropped = run(database.planner)  # a connection for which nothing was set
    ours = []
    for prepare in (True, False):
        ends = Database(database_url, prepare=prepare)
        with ends.begin() as connection_of_ours:
            ours += database.planner(connection_of_ours, settings)
        ends.dispose()
    assert levels([*dropped, *ours]) == ["warn", "ok", "ok"]
    assert "enable_seqscan = on" in dropped[0].fact
    assert "TASKS_APP_PREPARE=off" in dropped[0].advice


def test_it_says_who_is_told_of_new_tasks(connection: Connection, run: Run) -> None:
    found = run(database.wake_ups)
    found += run(database.wake_ups, hints=False)
    notifications.install_trigger(connection)
    found += run(database.wake_ups)
    tells = "ok wake-ups: the database notifies tasks-app work and beat"
    scan = "tasks created in SQL wait for the next scan (tasks-app notify install changes that)"
    assert said(found) == [
        f"{tells}; {scan}",
        "ok wake-ups: TASKS_APP_HINTS is off: tasks-app work polls every 1s",
        f"{tells} of all tasks",
    ]


def test_a_server_that_cuts_off_handlers_is_seen(connection: Connection, run: Run) -> None:
    seen = run(database.handlers)
    for span in ("20s", "5min"):
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{span}'")
        seen += run(database.handlers)
    assert levels(seen) == ["ok", "warn", "ok"]
    assert seen[1].fact.endswith("cut off by idle_in_transaction_session_timeout = 20 s")


def test_partitions_that_run_out_and_strays_are_seen(connection: Connection, run: Run) -> None:
    names = connection.execute(
        text("SELECT inhrelid::regclass::text FROM pg_inherits"
             " WHERE inhparent = 'task_completed'::regclass AND inhrelid::regclass::text"
             " ~ 'p2' ORDER BY 1 DESC")
    ).scalars().all()  # fmt: skip
    seen = levels(run(database.partitions))
    for name in names[:-2]:
        connection.exec_driver_sql(f"DROP TABLE {name}")
    seen += levels(run(database.partitions))
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
    findings = run(database.partitions)

    assert seen == ["ok", "warn"]
    assert levels(findings) == ["fail", "warn"]
    assert "holds rows" in findings[1].fact


def test_switched_off_vacuum_is_seen(connection: Connection, run: Run, pretend: Pretend) -> None:
    pretend(autovacuum=True)
    good = run(database.vacuum)
    connection.exec_driver_sql("ALTER TABLE task_pending SET (autovacuum_enabled = off)")
    (table,) = run(database.vacuum)
    pretend(autovacuum=False)
    (everywhere,) = run(database.vacuum)
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
    connection: Connection, run: Run, pretend: Pretend,
    nodes: list[str], told: dict[str, object], whose: str, needed: int,
) -> None:  # fmt: skip
    for n, node in enumerate(nodes):
        a_child(connection, f"w{n}", node=node)
    seen = []
    for most in (needed, needed - 1):
        pretend(connections=most)
        seen += said(run(database.connections, **told))
    assert seen == [
        f"ok connections: {whose} take up to {needed} of {needed}",
        f"warn connections: {whose} take up to {needed} of {needed - 1}",
    ]


def test_the_limit_of_a_role_is_named(connection: Connection, run: Run) -> None:
    role = named("limited")
    connection.execute(text(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 5"))
    connection.execute(text(f"GRANT UPDATE ON task_pending TO {role}"))
    for n in range(2):
        a_child(connection, f"w{n}")
    (finding,) = run(database.connections)
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


def test_a_statement_that_runs_for_long_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = diagnostics.OpenTransaction(
        "session 7", "report", idle=False, open_for=timedelta(hours=3)
    )
    monkeypatch.setattr(diagnostics, "open_transactions", lambda _: [busy] * 5)
    (finding,) = run(database.transactions)
    assert finding.fact.startswith("long open: session 7 of report for 3 h, session 7")
    assert finding.fact.endswith("and 2 more")


def test_days_that_should_be_gone_are_told(connection: Connection, run: Run) -> None:
    none = run(database.retention)
    old_day(connection)
    late = run(database.retention)
    wished = run(database.retention, **FOR_EVER)
    connection.exec_driver_sql("CREATE ROLE stranger")
    connection.exec_driver_sql("SET LOCAL ROLE stranger")
    stranger = run(database.retention)

    assert said([*none, *late, *wished[:1]])[:2] == [
        "ok retention: completed tasks are kept 30d, and none is older",
        f"warn retention: completed tasks are kept 30d, but older days are left: {NAME}",
    ]
    assert said(wished)[0].startswith("ok retention: completed tasks are kept for ever: ")
    assert late[0].advice.startswith("Run tasks-app prune: it shows")
    assert "as the owner of the tables" in stranger[0].advice


def test_ids_that_would_repeat_are_told_until_migrate(connection: Connection, run: Run) -> None:
    task_id = pending_task(connection)
    good = run(database.sequences)
    connection.execute(text("SELECT setval('task_pending_id_seq', 1, false)"))
    (bad,) = run(database.sequences)
    maintenance.advance_sequences(connection)
    fact = f"task_pending_id_seq gives 1 next, but {task_id} is taken: ids would repeat"
    assert (good, bad.fact) == ([], fact)
    assert run(database.sequences) == []
    assert pending_task(connection) > task_id


def test_every_sequence_of_ours_is_compared(connection: Connection) -> None:
    query = "SELECT sequencename FROM pg_sequences WHERE schemaname = current_schema()"
    there = connection.exec_driver_sql(query).scalars().all()
    assert sorted(maintenance.GIVEN) == sorted(name for name in there if name.startswith("task"))


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


@pytest.mark.test_all
def test_a_delete_that_reads_a_big_table_is_named(engine: Engine, settings: Settings) -> None:
    """Of the two references, the one without an index; small tables do not matter."""

    def found() -> list[str]:
        return said(run_checks((database.foreign_keys,), engine, settings))

    with engine.begin() as connection:
        connection.exec_driver_sql("""
            CREATE TABLE customer (id int PRIMARY KEY);
            CREATE TABLE "order" (
                id int, "For" int REFERENCES customer, by int REFERENCES customer);
            CREATE INDEX ON "order" (by);
            CREATE TABLE few (customer int REFERENCES customer);
            INSERT INTO customer SELECT generate_series(1, 9);
            INSERT INTO "order" SELECT i, 1, 1 FROM generate_series(1, 10000) AS i;
            ANALYZE "order"
        """)
    try:
        assert found() == []
        with engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM customer WHERE id = 9")
            connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        until(lambda: found() != [], 15)
        (finding,) = found()
        assert finding == (
            'warn foreign keys: each DELETE of a row of customer reads all of "order", which '
            'refers to it by "For" without an index'
        )
        with engine.begin() as connection:
            connection.exec_driver_sql('CREATE INDEX ON "order" ("For", id)')
        assert found() == []
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql('DROP TABLE few, "order", customer')
