"""Totals and histograms as Prometheus reads them, of a bounded number of names."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from tasks_app import Settings
from tasks_app.domain.statistics import OTHER, CountedOutcome
from tasks_app.monitor import metrics as collector
from tasks_app.monitor.metric_catalogue import BOUNDS, METRICS, render
from tasks_app.monitor.metrics import totals
from tasks_app.pool.operations.grants import RoleKind, grants_sql
from tasks_app.pool.statistics.roll_up import roll_up
from tests.docs.reading import section, text_of
from tests.monitor.metrics.test_reader import values
from tests.pool.statistics.counted import KEPT, NOON, part, put

MEAN = ("sum", "count")


def scrape(connection: Connection, settings: Settings) -> dict[str, float]:
    return values(render(totals(connection, settings)))


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url)


def test_buckets_are_cumulative(connection: Connection, settings: Settings) -> None:
    put(connection, "a", part(NOON, 5, ms=3), part(NOON, 7, "u"))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=2))

    found = scrape(connection, settings)

    assert found['tasks_app_outcomes_total{name="t",queue="q",outcome="done"}'] == 5
    buckets = [found[f'tasks_app_task_run_seconds_bucket{{name="t",le="{le}"}}'] for le in BOUNDS]
    assert buckets == [0, 0, *[5] * 23]  # 2 ms up to 4 ms
    assert found['tasks_app_task_run_seconds_sum{name="t"}'] == 0.015
    assert found['tasks_app_task_wait_seconds_count{queue="q"}'] == 12


def test_of_many_names_a_bounded_number_has_a_histogram(
    connection: Connection, settings: Settings
) -> None:
    most = collector.MOST_HISTOGRAMS
    parts = [part(NOON, 1, f"n{number:04}") for number in range(most + 20)]
    put(connection, "a", *parts)
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=2))

    found = scrape(connection, settings)

    counts = {key: n for key, n in found.items() if key.startswith("tasks_app_task_run_seconds_c")}
    assert len(counts) == most + 1
    assert counts[f'tasks_app_task_run_seconds_count{{name="{OTHER}"}}'] == 20
    assert sum(counts.values()) == most + 20


def test_a_role_that_reads_may_scrape_them(connection: Connection, settings: Settings) -> None:
    connection.execute(text("CREATE ROLE metrics_reader"))
    connection.exec_driver_sql(grants_sql(RoleKind.READER, "metrics_reader"))
    connection.execute(text("SET LOCAL ROLE metrics_reader"))

    assert "tasks_app_tasks_created_total{}" in scrape(connection, settings)
    connection.execute(text("RESET ROLE"))
    connection.execute(text("REVOKE ALL ON SEQUENCE task_pending_id_seq FROM metrics_reader"))
    connection.execute(text("SET LOCAL ROLE metrics_reader"))
    assert "tasks_app_tasks_created_total{}" not in scrape(connection, settings)


def test_what_is_no_end_of_a_task_is_counted_apart(
    connection: Connection, settings: Settings
) -> None:
    put(
        connection,
        "a",
        part(NOON, 2, outcome=CountedOutcome.STALE),
        part(NOON, 3, outcome=CountedOutcome.DUPLICATE),
        part(NOON, 4, outcome=CountedOutcome.LEFT),
    )
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=2))

    found = scrape(connection, settings)

    assert found["tasks_app_stale_writes_total{}"] == 2
    assert found["tasks_app_duplicates_dropped_total{}"] == 3
    assert found["tasks_app_runs_left_total{}"] == 4
    assert not any(key.startswith("tasks_app_outcomes_total") for key in found)


def test_the_page_asks_for_shares_and_means_that_a_scrape_can_answer(
    connection: Connection, settings: Settings
) -> None:
    failed, retried = CountedOutcome.FAILED, CountedOutcome.RETRIED
    put(connection, "a", part(NOON, 6), part(NOON, 1, outcome=failed), part(NOON, 1, "t", retried))
    roll_up(connection, None, KEPT, now=NOON + timedelta(minutes=2))
    found = scrape(connection, settings)

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
