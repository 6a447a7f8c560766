"""ctx.chunks: a page, its effects and its place are one commit; after anything it goes on there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import (
    Connection,
    DateTime,
    Float,
    Integer,
    Numeric,
    Text,
    column,
    event,
    func,
    select,
    table,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tasks_app.domain.handlers.outcomes import Retry
from tasks_app.runtime.api.queues import change_queue, pause_queue, reset_queue, resume_queue
from tasks_app.runtime.handlers import checkpoint
from tasks_app.runtime.handlers.context import TaskContext
from tests.factory import AS_BEFORE, IN_BERLIN
from tests.runtime.bench import EFFECT, Bench
from tests.tiers import few

ITEM = table("item", column("id", Integer), column("kind", Text), column("seen", Integer))


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "item"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str | None]
    seen: Mapped[int]


ALL = "SELECT id, kind FROM item WHERE id > :least"
SOURCES: dict[str, dict[str, Any]] = {
    "text": {"statement": ALL, "key": "id", "params": {"least": 0}},
    "columns": {"statement": select(ITEM.c.id, ITEM.c.kind), "key": ITEM.c.id},
    "by name": {"statement": select(ITEM.c.id, ITEM.c.kind), "key": "id"},
    "entities": {"statement": select(Item), "key": Item.id},
    "attributes": {"statement": select(Item.id, Item.kind).order_by(Item.kind), "key": Item.id},
    "two columns": {"statement": select(Item.kind, Item.id), "key": (Item.kind, Item.id)},
    "two of text": {"statement": "SELECT kind, id FROM item;", "key": ("kind", "id")},
    "two of entities": {"statement": select(Item), "key": [Item.kind, Item.id]},
}
sources = pytest.mark.parametrize("source", SOURCES.values(), ids=list(SOURCES))


@pytest.fixture
def items(bench: Bench) -> Iterator[None]:
    """25 rows, of three kinds."""
    bench.sql("CREATE TABLE item (id int PRIMARY KEY, kind text, seen int NOT NULL DEFAULT 0)")
    bench.sql("INSERT INTO item SELECT n, 'k' || n % 3 FROM generate_series(1, 25) AS n")
    yield
    bench.sql("DROP TABLE item")


def see(ctx: TaskContext, rows: list[Any]) -> list[int]:
    ids = [row.id for row in rows]
    ctx.session.execute(text("UPDATE item SET seen = seen + 1 WHERE id = ANY(:ids)"), {"ids": ids})
    return ids


def seen(bench: Bench) -> list[int]:
    return bench.sql("SELECT array_agg(seen ORDER BY id) FROM item")


@pytest.mark.test_all
@sources
def test_each_row_is_in_one_page(bench: Bench, items, source) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        bench.runs.extend(len(see(ctx, page)) for page in ctx.chunks(size=10, **source))

    task_id = bench.run_one()
    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.runs == [10, 10, 5]
    assert seen(bench) == [1] * 25


@sources
def test_each_row_is_in_one_page_of_an_async_handler(bench: Bench, items, source) -> None:
    @bench.handler(retry="0s,0s")
    async def h(ctx: Any) -> None:
        async for page in ctx.chunks(size=10, **source):
            ids = [row.id for row in page]
            await ctx.session.execute(
                text("UPDATE item SET seen = seen + 1 WHERE id = ANY(:ids)"), {"ids": ids}
            )
            if ctx.attempt == 1 and bench.runs:
                raise Retry
            bench.runs.append(len(ids))

    task_id = bench.run_one()

    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.runs == [10, 10, 5]
    assert seen(bench) == [1] * 25


@sources
def test_the_next_attempt_goes_on_behind_the_last_commit(bench: Bench, items, source) -> None:
    @bench.handler(retry="0s,0s")
    def h(ctx: Any) -> None:
        for page in ctx.chunks(size=4, **source):
            bench.runs.append((ctx.attempt, len(see(ctx, page))))
            if ctx.attempt == 1 and len(bench.runs) == 3:
                raise Retry  # the third page rolls back

    bench.run_one()
    assert bench.runs == [(1, 4)] * 3 + [(2, 4)] * 4 + [(2, 1)]
    assert seen(bench) == [1] * 25


def test_a_page_is_committed_when_the_next_one_is_wanted(bench: Bench, items) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        for page in ctx.chunks(ALL, key="id", size=10, params={"least": 0}):
            bench.runs.append(sum(seen(bench)))
            see(ctx, page)
        bench.runs.append(sum(seen(bench)))

    bench.run_one()
    assert bench.runs == [0, 10, 20, 25]


def test_no_more_is_read_than_a_page_and_never_by_offset(bench: Bench, items) -> None:
    statements: list[tuple[str, int]] = []

    @bench.handler()
    def h(ctx: Any) -> None:
        def hear(_c: Any, cursor: Any, statement: str, *_: Any) -> None:
            if "item" in statement and "SELECT" in statement:
                statements.append((statement, cursor.rowcount))

        event.listen(ctx.connection, "after_cursor_execute", hear)
        for _ in ctx.chunks(select(Item), key=Item.id, size=10):
            pass

    bench.run_one()

    assert [number for _, number in statements] == [0, 11, 11, 5]
    assert not [s for s, _ in statements if "OFFSET" in s]


def test_a_checkpoint_of_its_own_stays_beside_the_places_of_two_loops(bench: Bench, items) -> None:
    @bench.handler(retry="0s,0s,0s")
    def h(ctx: Any) -> None:
        bench.runs.append(ctx.checkpoint)
        ctx.checkpoint = {"mine": ctx.attempt}
        for name in ("a", "b"):
            for page in ctx.chunks(select(Item), key=Item.id, size=20, name=name):
                see(ctx, page)
                if (name, ctx.attempt) in {("a", 1), ("b", 2)} and len(page) == 5:
                    raise Retry

    bench.run_one()

    assert bench.runs == [None, {"mine": 1}, {"mine": 2}]
    assert seen(bench) == [2] * 25


def test_an_empty_table(bench: Bench, items) -> None:
    bench.sql("DELETE FROM item")
    bench.handler()(lambda ctx: bench.runs.extend(ctx.chunks(select(Item), key=Item.id)))
    task_id = bench.run_one()
    assert (bench.runs, bench.state(task_id)) == ([], "SUCCEEDED")


@pytest.mark.test_all
def test_a_worker_that_stops_gives_it_back_uncharged_behind_a_page(bench: Bench, items) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        for page in ctx.chunks(select(Item), key=Item.id, size=10):
            see(ctx, page)
            if ctx.attempt == 1:
                child.inflight.stop()

    child = bench.child()
    task_id = bench.create()
    child.execute([task_id])
    child.stop()
    between = bench.task(task_id)
    half = sum(seen(bench))
    bench.drain()

    assert (between.state, between.failures, half) == ("PENDING", 0, 10)
    assert bench.state(task_id) == "SUCCEEDED"
    assert seen(bench) == [1] * 25


def paused(connection: Connection) -> None:
    pause_queue(connection, "default")


def out_of_its_window(connection: Connection) -> None:
    """It opens in two hours for one."""
    opens = (datetime.now(UTC) + timedelta(hours=2)).hour
    window = f"{opens:02}:00-{(opens + 1) % 24:02}:00 UTC"
    change_queue(connection, "default", windows=[window])


@pytest.mark.test_all
@pytest.mark.parametrize("stop", [paused, out_of_its_window])
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_queue_that_stands_still_gets_it_back_uncharged_at_the_end_of_a_page(
    bench: Bench, items, stop: Any, is_async: bool
) -> None:
    pages: list[int] = []

    def met(page: list[Any]) -> None:
        pages.append(len(page))
        if len(pages) == 1:
            bench.do(stop)

    if is_async:

        @bench.handler(max_attempts=1)
        async def h(ctx: Any) -> None:
            async for page in ctx.chunks(select(Item), key=Item.id, size=10):
                for item in page:
                    item.seen += 1
                met(page)
    else:

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            for page in ctx.chunks(select(Item), key=Item.id, size=10):
                see(ctx, page)
                met(page)

    task_id = bench.execute_one()
    between = bench.task(task_id)
    half = sum(seen(bench))
    bench.drain()
    assert (pages, bench.state(task_id)) == ([10], "PENDING")
    with bench.engine.begin() as connection:
        resume_queue(connection, "default")
        reset_queue(connection, "default")
    bench.drain()

    assert (between.state, between.failures, half) == ("PENDING", 0, 10)
    assert bench.state(task_id) == "SUCCEEDED"
    assert (pages, seen(bench)) == ([10, 10, 5], [1] * 25)


def test_a_cancelled_task_ends_between_two_pages(bench: Bench, items) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        for page in ctx.chunks(select(Item), key=Item.id, size=10):
            see(ctx, page)
            bench.sql("UPDATE task_pending SET cancel_requested_at = now()")

    task_id = bench.run_one()
    assert bench.state(task_id) == "CANCELLED"
    assert sum(seen(bench)) == 10


def test_what_is_finished_all_the_same_ends_well(bench: Bench, items) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        for page in ctx.chunks(select(Item), key=Item.id):
            see(ctx, page)
            bench.sql("UPDATE task_pending SET cancel_requested_at = now()")

    task_id = bench.run_one()
    assert bench.state(task_id) == "SUCCEEDED"


@pytest.mark.test_all
def test_pages_are_as_large_as_their_time(bench: Bench, items) -> None:
    bench.sql("INSERT INTO item SELECT n, 'k' FROM generate_series(26, 2000) AS n")
    sizes = []

    @bench.handler()
    def h(ctx: Any) -> None:
        sizes.extend(map(len, ctx.chunks(select(ITEM.c.id), key="id", size=500, max_ms=10_000)))
        for page in ctx.chunks(select(ITEM.c.id), key="id", size=500, max_ms=50, name="slow"):
            if len(sizes) > 10:
                return
            time.sleep(0.001 * len(page))  # a stand-in for work
            sizes.append(len(page))

    bench.run_one()

    assert sizes[:4] == [100, 200, 400, 500]
    assert sizes[6] == 100
    assert all(size <= 60 for size in sizes[7:])


def refused(bench: Bench, error: type[Exception], match: str, **source: Any) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        with pytest.raises(error, match=match):
            bench.runs.extend(ctx.chunks(**source))
        bench.runs.append("refused")

    task_id = bench.run_one()
    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.runs[-1:] == ["refused"]


REFUSED = [
    (ValueError, "LIMIT", {"statement": select(Item).limit(5), "key": Item.id}),
    (ValueError, "LIMIT", {"statement": select(Item).offset(5), "key": Item.id}),
    (TypeError, "cannot be paged", {"statement": text("SELECT 1"), "key": "id"}),
    (TypeError, "names of its key", {"statement": ALL, "key": ITEM.c.id}),
    (TypeError, "no column", {"statement": select(Item), "key": ()}),
    (ValueError, "positive", {"statement": select(Item), "key": Item.id, "size": 0}),
    (ValueError, "positive", {"statement": select(Item), "key": Item.id, "max_ms": 0}),
    (ValueError, "not unique", {"statement": select(Item), "key": Item.kind, "size": 4}),
    (ValueError, "not select the key", {"statement": select(Item.kind), "key": Item.id, "size": 4}),
    (
        ValueError,
        "type bool",
        {"statement": select((Item.id > 0).label("b")), "key": "b", "size": 50},
    ),
]


def test_pages_that_are_slow_to_read_are_said_once(
    bench: Bench, items, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench.handler("seek")
    def h(ctx: Any) -> None:
        for limit in (60.0, 0.0):
            monkeypatch.setattr(checkpoint, "SLOW_PAGE_S", limit)
            for _ in ctx.chunks("SELECT * FROM item", key="id", size=10, name=f"up to {limit}"):
                pass

    task_id = bench.run_one("seek")

    (said,) = [r.getMessage() for r in caplog.records if "ctx.chunks" in r.getMessage()]
    assert said.startswith(
        f"task {task_id} (seek): a page of ctx.chunks took 0.0 s to read. Create"
    )


@pytest.mark.test_all
@pytest.mark.parametrize(("error", "match", "source"), REFUSED)
def test_what_would_go_wrong_is_refused(bench: Bench, items, error, match, source) -> None:
    refused(bench, error, match, **source)


@pytest.mark.parametrize(
    "source",
    [
        {"statement": select(Item), "key": Item.kind},
        {"statement": select(Item), "key": (Item.id, Item.kind)},
        {"statement": "SELECT id, kind FROM item", "key": ("id", "kind")},
    ],
)
def test_rows_without_a_key_are_not_passed_over(bench: Bench, items, source) -> None:
    bench.sql("UPDATE item SET kind = NULL WHERE id = 20")
    refused(bench, ValueError, "key is NULL", size=5, **source)
    assert bench.runs == ["refused"]


def test_two_loops_of_one_name(bench: Bench, items) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        ctx.chunks(select(Item), key=Item.id)
        with pytest.raises(ValueError, match="a loop named ''"):
            ctx.chunks(select(Item), key=Item.id)

    task_id = bench.run_one()
    assert bench.state(task_id) == "SUCCEEDED"


def test_the_wrong_kind_of_for(bench: Bench, items) -> None:
    @bench.handler("async", max_attempts=1)
    async def asynchronous(ctx: Any) -> None:
        with pytest.raises(TypeError, match="async for"):
            list(ctx.chunks(select(Item), key=Item.id))

    @bench.handler("plain", max_attempts=1)
    def plain(ctx: Any) -> None:
        with pytest.raises(TypeError, match="for page in"):
            ctx.chunks(select(Item), key=Item.id).__aiter__().asend(None).send(None)

    ids = [bench.create("async"), bench.create("plain")]
    bench.drain()
    assert bench.states(ids) == ["SUCCEEDED"] * 2


def test_our_name_in_a_checkpoint_is_refused(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        with pytest.raises(ValueError, match=r"ctx\.chunks"):
            ctx.checkpoint = {"ctx.chunks": 1}

    task_id = bench.run_one()
    assert bench.state(task_id) == "SUCCEEDED"


def test_grouped_rows(bench: Bench, items) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        kinds = select(Item.kind, func.count().label("n")).group_by(Item.kind)
        for page in ctx.chunks(kinds, key=Item.kind, size=2):
            ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": str(len(page))})
            bench.runs.extend((row.kind, row.n) for row in page)

    bench.run_one()
    assert bench.runs == [("k0", 8), ("k1", 9), ("k2", 8)]


FLOATS = {
    "real": ("real", select(column("k"), column("id")).select_from(table("odd")), "k"),
    "real, typed": (
        "real",
        select(column("k", Float), column("id")).select_from(table("odd")),
        "k",
    ),
    "real of text": ("real", "SELECT k, id FROM odd", "k"),
    "double precision": ("double precision", "SELECT k, id FROM odd", "k"),
    "second of two": ("real", "SELECT k, id FROM odd", ("id", "k")),
    "numeric that is read as float": (
        "numeric",
        select(column("k", Numeric(asdecimal=False)), column("id")).select_from(table("odd")),
        "k",
    ),
}


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("number", few(1, [1, 5]))
def test_keys_that_are_floats_are_refused_at_once(bench: Bench, kind: str, number: int) -> None:
    """0.1 is none of them: a page began with the row behind which it was to, or lost one."""
    sql_type, statement, key = FLOATS[kind]
    bench.sql(f"CREATE TABLE odd (id int, k {sql_type})")
    try:
        bench.sql("INSERT INTO odd SELECT i, i / 10.0 FROM generate_series(1, :n) i", n=number)

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            for page in ctx.chunks(statement, key=key, size=2):
                bench.runs.extend(page)
                if len(bench.runs) > 10:
                    raise RuntimeError

        task_id = bench.run_one()
    finally:
        bench.sql("DROP TABLE odd")

    assert bench.runs == []
    assert "floating point" in str(bench.attempts(task_id)[0])


DECLARED = {
    "timestamptz without its zone": (
        """SELECT '2026-10-24 23:00Z'::timestamptz + i * interval '10m'
            FROM generate_series(1, 40) i""",
        DateTime(),
    ),
    "timestamp with a zone": (
        """SELECT '2026-03-29 01:00'::timestamp + i * interval '10m'
            FROM generate_series(1, 40) i""",
        DateTime(timezone=True),
    ),
    "numeric of many digits": (
        """SELECT 1234567890123456789012345678901234567890.5 + i / 1e30
            FROM generate_series(1, 40) i""",
        Numeric(10, 2),
    ),
    "char(n)": ("SELECT CAST('x' || chr(i + 35) AS char(5)) FROM generate_series(1, 40) i", Text()),
}


@pytest.mark.parametrize("kind", DECLARED)
@pytest.mark.parametrize("is_text", few(1, [True, False]))
def test_keys_are_compared_in_their_columns_type(bench: Bench, kind: str, is_text: bool) -> None:
    rows, declared = DECLARED[kind]
    statement: Any = select(column("k", declared)).select_from(table("odd"))
    bench.sql(IN_BERLIN)
    bench.sql(f"CREATE TABLE odd AS SELECT k FROM ({rows}) AS r(k)")
    try:

        @bench.handler(max_attempts=1)
        def h(ctx: Any) -> None:
            for page in ctx.chunks("SELECT k FROM odd" if is_text else statement, key="k", size=3):
                bench.runs.extend(str(row.k) for row in page)

        task_id = bench.run_one()
    finally:
        bench.sql("DROP TABLE odd")
        bench.sql(AS_BEFORE)

    assert bench.state(task_id) == "SUCCEEDED"
    assert len(bench.runs) == len(set(bench.runs)) == 40
