"""Catalogue, page and a real scrape name the same metrics, each of the same kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine

from tasks_app import Settings
from tasks_app.domain.flow_control.circuit_breaker import Breaker
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.queues import check_queue_options
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.monitor.metric_catalogue import METRICS
from tasks_app.monitor.metrics import MetricsReader
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.set_aside import park_tasks
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.runtime.db.database import Database
from tests.docs.reading import text_of
from tests.factory import claimed_task, ending, pending_task, unknown
from tests.pool.statistics.counted import KEPT, NOON, part, put

MINUTE = timedelta(minutes=1)


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
def said(engine: Engine, database_url: str) -> Iterator[str]:
    with engine.begin() as connection:
        everything(connection)
    database = Database(database_url)
    yield MetricsReader(database, Settings(database_url=database_url)).read()
    database.dispose()


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
