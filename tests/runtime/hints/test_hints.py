"""Hints: what committed is told, what did not is not, and no commit ever waits or fails for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count, takewhile
from typing import Any, ClassVar

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from tasks_app import Fail, NewTask, Retry, acreate_task, acreate_tasks, create_task, create_tasks
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.runtime import hint_sender as hinter_room
from tasks_app.runtime import hint_sender as line_room
from tasks_app.runtime.api.groups import create_group
from tasks_app.runtime.hint_sender import Hint, HintCounts, HintSender
from tasks_app.runtime.hints import _NOTES, BULK, HINTS, NEAR
from tests.clock import Clock, until
from tests.runtime.bench import Bench
from tests.runtime.hints.ear import Ear, told, wait_of


@pytest.fixture
def session(bench: Bench) -> Iterator[Session]:
    with Session(bench.engine) as session:
        yield session


class TestWhatIsTold:
    def test_a_committed_task_and_not_before(self, session: Session, ear: Ear) -> None:
        task_id = create_task(session, "t", queue="mail")
        assert told(ear) == []
        session.commit()
        assert told(ear) == [task_id]
        assert ear.messages == [("mail", [task_id])]

    def test_tasks_of_each_commit_once(self, session: Session, ear: Ear) -> None:
        first = create_task(session, "t")
        session.commit()
        second = create_task(session, "t")
        session.commit()
        session.commit()
        assert told(ear) == [first, second]

    def test_nothing_of_a_rollback(self, bench: Bench, session: Session, ear: Ear) -> None:
        create_task(session, "t")
        session.rollback()
        create_task(session, "t")
        session.close()
        failing = Session(bench.engine)
        with contextlib.suppress(ZeroDivisionError), failing, failing.begin():
            create_task(failing, "t")
            raise ZeroDivisionError
        with session.begin():
            last = create_task(session, "t")

        assert told(ear) == [last]

    def test_nothing_of_a_commit_that_fails(self, session: Session, ear: Ear) -> None:
        session.execute(text("CREATE TEMP TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
        session.execute(text("INSERT INTO late VALUES (1), (1)"))
        create_task(session, "t")
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        last = create_task(session, "t")
        session.commit()
        assert told(ear) == [last]

    def test_what_savepoints_released_and_committed(self, session: Session, ear: Ear) -> None:
        with session.begin():
            kept = [create_task(session, "t")]
            with session.begin_nested():
                kept.append(create_task(session, "t"))
                with session.begin_nested() as undone:
                    create_task(session, "t")
                    with session.begin_nested():
                        create_task(session, "t")  # released into what is rolled back
                    undone.rollback()
                with session.begin_nested():
                    kept.append(create_task(session, "t"))
            assert told(ear) == []

        assert told(ear) == kept

    def test_nothing_of_a_savepoint_if_all_rolls_back(self, session: Session, ear: Ear) -> None:
        with session.begin_nested():
            create_task(session, "t")
        session.rollback()
        with session.begin_nested():
            create_task(session, "t")
            session.get_transaction().rollback()  # type: ignore[union-attr]
        last = create_task(session, "t")
        session.commit()
        assert told(ear) == [last]

    def test_a_session_that_lives_long_keeps_nothing(self, session: Session, ear: Ear) -> None:
        for end in (session.commit, session.rollback, session.close):
            with contextlib.suppress(ZeroDivisionError), session.begin_nested():
                create_task(session, "t")
                raise ZeroDivisionError
            create_task(session, "t")
            end()
            assert session.info == {_NOTES: {}}

    def test_a_commit_releases_savepoints_that_are_open(self, session: Session, ear: Ear) -> None:
        session.begin_nested()
        task_id = create_task(session, "t")
        session.get_transaction().commit()  # type: ignore[union-attr]
        assert told(ear) == [task_id]

    def test_a_task_that_is_created_in_a_flush(self, session: Session, ear: Ear) -> None:
        class Order(DeclarativeBase):
            pass

        class Line(Order):
            __tablename__ = "line"
            __table_args__: ClassVar = {"prefixes": ["TEMPORARY"]}
            id: Mapped[int] = mapped_column(primary_key=True)

        made = []
        Order.metadata.create_all(session.connection())
        event.listen(session, "after_flush", lambda *_: made.append(create_task(session, "t")))
        session.add(Line(id=1))
        session.commit()

        assert len(made) == 1
        assert told(ear) == made

    def test_only_rows_that_may_run_at_once(self, session: Session, ear: Ear) -> None:
        create_task(session, "t", delay="1m")
        create_task(session, "t", run_at=datetime.now(UTC) - timedelta(seconds=9))
        create_task(session, "t", enabled=False)
        create_task(session, "t", retry="5s,5s", wait_first=True)
        holder = create_task(session, "t", unique_key="k")
        create_task(session, "t", unique_key="k")
        session.commit()
        assert told(ear) == [holder]

    def test_many_go_together_by_queue(self, session: Session, ear: Ear) -> None:
        new = [NewTask("t", None, {"queue": f"q{n % 2}"}) for n in range(800)]
        ids = create_tasks(session, new)
        session.commit()
        assert sorted(told(ear)) == ids
        assert {queue for queue, _ in ear.messages} == {"q0", "q1"}
        assert len(ear.messages) <= 6
        assert max(len(ids) for _, ids in ear.messages) <= 500

    def test_nobody_waits_for_the_first_of_very_many(self, session: Session, ear: Ear) -> None:
        create_tasks(session, [NewTask("t")] * (BULK + 1))
        session.commit()
        assert told(ear) == []

    def test_a_session_that_was_open_before_the_first_hint(self, bench: Bench, ear: Ear) -> None:
        maker = sessionmaker(bench.engine)
        with maker() as early, Session(bench.engine) as first:
            early.execute(text("SELECT 1"))
            ids = [create_task(first, "t")]
            first.commit()
            ids.append(create_task(early, "t"))
            early.commit()
        assert told(ear) == ids

    def test_tasks_that_a_handler_creates(self, bench: Bench, ear: Ear) -> None:
        made = []

        @bench.handler("parent")
        def parent(ctx: Any) -> None:
            child = create_task(ctx.session, "child")
            if ctx.attempt == 1:
                raise ValueError  # it rolls back
            made.append(child)

        @bench.handler("aparent")
        async def aparent(ctx: Any) -> None:
            made.append(await acreate_task(ctx.session, "child"))

        ids = [bench.create("parent", retry="0s"), bench.create("aparent")]
        bench.execute(ids)
        bench.execute(ids[:1])

        # The parent is told of, too: it is tried again at once.
        assert sorted(i for i in told(ear) if i not in ids) == sorted(made)


class TestWhatIsDueSoon:
    """Sooner than a scan sees it coming: whoever makes it due hints at it, when it is."""

    @pytest.mark.test_all
    def test_a_short_delay_is_waited_for_a_long_one_not(self, session: Session, ear: Ear) -> None:
        began = time.monotonic()
        create_task(session, "t", delay=NEAR + timedelta(milliseconds=1))
        second = create_task(session, "t", delay="0.6s")
        first = create_task(session, "t", delay="0.3s")
        session.commit()
        until(lambda: len(ear.ids) == 2)
        assert ear.ids == [first, second]
        assert [at >= began + 0.3 * n for n, at in enumerate(ear.instants, 1)] == [True, True]

    @pytest.mark.test_all
    def test_an_exit_does_not_wait_for_it(self, session: Session, ear: Ear) -> None:
        create_task(session, "t", delay="1.4s")
        session.commit()
        began = time.monotonic()
        HINTS.flush()
        assert time.monotonic() - began < 1
        assert ear.ids == []

    def test_a_short_retry_is_hinted_at_and_a_long_one_is_not(self, bench: Bench, ear: Ear) -> None:
        @bench.handler()
        def h(ctx: Any, payload: dict) -> None:
            raise Retry(after=payload["after"])

        short, long = (bench.create(payload={"after": after}) for after in ("0.2s", "1m"))
        bench.execute([short, long])
        until(lambda: ear.ids)
        due = "SELECT due_at <= now() FROM task_pending WHERE id = :id"
        until(lambda: bench.sql(due, id=short))  # a slow child has met its next attempt
        assert set(told(ear)) == {short}


class TestWhatCannotBeKnown:
    def test_a_connection_says_nothing(self, bench: Bench, ear: Ear) -> None:
        bench.do(create_task, "t")
        assert told(ear) == []

    @pytest.mark.parametrize("mode", ["rollback_only", "create_savepoint", "control_fully"])
    def test_a_session_in_somebodys_transaction(self, bench: Bench, ear: Ear, mode: Any) -> None:
        with bench.engine.connect() as connection, connection.begin() as outer:
            with Session(connection, join_transaction_mode=mode) as session:
                task_id = create_task(session, "t")
                session.commit()
            if outer.is_active:
                assert bench.sql("SELECT count(*) FROM task_pending") == 0
                outer.commit()
        assert wait_of(bench, task_id) == timedelta(0)
        assert told(ear) == []


class TestAsync:
    def test_async_sessions(self, bench: Bench, ear: Ear) -> None:
        async def produce(engine: AsyncEngine) -> list[int]:
            async with AsyncSession(engine) as session:
                await acreate_task(session, "t")
                await session.rollback()
                ids = [await acreate_task(session, "t")]
                async with session.begin_nested() as savepoint:
                    await acreate_task(session, "t")
                    await savepoint.rollback()
                await session.commit()
                ids += await acreate_tasks(session, [NewTask("t"), NewTask("t")])
                await session.commit()
            connection: AsyncConnection
            async with engine.begin() as connection:
                await acreate_task(connection, "t")
                async with AsyncSession(connection) as joined:
                    await acreate_task(joined, "t")
                    await joined.commit()
            return ids

        async def run() -> list[int]:
            async with bench.async_engine() as engine:
                return await produce(engine)

        assert asyncio.run(run()) == told(ear)


def test_the_scan_need_not_wait_for_a_hint(bench: Bench, session: Session, ear: Ear) -> None:
    """It may be lost; the next scan finds the task as if there had been none."""
    for _ in range(2):  # the second is created when hints are known to work
        task_id = create_task(session, "t")
        session.commit()
        HINTS.flush(20)
        with bench.engine.connect() as connection:
            assert [task_id in rows.ids for rows in find_due(connection, {"default": 9})] == [True]


class TestWhenHintsAreOff:
    @pytest.mark.parametrize(
        ("variable", "value"), [("TASKS_APP_BROKER_URL", ""), ("TASKS_APP_HINTS", "false")]
    )
    def test_nothing_is_started_and_no_row_waits(
        self,
        bench: Bench,
        session: Session,
        ear: Ear,
        monkeypatch: pytest.MonkeyPatch,
        variable: str,
        value: str,
    ) -> None:
        monkeypatch.setenv(variable, value)
        ids = [create_task(session, "t") for _ in range(2)]
        session.commit()
        assert told(ear) == []
        assert [wait_of(bench, i) for i in ids] == [timedelta(0)] * 2
        assert HINTS._sender is None
        assert not session.info


class TestTheHinter:
    @pytest.fixture
    def ear(self) -> Iterator[Ear]:
        ear = Ear()
        yield ear
        ear.open.set()

    @pytest.fixture
    def hinter(self, ear: Ear) -> HintSender:
        return HintSender(lambda: ear)

    def test_its_thread_starts_with_the_first_hint(self, hinter: HintSender, ear: Ear) -> None:
        before = threading.active_count()
        hinter.flush(10)
        hinter.offer([])
        assert threading.active_count() == before
        offer(hinter, 1)
        assert threading.active_count() == before + 1
        assert ear.ids == [1]

    @pytest.mark.test_all
    def test_it_sends_while_the_producer_computes(self, hinter: HintSender, ear: Ear) -> None:
        """The kernel may still let the producer go on first, on a busy machine: many tries."""
        offer(hinter, 1)
        usual, ends = sys.getswitchinterval(), time.monotonic() + 30
        sys.setswitchinterval(60.0)  # who computes is not interrupted
        try:
            tries = takewhile(lambda _: time.monotonic() < ends, count(2))
            assert any(self.sent_while_computing(hinter, ear, n) for n in tries)
        finally:
            sys.setswitchinterval(usual)

    def sent_while_computing(self, hinter: HintSender, ear: Ear, task_id: int) -> bool:
        hinter.offer([Hint("q", task_id)])
        ends = time.monotonic() + 0.03
        while task_id not in ear.ids and time.monotonic() < ends:
            pass
        sent = task_id in ear.ids
        hinter.flush(10)
        return sent

    def test_what_comes_as_it_publishes_is_joined(self, hinter: HintSender, ear: Ear) -> None:
        ear.open.clear()
        hinter.offer([Hint("q", 1)])
        until(lambda: ear.looks)
        for n in range(2, 700):
            hinter.offer([Hint("q", n)])
        ear.open.set()
        hinter.flush(10)
        assert [len(ids) for _, ids in ear.messages] == [1, 500, 198]
        assert ear.ids == list(range(1, 700))

    def test_a_few_go_out_each_at_once(self, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(line_room, "WINDOW_S", 3600.0)
        hinter = HintSender(lambda: ear)
        few = range(line_room.BURST // 2)  # a flush may take a round of its own
        for n in few:
            offer(hinter, n)
        assert ear.messages == [("q", [n]) for n in few]

    @pytest.mark.test_all
    def test_there_are_at_most_200_messages_a_second(self, hinter: HintSender, ear: Ear) -> None:
        began = time.monotonic()
        for n in range(2_000):
            hinter.offer([Hint("q", n)])
            time.sleep(0)  # let it publish, if it would
        hinter.flush(10)
        assert ear.ids == list(range(2_000))
        booked = (time.monotonic() - began) / line_room.WINDOW_S
        assert len(ear.messages) <= booked + line_room.BURST + 2

    def test_an_offer_never_waits_and_is_bounded(self, hinter: HintSender, ear: Ear) -> None:
        ear.open.clear()
        offered = 2 * hinter_room.MOST_WAITING
        hinter.offer(Hint("q", n) for n in range(offered))
        hinter.offer([Hint("q", offered)])
        assert hinter.counts.dropped >= offered - hinter_room.MOST_WAITING - hinter_room.MOST_IDS

    def test_after_an_error_it_is_silent_for_longer_and_longer_and_says_so_once(
        self, ear: Ear, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = Clock()
        hinter = HintSender(lambda: ear, clock=clock)
        ear.error = ConnectionError("redis://:secret@host")
        for n, lasts_s in enumerate([2, 4, 8, 16, 32, 60, 60], 1):
            offer(hinter, n)
            assert hinter.counts.failed == n
            clock.now += lasts_s - 0.1
            offer(hinter, 100 + n)
            assert hinter.counts.silent == n
            clock.now += 0.2
        ear.error = None
        offer(hinter, 200)
        ear.error = ConnectionError()
        offer(hinter, 201)

        assert ear.ids == [200]
        assert hinter.counts == HintCounts(sent=1, failed=8, silent=7)
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
        assert "ConnectionError" in caplog.text
        assert "secret" not in caplog.text

    def test_a_connect_that_exits_silences_it_and_the_thread_lives(self, ear: Ear) -> None:
        def connect() -> Ear:
            if not hinter.counts.failed:
                raise SystemExit(3)
            return ear

        clock = Clock()
        hinter = HintSender(connect, clock=clock)
        offer(hinter, 1)
        clock.now += line_room.SILENCE_S
        offer(hinter, 2)

        assert ear.ids == [2]
        assert hinter.counts.failed == 1

    @pytest.mark.test_all
    def test_a_deep_queue_is_looked_at_at_times_and_then_left_alone(self, ear: Ear) -> None:
        clock = Clock()
        hinter = HintSender(lambda: ear, clock=clock)
        for n in range(line_room.READ_DEPTH_EVERY - 1):
            offer(hinter, n)
        assert ear.looks == 1
        ear.depths["q"] = line_room.DEEP
        offer(hinter, line_room.READ_DEPTH_EVERY - 1)
        assert ear.looks == 2  # behind the message that went out
        offer(hinter, 100)
        offer(hinter, 101)
        offer(hinter, 102, "other")

        assert ear.looks == 3
        assert ear.ids == [*range(line_room.READ_DEPTH_EVERY), 102]
        assert hinter.counts.silent == 2
        clock.now += line_room.DEEP_SILENCE_S
        offer(hinter, 103)
        assert ear.looks == 4
        assert 103 not in ear.ids

    def test_a_queue_that_no_worker_has_made_gets_none(self, hinter: HintSender, ear: Ear) -> None:
        ear.depths["unmade"] = None
        offer(hinter, 1, "unmade")
        assert ear.ids == []
        assert hinter.counts.silent == 1

    @pytest.mark.test_all
    def test_a_flush_is_bounded_and_none_when_silent(self, ear: Ear) -> None:
        hinter = HintSender(lambda: ear, clock=Clock())
        ear.open.clear()
        hinter.offer([Hint("q", 1)])
        hinter.flush(0.01)
        ear.error = ConnectionError()
        ear.open.set()
        until(lambda: hinter.counts.failed)
        ear.open.clear()
        began = time.monotonic()
        hinter.flush(1000)

        assert time.monotonic() - began < 10

    def test_without_a_thread_to_be_had_a_commit_does_not_fail(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*_: Any) -> None:
            raise RuntimeError("can't start new thread")

        ear = Ear()
        monkeypatch.setenv("TASKS_APP_BROKER_URL", "redis://nobody")
        before = HINTS.provide(lambda settings: ear)
        try:
            with Session(bench.engine) as session:
                with monkeypatch.context() as patch:
                    patch.setattr(threading.Thread, "start", refuse)
                    ids = [create_task(session, "t")]
                    session.commit()
                ids.append(create_task(session, "t"))
                session.commit()
            assert told(ear) == ids
        finally:
            HINTS.provide(before)
        assert "RuntimeError" in caplog.text


def offer(hinter: HintSender, task_id: int, queue: str = "q") -> None:
    """Offer one hint and wait for what becomes of it."""
    hinter.offer([Hint(queue, task_id)])
    hinter.flush(10)


ENDS = {
    "plain": {},
    "with effects": {"effects": True},
    "fails": {"fails": True},
    "async with effects": {"effects": True, "is_async": True},
}


@pytest.mark.parametrize("end", ENDS.values(), ids=list(ENDS))
def test_the_last_member_hints_at_a_callback(bench: Bench, ear: Ear, end: dict[str, bool]) -> None:
    def handle(ctx: Any) -> None:
        if end.get("fails"):
            raise Fail("no")

    if end.get("is_async"):

        @bench.handler("t")
        async def _(ctx: Any) -> None:
            await ctx.session.execute(text("SELECT 1"))
    else:

        @bench.handler("t")
        def _(ctx: Any) -> None:
            handle(ctx)
            if end.get("effects"):
                ctx.session.execute(text("SELECT 1"))

    callback = NewTask("then")
    group = bench.do(create_group, [NewTask("t")] * 2, then=callback, on_failure=callback)

    bench.execute(group.task_ids)

    assert told(ear).count(group.callback_id) == 1


def test_a_late_callback_or_one_of_a_fair_queue_is_the_scans(bench: Bench, ear: Ear) -> None:
    bench.succeeding("t")
    for options in ({"delay": 60}, {"fair_key": "gold"}, {"enabled": False}):
        with bench.engine.begin() as connection:
            then = NewTask("then", None, options)  # type: ignore[arg-type]
            group = create_group(connection, [NewTask("t")], then=then)
        bench.execute(group.task_ids)
    assert told(ear) == []


def test_successes_of_plain_tasks_ask_for_nothing_new() -> None:
    """What a plain settle returns, and what it costs, is as it was."""
    from tasks_app.pool.runs import settle, settle_success

    for statement in (settle._SUCCEEDED().text, settle_success._WORDS["", False][1].decode()):
        assert "called" not in statement
        assert "task_group" not in statement
