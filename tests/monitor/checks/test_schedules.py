"""What a check-up says of schedules that are late, broken, or of nobody's task."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from tasks_app import Settings, create_schedule
from tasks_app.monitor.checks.flow_control import firing
from tasks_app.pool.runs import heartbeats


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url)


@pytest.fixture
def said(connection: Connection, settings: Settings):
    """The findings, when a schedule of ``t`` is there and a worker that knows it."""
    heartbeats.write_heartbeat(connection, owner="w", node="n", queues=["default"], handlers=["t"])
    create_schedule(connection, "s", "t", every="1h")
    return lambda: [f"{f.level} {f.fact}" for f in firing(connection, settings)]


def change(connection: Connection, what: str) -> None:
    connection.execute(text(f"UPDATE task_schedule SET {what}"))


def test_all_is_well(said) -> None:
    assert said() == ["ok 1 enabled, none is late"]


def test_one_that_is_late(said, connection: Connection) -> None:
    change(connection, "next_run_at = statement_timestamp() - interval '61 min'")
    (finding,) = said()
    assert finding.startswith("fail s should have fired 61 min")

    change(connection, "enabled = false")
    assert said() == ["ok 0 enabled, none is late"]


def test_one_that_is_broken(said, connection: Connection) -> None:
    change(connection, "remark = 'cron is x', next_run_at = NULL")

    assert said() == ["fail s is broken"]


def test_one_whose_task_nobody_knows(said, connection: Connection, settings: Settings) -> None:
    heartbeats.remove_heartbeat(connection, "w")
    assert said() == ["ok 1 enabled, none is late"]  # without workers another check says it

    heartbeats.write_heartbeat(
        connection, owner="w2", node="n", queues=["default"], handlers=["another"]
    )
    assert said() == ["warn s creates tasks of t, which no worker knows"]


def test_a_look_takes_no_notice_of_seconds(said, connection: Connection) -> None:
    change(connection, "next_run_at = statement_timestamp() - interval '30 s'")

    assert said() == ["ok 1 enabled, none is late"]
