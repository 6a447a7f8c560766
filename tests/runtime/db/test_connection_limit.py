"""A server that gives fewer connections than the children want: nothing is claimed in vain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from tasks_app.runtime.db.database import Database
from tests.clock import until
from tests.runtime.bench import EFFECT, Bench, effect
from tests.servers import named

pytestmark = pytest.mark.timeout(60, method="thread")

ROLE = named("few")
TASKS = 3
Limited = Callable[[int], None]


@pytest.fixture
def limited(bench: Bench) -> Iterator[Limited]:
    """Sets how many connections the role of ``url`` may have; -1: any number."""

    def limit(most: int) -> None:
        bench.sql(f"ALTER ROLE {ROLE} CONNECTION LIMIT {most}")

    bench.sql(f"DROP ROLE IF EXISTS {ROLE}")
    bench.sql(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'few'")
    owner = bench.sql("SELECT quote_ident(current_user)")
    bench.sql(f"GRANT {owner} TO {ROLE}")
    yield limit
    limit(-1)
    bench.close()
    bench.sql(f"DROP ROLE {ROLE}")


@pytest.fixture
def url(bench: Bench) -> str:
    theirs = make_url(bench.url).set(username=ROLE, password="few")
    return theirs.render_as_string(hide_password=False)


def test_the_one_at_hand_serves_transactions(limited: Limited, url: str) -> None:
    limited(1)
    database = Database(url)
    with database.single() as connection:
        connection.execute(text("SELECT 1"))
    with database.begin() as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1
    database.dispose()


def test_two_are_wanted_once_one_was_refused(limited: Limited, url: str) -> None:
    limited(1)
    database = Database(url)
    database.ensure_connections()
    with database.begin(), pytest.raises(OperationalError, match="too many connections"):
        database.handler_engine.connect()

    with pytest.raises(OperationalError, match="too many connections"):
        database.ensure_connections()

    limited(2)
    database.ensure_connections()
    limited(0)
    with database.begin(), database.handler_engine.connect():
        pass  # they have stayed
    database.dispose()


@pytest.mark.test_all
def test_tasks_that_cannot_be_run_are_neither_claimed_again_nor_charged(
    bench: Bench, limited: Limited, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.handler()
    def writes(ctx: Any) -> None:
        bench.runs.append(ctx.task_id)
        effect(ctx)

    ids = [bench.create() for _ in range(TASKS)]
    limited(1)
    work = bench.work(url=url, lease=5)
    bench.beside(work.run)
    until(lambda: "nothing is claimed" in caplog.text, 20)
    begun = len(bench.runs)
    time.sleep(7)  # longer than a lease

    assert len(bench.runs) == begun
    assert [bench.task(i).crashes for i in ids] == [0] * len(ids)
    assert bench.states(ids) == ["PENDING"] * len(ids)
    assert "too many connections" in caplog.text

    limited(-1)
    until(lambda: bench.states(ids) == ["SUCCEEDED"] * len(ids), 20)
    assert [bench.effects(i) for i in ids] == [1] * len(ids)
    assert [bench.task(i).crashes for i in ids] == [0] * len(ids)


@pytest.mark.test_all
@pytest.mark.parametrize("most", [1, 2, 3])
def test_async_handlers_that_get_no_connection_are_not_charged(
    bench: Bench, limited: Limited, url: str, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    @bench.handler()
    async def writes(ctx: Any) -> None:
        await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})

    ids = [bench.create(max_attempts=1) for _ in range(TASKS)]
    limited(most)
    work = bench.work(url=url, lease=5)
    bench.beside(work.run)
    until(lambda: "too many connections" in caplog.text, 20)
    ends = time.monotonic() + 8  # longer than a lease
    while time.monotonic() < ends:
        assert [bench.task(i).crashes for i in ids] == [0] * len(ids)
        assert [bench.task(i).failures for i in ids] == [0] * len(ids)
        time.sleep(0.2)

    limited(-1)
    until(lambda: bench.states(ids) == ["SUCCEEDED"] * len(ids), 20)
    assert [bench.effects(i) for i in ids] == [1] * len(ids)
    assert [bench.task(i).crashes for i in ids] == [0] * len(ids)
