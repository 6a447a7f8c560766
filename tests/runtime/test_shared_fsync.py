"""Runs that follow each other reach the disk together, and nobody is told of one before that."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url

from tasks_app.embedded import Postgres
from tasks_app.pool.schema import migrate
from tasks_app.runtime.worker.child import Child
from tests.runtime.bench import EFFECT, Bench
from tests.runtime.execution.flushes import flushes_and_counts
from tests.runtime.execution.warm_child import carry_out, warm
from tests.waiting import until
from torture.fault_proxy import FaultProxy

NOTES = "SELECT string_agg(note, ' ' ORDER BY task_id) FROM effect"
ALONE: dict[str, Any] = {"give_back_after": 60, "flush_after": 60}
"""Nobody but the thread of the message flushes."""


@pytest.fixture
def bench(bench: Bench) -> Any:
    """While a test lasts, each settle notes whether its COMMIT waits for the disk."""
    bench.sql(
        "CREATE FUNCTION notes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO effect VALUES (OLD.id, current_setting('synchronous_commit'));"
        " RETURN NULL; END $$;"
        " CREATE TRIGGER notes AFTER DELETE ON task_pending FOR EACH ROW EXECUTE FUNCTION notes()"
    )
    yield bench
    bench.sql("DROP FUNCTION notes() CASCADE")


def touching(bench: Bench, way: str = "connection", **options: Any) -> None:
    @bench.handler(**options)
    def h(ctx: Any) -> None:
        getattr(ctx, way).execute(text("SELECT 1"))


@pytest.mark.parametrize("way", ["connection", "session"])
def test_the_last_of_a_row_waits_for_the_disk(bench: Bench, way: str) -> None:
    touching(bench, way)

    carry_out(bench, [bench.create() for _ in range(4)], **ALONE)

    assert bench.sql(NOTES) == "off off off on"


def test_a_run_alone_waits(bench: Bench) -> None:
    touching(bench)

    for _ in range(2):
        carry_out(bench, [bench.create()], **ALONE)

    assert bench.sql(NOTES) == "on on"


@pytest.mark.parametrize(
    ("options", "settings"),
    [({"at_most_once": True}, {}), ({}, {"shared_fsync": False})],
    ids=["at most once", "as configured"],
)
def test_each_waits(bench: Bench, options: Any, settings: Any) -> None:
    touching(bench, **options)

    carry_out(bench, [bench.create() for _ in range(3)], **ALONE, **settings)

    assert bench.sql(NOTES) == "on on on"


@pytest.mark.parametrize("heard", ["after_commit", "after_transaction_end"])
def test_listeners_hear_of_what_is_on_disk(bench: Bench, heard: str) -> None:
    """They may tell others, who cannot be told that it did not happen."""

    @bench.handler()
    def h(ctx: Any) -> None:
        event.listen(ctx.session, heard, lambda *_: bench.runs.append(ctx.task_id))
        ctx.session.execute(text("SELECT 1"))

    ids = [bench.create() for _ in range(3)]

    carry_out(bench, ids, **ALONE)

    assert (bench.sql(NOTES), bench.runs) == ("on on on", ids)


def test_it_is_flushed_before_a_success_is_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    touching(bench)
    calls = flushes_and_counts(monkeypatch)

    carry_out(bench, [bench.create() for _ in range(4)], **ALONE)

    assert calls == ["3 flushed", "3 counted"]


def test_none_waits_for_a_slow_one_behind_it(bench: Bench) -> None:
    """The housekeeper flushes after 50 ms, whatever runs meanwhile."""
    children: list[Child] = []

    @bench.handler()
    def h(ctx: Any) -> None:
        if ctx.biz_key == "slow":
            assert len(children[0].inflight.unflushed()) == 1
            until(lambda: not children[0].inflight.unflushed(), 10, "a flush")
        ctx.connection.execute(text("SELECT 1"))

    children.append(warm(bench.child(give_back_after=60)))
    ids = [bench.create(), bench.create(biz_key="slow")]
    children[0].execute(None, ids)

    assert set(bench.states(ids)) == {"SUCCEEDED"}
    assert bench.sql(NOTES) == "off on"


def test_a_lost_connection_at_the_flush_loses_nothing(bench: Bench) -> None:
    url = make_url(bench.url)
    with FaultProxy((url.host or "", url.port or 0)) as proxy:

        @bench.handler()
        def h(ctx: Any) -> None:
            bench.runs.append(ctx.biz_key)
            if ctx.biz_key == "last":
                proxy.cut()
                return
            ctx.connection.execute(text(EFFECT), {"id": ctx.task_id, "note": "h"})

        ids = [bench.create(biz_key=key) for key in ("a", "b", "last")]
        child = warm(
            bench.child(**ALONE, url=url.set(port=proxy.port).render_as_string(hide_password=False))
        )
        child.execute(None, ids)
        until(lambda: child.inflight.empty)
        child.stop()

    assert bench.runs == ["a", "b", "last"]
    assert set(bench.states(ids)) == {"SUCCEEDED"}


@pytest.mark.test_all
def test_what_a_crash_of_the_server_takes_runs_again(tmp_path: Path) -> None:
    """Effect and outcome are gone together, and only such runs are done once more."""
    with Postgres(tmp_path / "own") as server:
        url = server.url_of("postgres")
        engine = create_engine(url)
        with engine.begin() as connection:
            migrate(connection)
            connection.execute(text("CREATE TABLE effect (task_id bigint, note text)"))
        bench = Bench(engine, url, tmp_path)

        @bench.handler()
        def h(ctx: Any) -> None:
            bench.runs.append(ctx.biz_key)
            ctx.connection.execute(text(EFFECT), {"id": ctx.task_id, "note": ctx.biz_key})
            if len(bench.runs) == 4:
                server.kill()
                server.start()
                raise ValueError

        child = warm(bench.child(**ALONE, start=False))  # no housekeeper writes anything
        child.execute(None, [bench.create(biz_key="a")])  # on disk
        walwriter = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        ids = [bench.create(biz_key=key) for key in "bcd"]
        os.kill(bench.sql(walwriter), signal.SIGSTOP)
        child.execute(None, ids)
        child.stop()
        engine.dispose()

        bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
        bench.drain()
        bench.close()

        assert "".join(sorted(bench.runs)) == "abbccdd"
        assert bench.sql("SELECT string_agg(note, '' ORDER BY note) FROM effect") == "abcd"
        assert bench.sql("SELECT count(*) FROM task_completed") == 4
        engine.dispose()
