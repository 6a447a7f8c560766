"""Rules of operators: figures of the counters and of the pools."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from tasks_app import Settings
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.pool.tables import database_now
from tasks_app.runtime.alerts.rules import user
from tests.factory import pending_task
from tests.pool.statistics.counted import KEPT, part, put

Find = Callable[[str], dict[str, str]]


@pytest.fixture
def find(connection: Connection) -> Find:
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
def test_failures_in_a_span(find: Find) -> None:
    assert find("failed name=t > 3 in 5m") == {"rule:failed name=t": "4 of name=t failed in 5 min"}
    assert find("failed name=t > 4 in 5m") == {}
    assert find("failed name=t > 13 in 2h") == {"rule:failed name=t": "14 of name=t failed in 2 h"}
    assert list(find("failed queue=q > 6 in 5m")) == ["rule:failed queue=q"]
    assert find("failed queue=r > 0 in 5m") == {}


@pytest.mark.usefixtures("counted")
def test_the_share_of_failures(find: Find) -> None:
    assert find("ratio name=t > 39% in 5m") == {
        "rule:ratio name=t": "40% of 10 runs of name=t did not succeed in 5 min"
    }
    assert find("ratio name=t > 40% in 5m") == {}
    assert find("ratio name=other > 1% in 5m") == {}  # too few runs to say


@pytest.mark.usefixtures("counted")
def test_silence(find: Find) -> None:
    assert find("silence name=t > 5m") == {}
    assert find("silence name=other > 5m") == {
        "rule:silence name=other": "none of name=other has succeeded for 5 min"
    }
    assert find("silence queue=q > 4d") == {}  # in hours: minutes are gone by then


def test_silence_counts_whole_hours(connection: Connection, find: Find) -> None:
    before = database_now(connection) - timedelta(days=3)
    put(connection, "old", part(before, 1))
    roll_up(connection, None, KEPT, now=before + timedelta(minutes=5))

    assert find("silence name=t > 4d") == {}
    assert list(find("silence name=t > 50h")) == ["rule:silence name=t"]


def test_age_and_number_of_what_waits(connection: Connection, find: Find) -> None:
    now = database_now(connection)
    pending_task(connection, "a", queue="pay", now=now - timedelta(minutes=3))
    pending_task(connection, "b", queue="pay", now=now)

    assert find("age queue=pay > 2m; age queue=mail > 2m") == {
        "rule:age queue=pay": "a task of queue=pay is due for 3 min"
    }
    assert find("age queue=pay > 5m") == {}
    assert find("pending queue=pay > 1; pending name=a > 1; pending name=b > 0") == {
        "rule:pending queue=pay": "more than 1 of queue=pay wait",
        "rule:pending name=b": "more than 0 of name=b wait",
    }
