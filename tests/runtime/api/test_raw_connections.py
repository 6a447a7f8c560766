"""psycopg's own connections: the same tasks, in the caller's transaction or each by itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy.engine import make_url

from tasks_app import (
    InvalidTaskError,
    NewTask,
    acreate_task,
    acreate_tasks,
    create_task,
    create_tasks,
    hint_tasks,
    pause_queue,
)
from tests.forbidden import forbidden
from tests.runtime.bench import Bench
from tests.runtime.hints.ear import Ear, told, wait_of

MIXED = [NewTask("b"), NewTask("a", None, {"unique_key": "k"}), NewTask("c", {"n": 1})]


@pytest.fixture
def url(bench: Bench) -> str:
    return make_url(bench.url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture
def raw(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


def names(bench: Bench) -> list[str]:
    return bench.sql("SELECT array_agg(name ORDER BY id) FROM task_pending") or []


class TestSync:
    def test_a_task_exists_if_and_only_if_the_transaction_commits(
        self, bench: Bench, raw: psycopg.Connection
    ) -> None:
        task_id = create_task(raw, "committed", {"n": 1}, queue="q", biz_key="order:1")
        create_tasks(raw, [NewTask("one"), NewTask("two")])
        assert names(bench) == []
        raw.commit()
        create_task(raw, "rolled.back")
        create_tasks(raw, [NewTask("rolled.back")] * 2)
        raw.rollback()

        assert names(bench) == ["committed", "one", "two"]
        task = bench.task(task_id)
        assert (task.payload, task.queue, task.biz_key) == ({"n": 1}, "q", "order:1")

    def test_a_savepoint(self, bench: Bench, raw: psycopg.Connection) -> None:
        with raw.transaction():
            create_task(raw, "outer")
            with raw.transaction() as savepoint:
                create_task(raw, "undone")
                create_tasks(raw, [NewTask("undone")] * 2)
                raise psycopg.Rollback(savepoint)

        assert names(bench) == ["outer"]

    def test_autocommit_commits_each_call(self, bench: Bench, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as raw:
            create_task(raw, "one")
            assert names(bench) == ["one"]
            create_tasks(raw, MIXED)

            assert sorted(names(bench)) == ["a", "b", "c", "one"]

    def test_with_autocommit_too_many_are_created_together_or_not_at_all(
        self, bench: Bench, url: str
    ) -> None:
        with (
            forbidden(bench.engine, "task_pending", "name = 'c'"),  # behind the one with a key
            psycopg.connect(url, autocommit=True) as raw,
            pytest.raises(psycopg.errors.CheckViolation),
        ):
            create_tasks(raw, MIXED)

        assert names(bench) == []

    def test_a_taken_unique_key(self, bench: Bench, raw: psycopg.Connection) -> None:
        first = create_task(raw, "t", unique_key="k")
        again = create_task(raw, "t", unique_key="k")
        many = create_tasks(raw, [NewTask("t", None, {"unique_key": "k"}), NewTask("t")])

        assert (first.created, again, again.created) == (True, first, False)
        assert (many[0], many[0].created, many[1].created) == (first, False, True)

    def test_a_refused_task_leaves_the_transaction_usable(
        self, bench: Bench, raw: psycopg.Connection
    ) -> None:
        with pytest.raises(InvalidTaskError):
            create_task(raw, "bad name!")
        with pytest.raises(InvalidTaskError, match=r"tasks\[1\]\.payload\.x"):
            create_tasks(raw, [NewTask("ok"), NewTask("ok", {"x": float("nan")})])
        create_task(raw, "good")
        raw.commit()

        assert names(bench) == ["good"]

    @pytest.mark.parametrize("kind", [psycopg.ClientCursor, psycopg.RawCursor])
    def test_rows_and_cursors_may_be_of_any_kind(
        self, bench: Bench, url: str, kind: type[psycopg.Cursor]
    ) -> None:
        with psycopg.connect(url, row_factory=dict_row, cursor_factory=kind) as raw:
            first = create_task(raw, "t", delay="5s")
            again = create_tasks(raw, MIXED)

        assert bench.task(first).name == "t"
        assert [bench.task(task_id).name for task_id in again] == ["b", "a", "c"]

    def test_in_a_pipeline(self, bench: Bench, raw: psycopg.Connection) -> None:
        with raw.pipeline():
            create_task(raw, "one")
            create_tasks(raw, MIXED)
        raw.commit()

        assert sorted(names(bench)) == ["a", "b", "c", "one"]

    def test_the_other_verbs_say_that_they_need_sqlalchemy(self, raw: psycopg.Connection) -> None:
        with pytest.raises(TypeError, match=r"^A Connection of psycopg isn't a Session"):
            pause_queue(raw, "default")  # type: ignore[arg-type]

    def test_an_async_connection_is_sent_to_the_async_functions(self, url: str) -> None:
        async def run() -> None:
            async with await psycopg.AsyncConnection.connect(url) as raw:
                create_task(raw, "t")  # type: ignore[arg-type]

        with pytest.raises(TypeError, match=r"AsyncConnection of psycopg .*acreate_task"):
            asyncio.run(run())

    def test_a_sync_connection_is_sent_to_the_sync_functions(self, raw: psycopg.Connection) -> None:
        with pytest.raises(TypeError, match=r"A Connection of psycopg .*create_task"):
            asyncio.run(acreate_task(raw, "t"))  # type: ignore[arg-type]


class TestAsync:
    def run(self, url: str, work: Callable[[psycopg.AsyncConnection], Awaitable[None]]) -> None:
        async def connected() -> None:
            async with await psycopg.AsyncConnection.connect(url) as raw:
                await work(raw)
                await raw.rollback()

        asyncio.run(connected())

    def test_a_task_exists_if_and_only_if_the_transaction_commits(
        self, bench: Bench, url: str
    ) -> None:
        async def work(raw: psycopg.AsyncConnection) -> None:
            await acreate_task(raw, "committed")
            many = await acreate_tasks(raw, MIXED)
            again = await acreate_task(raw, "a", unique_key="k")
            assert (again, again.created) == (many[1], False)
            assert names(bench) == []
            await raw.commit()
            await acreate_task(raw, "rolled.back")
            await acreate_tasks(raw, MIXED)

        self.run(url, work)

        assert names(bench) == ["committed", "b", "a", "c"]

    def test_autocommit_commits_each_call(self, bench: Bench, url: str) -> None:
        async def work(raw: psycopg.AsyncConnection) -> None:
            await raw.set_autocommit(True)
            await acreate_task(raw, "one")
            await acreate_tasks(raw, MIXED)

        self.run(url, work)

        assert names(bench) == ["one", "b", "a", "c"]


class TestHints:
    def test_none_is_sent_unless_it_is_asked_for(
        self,
        bench: Bench,
        raw: psycopg.Connection,
        ear: Ear,
    ) -> None:
        one = create_task(raw, "t", queue="mail")
        many = create_tasks(raw, [NewTask("t", None, {"queue": "mail"})] * 2)
        raw.commit()
        assert told(ear) == []
        assert not wait_of(bench, one)

        hint_tasks([one, *many], queue="mail")

        assert sorted(told(ear)) == [one, *many]
        assert {queue for queue, _ in ear.messages} == {"mail"}

    def test_without_a_broker_asking_does_nothing(self) -> None:
        hint_tasks([1])


def test_sqlalchemy_has_no_part_in_it(bench: Bench, raw: psycopg.Connection) -> None:
    create_task(raw, "t")  # what is made once is made
    seen: set[str] = set()
    sys.setprofile(lambda frame, *_: seen.add(frame.f_code.co_filename))
    try:
        create_task(raw, "t", {"n": 1})
    finally:
        sys.setprofile(None)

    assert any("tasks_app" in name for name in seen)
    assert not [name for name in seen if "sqlalchemy" in name]
