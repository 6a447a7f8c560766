"""Two pools on one broker: neither takes the other's messages, and everybody is told."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from tasks_app import create_task
from tasks_app.broker import messages
from tasks_app.broker.messages import POOL_VARIABLE, ForeignMessages
from tasks_app.broker.publisher import CeleryHints
from tasks_app.domain.config.settings import Settings
from tasks_app.pool.schema import migrate
from tasks_app.pool.tables import pool_name
from tasks_app.runtime.hints import HINTS
from tests.broker.conftest import House
from tests.runtime.hints.ear import Ear, ear, told  # noqa: F401  a fixture
from tests.servers import Databases
from tests.statements import watched

NAMED = {"pool": "somebodys"}


@pytest.fixture(scope="module")
def other(databases: Databases) -> Iterator[Engine]:
    """Another pool: a database beside the suite's."""
    engine = create_engine(databases.create("other_pool"))
    with engine.begin() as connection:
        migrate(connection)
        connection.execute(text("CREATE TABLE effect (task_id bigint, note text)"))
    yield engine
    engine.dispose()
    databases.drop("other_pool")


class TestOneMessage:
    @pytest.fixture(autouse=True)
    def _own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(POOL_VARIABLE, "ours")
        monkeypatch.delenv(messages.SLOTS_VARIABLE, raising=False)

    def test_another_pools_is_refused(self) -> None:
        assert ForeignMessages().refuses(NAMED)

    def test_ours_is_taken_and_so_is_one_of_the_version_before(self) -> None:
        assert not ForeignMessages().refuses({"pool": "ours"})
        assert not ForeignMessages().refuses({})

    def test_who_does_not_know_its_name_takes_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where the schema is a version behind."""
        monkeypatch.setenv(POOL_VARIABLE, "")
        assert not ForeignMessages().refuses(NAMED)

    def test_a_flood_is_counted_and_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        counter = ForeignMessages()
        with caplog.at_level(logging.WARNING):
            for _ in range(1_000):
                counter.refuses(NAMED)
        assert counter.number == 1_000
        assert [r.getMessage()[:40] for r in caplog.records] == [
            "refused 1 messages of another pool (1 in"
        ]


def test_a_producer_asks_once_and_hints_at_one_pool_only(
    house: House,
    other: Engine,
    ear: Ear,  # noqa: F811  the fixture
) -> None:
    ours, theirs = create_engine(house.engine.url), create_engine(other.url)
    ids = []
    with watched(ours, "p.prosrc") as asked, watched(theirs, "p.prosrc") as asked_too:
        for engine in (ours, ours, theirs, theirs):
            with Session(engine) as session, session.begin():
                ids.append(int(create_task(session, "nobody.knows")))

    assert told(ear) == ids[:2]
    assert (len(asked), len(asked_too)) == (1, 1)
    with ours.connect() as connection:
        assert HINTS.pool == pool_name(connection)
    ours.dispose()
    theirs.dispose()


def test_a_hint_carries_the_name(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HINTS, "pool", "ours")
    hints = CeleryHints(Settings(broker_url=house.broker.url_of(14)))
    hints.publish("mail", [1])
    hints.broker.drop()
    with Redis.from_url(house.broker.url_of(14)) as redis:
        assert b'"pool": "ours"' in redis.lpop("tasks_app:mail")
        redis.flushdb()


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True, scope="module")
def test_two_pools_on_one_broker_do_all_their_tasks_and_doctor_says_so(
    house: House, other: Engine
) -> None:
    url = other.url.render_as_string(hide_password=False)
    spans = {"TASKS_APP_MESSAGE_SIZE": "1"}
    own = house.worker(children=1, **spans)
    stranger = house.worker(children=1, ready=False, TASKS_APP_DATABASE_URL=url, **spans)
    stranger.says("ready.")
    ids = house.create("ok", 30)

    stranger.says("messages of another pool")
    assert "messages of another pool" not in own.log()
    said = subprocess.run(
        [Path(sys.executable).with_name("tasks-app"), "doctor"],
        env=house.environment(TASKS_APP_DATABASE_URL=url),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "carries messages of another pool" in said.stdout, said.stdout
    stranger.end()
    assert house.over(ids, 60) == {"SUCCEEDED": 30}
    own.end()
