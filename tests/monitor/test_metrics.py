"""Metrics: complete, bounded, counted once."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError

from tasks_app import Flow, Settings, create_flow
from tasks_app.domain.flow_control.circuit_breaker import Breaker
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.queues import check_queue_options
from tasks_app.domain.statistics import OTHER, CountedOutcome
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.monitor import metric_catalogue, metrics
from tasks_app.monitor import metrics as collector
from tasks_app.monitor.checks import flow_control
from tasks_app.monitor.metric_catalogue import BOUNDS, METRICS, MOST_QUEUES, Sample, render
from tasks_app.monitor.metrics import MetricsReader, totals
from tasks_app.pool import metrics as control
from tasks_app.pool.connection.sessions import read_only_transaction
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.set_aside import park_tasks
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.runtime.db.database import Database
from tests.docs.reading import section, text_of
from tests.factory import claimed_task, ending, pending_task, unknown
from tests.pool.test_statistics import KEPT, NOON, part, put

MINUTE = timedelta(minutes=1)
_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


@pytest.fixture
def database(database_url: str, engine: Engine) -> Iterator[Database]:
    """A database of our own connections; ``engine`` has emptied it."""
    database = Database(database_url)
    yield database
    database.dispose()


@pytest.fixture
def reader(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> MetricsReader:
    monkeypatch.setattr(metrics, "KEEP_S", 0)
    return MetricsReader(database, settings)


def values(said: str) -> dict[str, float]:
    found = [_LINE.match(line) for line in said.splitlines() if not line.startswith("#")]
    return {f"{m[1]}{{{m[2] or ''}}}": float(m[3]) for m in found if m}


def test_waiting_running_and_failed_are_counted_by_queue(
    engine: Engine, reader: MetricsReader
) -> None:
    with engine.begin() as connection:
        now = connection.execute(text("SELECT now()")).scalar_one()
        pending_task(connection, queue="mail", run_at=now - MINUTE, priority=9)
        pending_task(connection, queue="mail", run_at=now + MINUTE)
        aside = pending_task(connection, queue="mail", run_at=now - 2 * MINUTE)
        park_tasks(connection, [aside], unknown("t"), timedelta(seconds=15))
        claimed_task(connection, pending_task(connection, queue="slow"))
        task = claimed_task(connection, pending_task(connection, queue="bad"))
        settle_one(connection, ending(task, Event.FAIL, cause=Cause("ValueError", "boom")))

    found = values(reader.read())

    assert found['tasks_app_pending{queue="mail"}'] == 3
    assert found['tasks_app_due{queue="mail"}'] == 2
    assert found['tasks_app_oldest_due_seconds{queue="mail"}'] == pytest.approx(120, abs=30)
    assert found['tasks_app_parked{kind="handler"}'] == 1
    assert found['tasks_app_running{queue="slow"}'] == 1
    assert found['tasks_app_leases_overdue{queue="slow"}'] == 0
    assert found['tasks_app_errors{queue="bad"}'] == 1
    assert found['tasks_app_errors_last_5m{queue="bad"}'] == 1
    assert found["tasks_app_up{}"] == 1


def test_a_lease_that_is_over_shows_for_how_long(engine: Engine, reader: MetricsReader) -> None:
    with engine.begin() as connection:
        claimed_task(connection)
        connection.execute(text("UPDATE task_pending SET lease_until = now() - interval '100 s'"))
    found = values(reader.read())
    assert found['tasks_app_leases_overdue{queue="default"}'] == 1
    assert found['tasks_app_lease_overdue_seconds{queue="default"}'] >= 100


def test_who_works_leads_and_publishes(engine: Engine, reader: MetricsReader) -> None:
    token, ttl = uuid4(), MINUTE
    with engine.begin() as connection:
        for owner, queues in (("a", ["mail"]), ("b", ["mail"]), ("c", [])):
            heartbeats.write_heartbeat(
                connection, owner=owner, node="n", queues=queues, handlers=["t"]
            )
        rank = leader_lease.Rank.BEAT
        leader_lease.acquire_lease(
            connection, leader_lease.SCAN, holder="b", token=token, rank=rank, ttl=ttl
        )
        leader_lease.record_duty(connection, leader_lease.SCAN, token, ttl, {"mail": 3})

    found = values(reader.read())

    assert found['tasks_app_workers{state="live"}'] == 2
    assert found['tasks_app_workers{state="stopping"}'] == 1
    assert found['tasks_app_queue_workers{queue="mail"}'] == 2
    assert found['tasks_app_duty_held{duty="scan",rank="beat"}'] == 1
    assert found['tasks_app_duty_held{duty="scan",rank="standby"}'] == 0
    assert found['tasks_app_duty_age_seconds{duty="scan"}'] < 60
    assert found['tasks_app_queue_messages{queue="mail"}'] == 3


def test_pauses_and_limits_in_use(engine: Engine, reader: MetricsReader) -> None:
    with engine.begin() as connection:
        claimed_task(connection)
        keys = "limit_key = 'shop:1', more_limit_keys = '{bank:1}'"
        connection.execute(text(f"UPDATE task_pending SET {keys}"))
        queue_settings.pause(connection, "mail", "")
        set_limit(connection, Limit(GateKind.QUEUE, "default", 7))
        set_limit(connection, Limit(GateKind.KEY, "shop:*", 2))
        set_limit(connection, Limit(GateKind.KEY, "bank:1", 3))

    found = values(reader.read())

    assert 'tasks_app_queue_paused_seconds{queue="mail"}' in found
    assert found['tasks_app_limit_most{kind="queue",target="default"}'] == 7
    assert found['tasks_app_limit_running{kind="queue",target="default"}'] == 1
    assert found['tasks_app_limit_running{kind="key",target="shop:*"}'] == 1
    assert found['tasks_app_limit_running{kind="key",target="bank:1"}'] == 1


def test_flows_that_stand_are_counted_and_told(
    engine: Engine, reader: MetricsReader, settings: Settings
) -> None:
    with engine.begin() as connection:
        assert flow_control.flows(connection, settings) == []
        for _ in range(2):
            flow = Flow("order")
            flow.step("ship", "t", needs=flow.step("pay", "t"))
            pay = create_flow(connection, flow).task_ids["pay"]
        (before,) = flow_control.flows(connection, settings)
        task = claimed_task(connection, pay)
        settle_one(connection, ending(task, Event.FAIL, cause=Cause("ValueError", "boom")))
        (after,) = flow_control.flows(connection, settings)

    found = values(reader.read())
    assert found['tasks_app_flows{state="running"}'] == 1
    assert found['tasks_app_flows{state="stalled"}'] == 1
    assert (before.level, before.fact) == ("ok", "2 run, none stands")
    assert (after.level, after.fact) == ("warn", "1 flow stands because a step failed")
    assert after.advice == "To see them: tasks-app flows list --state stalled"


def test_of_many_limits_a_bounded_number_is_shown(connection: Connection) -> None:
    for number in range(control.MOST_NAMED + 5):
        set_limit(connection, Limit(GateKind.KEY, f"customer:{number:03}", 1))
    assert len(control.limits_in_use(connection)) == control.MOST_NAMED


def test_tables_partitions_and_versions(engine: Engine, reader: MetricsReader) -> None:
    found = values(reader.read())
    assert found['tasks_app_table_bytes{table="task_pending"}'] > 0
    assert found["tasks_app_partitions_ahead{}"] >= -1
    assert found["tasks_app_default_partition_used{}"] == 0
    assert found["tasks_app_schema_current{}"] == 1


def test_a_held_snapshot_is_seen(engine: Engine, reader: MetricsReader) -> None:
    with engine.connect() as holder:
        holder.execution_options(isolation_level="REPEATABLE READ")
        holder.execute(text("SELECT count(*) FROM task_pending"))
        with engine.begin() as connection:
            for _ in range(3):
                with connection.begin_nested():
                    pending_task(connection)
        found = values(reader.read())
    assert found["tasks_app_snapshot_age_transactions{}"] >= 3
    assert found["tasks_app_oldest_transaction_seconds{}"] >= 0


def test_a_read_cannot_write_nor_take_long(database: Database) -> None:
    with (
        pytest.raises(DBAPIError, match="read-only"),
        read_only_transaction(database.engine, MINUTE) as connection,
    ):
        connection.execute(text("DELETE FROM task_pending"))
    with (
        pytest.raises(DBAPIError, match="statement timeout"),
        read_only_transaction(database.engine, timedelta(milliseconds=20)) as connection,
    ):
        connection.execute(text("SELECT pg_sleep(5)"))


def test_a_failed_part_leaves_others_whole(
    reader: MetricsReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(connection: Connection, _settings: Settings) -> Iterator[Sample]:
        connection.execute(text("SELECT 1/0"))
        yield Sample(metric_catalogue.UP, 1)

    monkeypatch.setitem(metrics.PARTS, "waiting", broken)
    found = values(reader.read())
    assert found["tasks_app_up{}"] == 0
    assert found['tasks_app_read_up{part="waiting"}'] == 0
    assert found['tasks_app_read_up{part="workers"}'] == 1


def test_of_a_database_that_is_away_it_says_so(settings: Settings) -> None:
    url = "postgresql+psycopg://nobody:secret@127.0.0.1:1/none"
    database = Database(url)
    said = MetricsReader(database, settings).read()
    database.dispose()
    assert values(said)["tasks_app_up{}"] == 0
    assert "secret" not in said


def test_many_who_scrape_cost_as_one(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "KEEP_S", 60)
    sent: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    reader, texts = MetricsReader(database, settings), []
    threads = [threading.Thread(target=lambda: texts.append(reader.read())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(texts)) == 1
    assert len(texts) == 8
    assert sum("transaction_read_only" in each for each in sent) == len(metrics.PARTS)


def test_labels_are_escaped() -> None:
    said = render([Sample(metric_catalogue.PENDING, 1.0, ('a"b\\c\nd',))])
    assert said.splitlines()[-1] == r'tasks_app_pending{queue="a\"b\\c\nd"} 1'


def test_no_label_grows_with_the_tasks() -> None:
    labels = {label for metric in METRICS for label in metric.labels}
    assert labels == {
        *("queue", "kind", "state", "duty", "rank", "dependency", "target"),
        *("table", "version", "schema", "part", "name", "outcome"),
    }


@pytest.mark.test_all
def test_promtool_finds_no_fault(engine: Engine, reader: MetricsReader) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    with engine.begin() as connection:
        pending_task(connection)
        claimed_task(connection)
    check = [promtool, "check", "metrics"]
    done = subprocess.run(check, input=reader.read(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_any_number_of_queues_makes_a_bounded_number_of_lines() -> None:
    """Sums and maxima over all queues stay exact."""
    kinds = {
        metric_catalogue.PENDING: sum,
        metric_catalogue.OLDEST_DUE: max,
        metric_catalogue.OPEN: min,
    }
    given = [Sample(m, n + 5, (f"q{n}",)) for m in kinds for n in range(1_000)]
    said = values(render(given))

    assert len(said) == 3 * (MOST_QUEUES + 1)
    for metric, of_all in kinds.items():
        shown = [value for name, value in said.items() if name.startswith(f"{metric.name}{{")]
        assert of_all(shown) == of_all(range(5, 1_005))
    assert said['tasks_app_pending{queue="q999"}'] == 1_004
    assert said['tasks_app_queue_open{queue="q0"}'] == 5
    few = [Sample(metric_catalogue.PENDING, 1, (f"q{n}",)) for n in range(MOST_QUEUES)]
    assert "other" not in render(few)


def everything(connection: Connection) -> None:
    """Put at least one of each thing that a metric tells of into the database."""
    aside = pending_task(connection, queue="mail")
    park_tasks(connection, [aside], unknown("t"), timedelta(seconds=15))
    bad = claimed_task(connection, pending_task(connection, queue="bad"))
    settle_one(connection, ending(bad, Event.FAIL, cause=Cause("ValueError", "boom")))
    claimed_task(connection, pending_task(connection, queue="slow"))
    heartbeats.write_heartbeat(connection, owner="a", node="n", queues=["mail"], handlers=["t"])
    for name in (leader_lease.SCAN, leader_lease.MAINTAIN):
        token, rank = uuid4(), leader_lease.Rank.BEAT
        leader_lease.acquire_lease(connection, name, holder="b", token=token, rank=rank, ttl=MINUTE)
        leader_lease.record_duty(connection, name, token, MINUTE, {"mail": 3})
    queue_settings.pause(connection, "mail", "")
    queue_settings.change_queue(
        connection, "night", check_queue_options({"windows": ["22:00-06:00"]})
    )
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["t"]}, ["t"])
    set_limit(connection, Limit(GateKind.QUEUE, "slow", 7))
    put(connection, "a", part(NOON, 5))
    roll_up(connection, None, KEPT, now=NOON + 2 * MINUTE)


@pytest.fixture
def said(engine: Engine, database: Database, settings: Settings) -> str:
    with engine.begin() as connection:
        everything(connection)
    return MetricsReader(database, settings).read()


def test_catalogue_page_and_scrape_are_the_same(said: str) -> None:
    page = text_of("docs/reference/metrics.md")
    known = {metric.name: str(metric.kind) for metric in METRICS}
    assert dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE)) == known
    assert dict(re.findall(r"^# TYPE (\w+) (\w+)$", said, re.MULTILINE)) == known


def test_every_line_of_a_scrape_has_the_labels_of_the_page(said: str) -> None:
    page = text_of("docs/reference/metrics.md")
    for name, labels in re.findall(r"^\| `(\w+)` \| \w+ \| ([^|]*) \|", page, re.MULTILINE):
        wanted = re.findall(r"`(\w+)`", labels)
        lines = re.findall(rf"^{name}(?:_sum)?(?:{{(.*)}})? \S+$", said, re.MULTILINE)
        assert lines, name
        for line in lines:
            assert re.findall(r'(\w+)="', line) == wanted, name


MEAN = ("sum", "count")


Scrape = Callable[[], dict[str, float]]


@pytest.fixture
def scrape(connection: Connection, settings: Settings) -> Scrape:
    return lambda: values(render(totals(connection, settings)))


def test_buckets_are_cumulative(connection: Connection, scrape: Scrape) -> None:
    put(connection, "a", part(NOON, 5, ms=3), part(NOON, 7, "u"))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=2))
    found = scrape()
    assert found['tasks_app_outcomes_total{name="t",queue="q",outcome="done"}'] == 5
    buckets = [found[f'tasks_app_task_run_seconds_bucket{{name="t",le="{le}"}}'] for le in BOUNDS]
    assert buckets == [0, 0, *[5] * 23]  # 2 ms up to 4 ms
    assert found['tasks_app_task_run_seconds_sum{name="t"}'] == 0.015
    assert found['tasks_app_task_wait_seconds_count{queue="q"}'] == 12


def test_a_bounded_number_of_names_has_a_histogram(connection: Connection, scrape: Scrape) -> None:
    most = collector.MOST_HISTOGRAMS
    parts = [part(NOON, 1, f"n{number:04}") for number in range(most + 20)]
    put(connection, "a", *parts)
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=2))
    found = scrape()
    counts = {key: n for key, n in found.items() if key.startswith("tasks_app_task_run_seconds_c")}
    assert len(counts) == most + 1
    assert counts[f'tasks_app_task_run_seconds_count{{name="{OTHER}"}}'] == 20
    assert sum(counts.values()) == most + 20


def test_a_role_that_reads_may_scrape_them(connection: Connection, scrape: Scrape) -> None:
    connection.execute(text("CREATE ROLE metrics_reader"))
    connection.exec_driver_sql(grants_sql(RoleKind.READER, "metrics_reader"))
    connection.execute(text("SET LOCAL ROLE metrics_reader"))
    assert "tasks_app_tasks_created_total{}" in scrape()
    connection.execute(text("RESET ROLE"))
    connection.execute(text("REVOKE ALL ON SEQUENCE task_pending_id_seq FROM metrics_reader"))
    connection.execute(text("SET LOCAL ROLE metrics_reader"))
    assert "tasks_app_tasks_created_total{}" not in scrape()


def test_what_is_no_end_of_a_task_is_counted_apart(connection: Connection, scrape: Scrape) -> None:
    kinds = CountedOutcome.STALE, CountedOutcome.DUPLICATE, CountedOutcome.LEFT
    put(connection, "a", *(part(NOON, n, outcome=kind) for n, kind in enumerate(kinds, 2)))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=2))
    found = scrape()
    assert found["tasks_app_stale_writes_total{}"] == 2
    assert found["tasks_app_duplicates_dropped_total{}"] == 3
    assert found["tasks_app_runs_left_total{}"] == 4
    assert not any(key.startswith("tasks_app_outcomes_total") for key in found)


def test_a_scrape_answers_what_the_page_asks_for(connection: Connection, scrape: Scrape) -> None:
    failed, retried = CountedOutcome.FAILED, CountedOutcome.RETRIED
    put(connection, "a", part(NOON, 6), part(NOON, 1, outcome=failed), part(NOON, 1, "t", retried))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=2))
    found = scrape()

    ended = {
        outcome: found[f'tasks_app_outcomes_total{{name="t",queue="q",outcome="{outcome}"}}']
        for outcome in ("done", "failed", "retried")
    }
    spent, runs = (found[f'tasks_app_task_run_seconds_{each}{{name="t"}}'] for each in MEAN)
    assert ended["done"] / sum(ended.values()) == 0.75
    assert spent / runs == pytest.approx(0.003)
    page = section(text_of("docs/operations/monitoring.md"), "Metrics")
    asked = re.findall(r"tasks_app_\w+", page)
    assert {f"tasks_app_task_run_seconds_{each}" for each in MEAN} <= set(asked)
    parts = re.compile("_(bucket|sum|count)$")
    assert {parts.sub("", each) for each in asked} <= {metric.name for metric in METRICS}
