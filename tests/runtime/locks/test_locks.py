"""Locks as people use them: around a block, online and in handlers."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tasks_app import locks
from tasks_app.domain.locks import LockRequest, lock_parts
from tasks_app.runtime.locks import client
from tasks_app.runtime.locks import lock as acquire
from tasks_app.runtime.locks.client import Renewals, Transactions
from tests.clock import until
from tests.factory import rows_of
from tests.runtime.bench import EFFECT, Bench, effect
from tests.statements import once_after


def held(engine: Engine, state: str = "held") -> list[tuple]:
    found = "SELECT resource, who, task_id FROM task_locks WHERE state = :state ORDER BY 1"
    return rows_of(engine, found, state=state)


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    """Renew by the test's own steps: no thread does it beside them."""
    own = Renewals()
    monkeypatch.setattr(client, "BACKGROUND", own)
    return own


def take_over(engine: Engine) -> None:
    """Let all leases end, and somebody else have what they were on."""
    with engine.begin() as connection:
        names = connection.execute(text("SELECT resource FROM task_locks")).scalars().all()
        connection.execute(text("UPDATE task_lock_holder SET lease_until = now()"))
    locks.hold(engine, exclusive=names, who="thief").take()


class TestOnline:
    def test_a_block_holds_and_releases(self, engine: Engine) -> None:
        with locks.hold(engine, exclusive="a", shared=["b"], counted={"c": 3}, who="me") as lock:
            assert held(engine) == [(name, "me", None) for name in "abc"]
            assert lock.resources == ("a", "b", "c")
        assert held(engine) == []

    def test_it_releases_when_the_block_raises(self, engine: Engine) -> None:
        with pytest.raises(KeyError), locks.hold(engine, exclusive="a"):
            raise KeyError
        assert held(engine) == []

    def test_who_is_denied_hears_who_is_in_the_way(self, engine: Engine) -> None:
        with locks.hold(engine, exclusive="account:7", who="teller"):
            with pytest.raises(locks.LockDeniedError) as told:
                locks.hold(engine, shared=["account:7", "a"]).take()
            assert str(told.value) == (
                "Denied: account:7 is held by teller, exclusive. Try again later, or wait longer."
            )
            assert [resource for resource, *_ in held(engine)] == ["account:7"]

    def test_who_waits_gets_it_when_it_is_free(self, bench: Bench) -> None:
        got = threading.Event()

        def other() -> None:
            with locks.hold(bench.engine, exclusive="a", wait="20s"):
                got.set()

        with locks.hold(bench.engine, exclusive="a"):
            bench.beside(other)
            until(lambda: held(bench.engine, "waiting"))
            assert not got.is_set()
        assert got.wait(10)

    def test_who_waits_in_vain_leaves_the_line(self, engine: Engine) -> None:
        with locks.hold(engine, exclusive="a", who="me"):
            with suppress(locks.LockDeniedError):
                _elsewhere(lambda: locks.hold(engine, exclusive="a", wait="200ms").take())
            assert held(engine, "waiting") == []

    def test_looks_are_few(self) -> None:
        assert all(0.3 <= pause <= 0.5 for pause in islice(acquire.pauses(), 4, 30))

    def test_who_is_interrupted_while_he_waits_leaves_the_line(self, engine: Engine) -> None:
        waiting: list[tuple] = []

        def interrupt() -> None:
            waiting.extend(held(engine, "waiting"))
            raise KeyboardInterrupt

        def wait() -> None:
            own = engine.execution_options()
            with once_after(own, "o.held, o.dead", interrupt, number=3):
                locks.hold(own, exclusive="a", wait="1h").take()

        with locks.hold(engine, exclusive="a"):
            with suppress(KeyboardInterrupt):
                _elsewhere(wait)
            assert held(engine, "waiting") == []

        assert len(waiting) == 1

    def test_a_grant_that_was_not_answered_is_given_back(self, engine: Engine) -> None:
        with locks.hold(engine, exclusive="a"):
            pass  # the resource is known now: the next transaction grants
        own = engine.execution_options()

        def unanswered() -> None:
            raise OperationalError("COMMIT", None, ConnectionError())

        with once_after(own, "denied AS", unanswered), pytest.raises(OperationalError):
            locks.hold(own, exclusive="a").take()
        assert held(engine) == []

    def test_who_was_passed_by_stands_in_line_again(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(acquire, "WAIT_LEASE", timedelta(milliseconds=30))
        got = threading.Event()

        def other() -> None:
            parts = lock_parts("a", (), None)
            ask = LockRequest(uuid4(), parts, "other", timedelta(seconds=30), None)
            acquire.acquire_locks(Transactions(bench.engine), ask, 20.0, 5.0)
            got.set()

        with locks.hold(bench.engine, exclusive="a"):
            bench.beside(other)
            until(lambda: held(bench.engine, "waiting"))
            bench.sql("DELETE FROM task_lock_holder WHERE fence IS NULL")
            until(lambda: held(bench.engine, "waiting"))

        assert got.wait(10)

    def test_who_holds_may_not_wait_for_more(self, engine: Engine) -> None:
        with locks.hold(engine, exclusive="a"):
            with pytest.raises(locks.LockOrderError, match="holds a and would wait for more"):
                locks.hold(engine, exclusive="b", wait="1s").take()
            with locks.hold(engine, exclusive="b"):
                pass

    def test_the_end_of_a_block_says_that_its_lock_was_taken_over(self, engine: Engine) -> None:
        with (
            pytest.raises(locks.LockLostError, match="The lock on a was lost"),
            locks.hold(engine, exclusive="a"),
        ):
            take_over(engine)

    def test_the_guard_refuses_what_was_written_under_a_lost_lock(self, bench: Bench) -> None:
        hold = locks.hold(bench.engine, exclusive="a")
        lock = hold.take()
        with Session(bench.engine) as session:
            session.execute(text("INSERT INTO effect VALUES (1, 'mine')"))
            take_over(bench.engine)
            with pytest.raises(locks.LockLostError):
                lock.check(session)
        assert lock.lost

    def test_under_the_guard_nobody_takes_over_until_the_commit(self, bench: Bench) -> None:
        lock = locks.hold(bench.engine, exclusive="a").take()
        with Session(bench.engine) as session, session.begin():
            lock.check(session)
            with pytest.raises(locks.LockDeniedError):
                take_over(bench.engine)
        take_over(bench.engine)

    def test_a_release_may_go_with_a_commit(self, bench: Bench) -> None:
        lock = locks.hold(bench.engine, exclusive="a").take()
        with Session(bench.engine) as session, session.begin():
            lock.release(session)
            assert held(bench.engine) != []
        assert held(bench.engine) == []

    def test_a_release_that_is_rolled_back_is_none(self, bench: Bench) -> None:
        """The block's end releases it then; nobody waits for the lease."""
        with locks.hold(bench.engine, exclusive="a", lease="300s") as lock:
            with Session(bench.engine) as session:
                lock.release(session)
                assert "released, if" in repr(lock)
                with pytest.raises(locks.LockLostError):
                    lock.check(session)
                session.rollback()
            assert (lock.ended, lock.lost) == (False, False)
            assert "held" in repr(lock)
            with Session(bench.engine) as session, session.begin():
                lock.check(session)
                with session.begin_nested() as savepoint:
                    lock.release(session)
                    savepoint.rollback()
            assert not lock.ended
            assert held(bench.engine) != []

        assert lock.ended
        assert held(bench.engine) == []

    def test_a_release_undone_is_renewed_again(self, bench: Bench, renewals: Renewals) -> None:
        left = "SELECT lease_until - now() > interval '250s' FROM task_lock_holder"
        with locks.hold(bench.engine, exclusive="a", lease="300s") as lock:
            with Session(bench.engine) as session:
                lock.release(session)
                lock.renew_at = 0.0
                renewals.renew_locks()
                session.rollback()
            bench.sql("UPDATE task_lock_holder SET lease_until = now() + interval '9s'")
            lock.renew_at = 0.0
            renewals.renew_locks()

            assert (bench.sql(left), lock.lost) == (True, False)

    def test_a_renewal_does_not_take_what_was_released_by_a_commit_for_lost(
        self, bench: Bench, renewals: Renewals, caplog: pytest.LogCaptureFixture
    ) -> None:
        with locks.hold(bench.engine, exclusive="a") as lock:
            with Session(bench.engine) as session, session.begin():
                lock.release(session)
            lock.renew_at = 0.0
            renewals.renew_locks()
            assert (lock.ended, lock.lost) == (True, False)
        assert "lost" not in caplog.text

    def test_a_block_that_ends_before_its_release_leaves_it_to_that(self, bench: Bench) -> None:
        with Session(bench.engine) as session, session.begin():
            with locks.hold(bench.engine, exclusive="a") as lock:
                lock.release(session)
            assert held(bench.engine) != []
        assert held(bench.engine) == []
        assert lock.ended

    def test_an_async_block_follows_the_transaction_of_its_release_too(self, bench: Bench) -> None:
        async def block() -> bool:
            async with locks.hold(bench.engine, exclusive="a", lease="300s") as lock:
                with Session(bench.engine) as session:
                    lock.release(session)
                    session.rollback()
            return lock.ended

        assert asyncio.run(block())
        assert held(bench.engine) == []

    @pytest.mark.test_all
    def test_a_renewal_that_stands_still_delays_a_release_and_no_more(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = locks.hold(bench.engine, exclusive="a").take()
        tried = threading.Event()
        single = lock.database.single

        def begins(_: Any) -> Any:
            if begun:
                tried.set()
            begun.append(1)
            return single()

        begun: list[int] = []
        monkeypatch.setattr(Transactions, "single", begins)
        with bench.engine.connect() as renewal:
            renewal.execute(text("UPDATE task_lock_holder SET lease_until = lease_until"))
            releasing = bench.beside(lock.release)
            assert tried.wait(20)
            renewal.commit()
        releasing.join(20)

        assert lock.ended
        assert held(bench.engine) == []

    def test_a_thread_renews_it_meanwhile(self, engine: Engine) -> None:
        leases = text("SELECT lease_until FROM task_lock_holder")
        with locks.hold(engine, exclusive="a", lease="1s"), engine.connect() as connection:
            first = connection.execute(leases).scalar_one()
            connection.rollback()

            def renewed() -> bool:
                now = connection.execute(leases).scalar_one()
                connection.rollback()
                return now > first

            until(renewed)

    @pytest.mark.test_all
    def test_a_lock_that_is_forgotten_is_not_renewed(self, engine: Engine) -> None:
        gc.collect()  # what earlier tests forgot within tracebacks goes first
        before = len(client.BACKGROUND)
        lock = locks.hold(engine, exclusive="a", lease="1s").take()
        assert len(client.BACKGROUND) == before + 1
        del lock
        assert len(client.BACKGROUND) == before

    def test_a_lease_may_be_renewed_by_hand(self, engine: Engine) -> None:
        with locks.hold(engine, exclusive="a", renew=False) as lock:
            lock.renew()
            take_over(engine)
            with pytest.raises(locks.LockLostError):
                lock.renew()
            with pytest.raises(locks.LockLostError):
                lock.renew()
            lock.lost = False

    def test_async_code_holds_too(self, engine: Engine) -> None:
        async def code() -> list[tuple]:
            async with locks.hold(engine, exclusive="a", wait="5s", who="me"):
                return held(engine)

        assert asyncio.run(code()) == [("a", "me", None)]
        assert held(engine) == []

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"wait": "soon"}, "wait is 'soon', which is not a duration"),
            ({"lease": "100ms"}, "lease is 0.1 s. Allowed: 1s .. 1d"),
            ({"lease": "2d"}, "lease is 172800 s"),
        ],
    )
    def test_nonsense_is_refused_at_once(self, engine: Engine, options: Any, says: str) -> None:
        with pytest.raises(locks.InvalidLockError, match=says):
            locks.hold(engine, exclusive="a", **options)

    def test_what_is_no_engine_is_refused(self) -> None:
        with pytest.raises(TypeError, match="A str isn't an Engine"):
            locks.hold("postgresql://", exclusive="a")  # type: ignore[arg-type]


def _elsewhere(call: Callable[[], object]) -> None:
    """Call it in a thread, whose context holds nothing; raise what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    for error in errors:
        raise error


class TestHandlers:
    def test_a_run_holds_under_its_tasks_name(self, bench: Bench) -> None:
        @bench.handler()
        def t(ctx: Any) -> None:
            with ctx.locks(exclusive="a"):
                bench.runs.append(held(bench.engine))

        task_id = bench.execute_one()
        assert bench.runs == [[("a", "t", task_id)]]
        assert bench.state(task_id) == "SUCCEEDED"
        assert held(bench.engine) == []

    def test_who_is_denied_comes_back_uncharged(self, bench: Bench) -> None:
        @bench.handler()
        def t(ctx: Any) -> None:
            with ctx.locks(exclusive="a", snooze="100s"):
                bench.runs.append(ctx.attempt)

        task_id = bench.create()
        with locks.hold(bench.engine, exclusive="a"):
            bench.execute([task_id])
        task = bench.task(task_id)
        assert (task.state, task.failures, bench.runs) == ("PENDING", 0, [])
        wait = (task.due_at - task.created_at).total_seconds()
        assert 75 <= wait <= 130

    def test_what_it_wrote_and_its_locks_end_with_one_commit(self, bench: Bench) -> None:
        @bench.handler()
        def t(ctx: Any) -> None:
            with ctx.locks(exclusive="a"):
                effect(ctx)
            bench.runs.append(len(held(bench.engine)))

        task_id = bench.execute_one()
        assert bench.runs == [1]
        assert bench.effects(task_id) == 1
        assert held(bench.engine) == []
        writers = "SELECT xmin::text FROM effect UNION SELECT xmin::text FROM task_completed"
        assert bench.sql(f"SELECT count(*) FROM ({writers}) AS z") == 1

    def test_it_rolls_back_then_the_lock_is_released_all_the_same(self, bench: Bench) -> None:
        @bench.handler(retry="100s")
        def t(ctx: Any) -> None:
            with ctx.locks(exclusive="a"):
                effect(ctx)
            raise ValueError

        task_id = bench.execute_one()
        assert (bench.state(task_id), bench.effects(task_id)) == ("PENDING", 0)
        assert held(bench.engine) == []

    def test_a_block_that_raised_keeps_its_lock_until_the_commit(self, bench: Bench) -> None:
        @bench.handler()
        def t(ctx: Any) -> None:
            with suppress(KeyError), ctx.locks(exclusive="a"):
                effect(ctx)
                raise KeyError
            bench.runs.append(len(held(bench.engine)))

        @bench.handler("async")
        async def at(ctx: Any) -> None:
            with suppress(KeyError):
                async with ctx.locks(exclusive="b"):
                    await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
                    raise KeyError
            bench.runs.append(len(held(bench.engine)))

        ids = [bench.create(), bench.create("async")]
        for task_id in ids:
            bench.execute([task_id])

        assert bench.states(ids) == ["SUCCEEDED"] * 2
        assert bench.runs == [1, 1]
        assert [bench.effects(i) for i in ids] == [1, 1]
        assert held(bench.engine) == []

    def test_a_block_whose_sql_failed_leaves_no_lock(self, bench: Bench) -> None:
        @bench.handler(max_attempts=1)
        def t(ctx: Any) -> None:
            with ctx.locks(exclusive="a"):
                ctx.session.execute(text("SELECT 1 / 0"))

        task_id = bench.execute_one()
        assert "division by zero" in bench.error(task_id)
        assert held(bench.engine) == []

    @pytest.mark.parametrize("writes", [True, False])
    def test_a_lost_lock_fails_the_run_and_rolls_back(self, bench: Bench, writes: bool) -> None:
        @bench.handler(max_attempts=1)
        def t(ctx: Any) -> None:
            with ctx.locks(exclusive="a"):
                if writes:
                    effect(ctx)
                take_over(bench.engine)

        task_id = bench.execute_one()
        assert bench.state(task_id) == "FAILED"
        assert "The lock on a was lost" in bench.error(task_id)
        assert bench.effects(task_id) == 0
        assert held(bench.engine) == [("a", "thief", None)]

    def test_async_handlers_hold_too(self, bench: Bench) -> None:
        @bench.handler()
        async def t(ctx: Any) -> None:
            async with ctx.locks(exclusive="a"):
                await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
            bench.runs.append(len(held(bench.engine)))

        task_id = bench.execute_one()
        assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)
        assert bench.runs == [1]
        assert held(bench.engine) == []

    def test_with_alone_would_hold_up_the_event_loop(self, bench: Bench) -> None:
        @bench.handler(max_attempts=1)
        async def t(ctx: Any) -> None:
            with ctx.locks(exclusive="a"):
                pass

        task_id = bench.execute_one()
        assert "use: async with" in bench.error(task_id)

    def test_a_lock_is_renewed_by_the_housekeeper(self, bench: Bench) -> None:
        ended = bench.event()

        @bench.handler()
        def t(ctx: Any) -> None:
            with ctx.locks(exclusive="a"):
                ended.wait(20)

        leases = "SELECT max(lease_until) FROM task_lock_holder"
        child = bench.child(lease=1.5)
        bench.beside(child.execute, [bench.create()])
        first = until(lambda: bench.sql(leases))
        until(lambda: bench.sql(leases) > first)

    def test_a_run_that_is_let_go_loses_its_locks_at_once(self, bench: Bench) -> None:
        """Its task is rescued, or given back: nobody waits for the lock's own lease."""
        ended = bench.event()

        @bench.handler()
        def t(ctx: Any) -> None:
            with ctx.locks(exclusive="a"):
                ended.wait(20)

        bench.beside(bench.child().execute, [bench.create()])
        until(lambda: held(bench.engine))
        bench.sql(
            "UPDATE task_pending SET attempt = attempt + 1, lease_token = NULL,"
            " state = 'PENDING', lease_until = NULL, owner = NULL, started_at = NULL"
        )

        locks.hold(bench.engine, exclusive="a").take()

    def test_a_session_of_a_handler_is_no_place_for_hold(self, bench: Bench) -> None:
        @bench.handler(max_attempts=1)
        def t(ctx: Any) -> None:
            locks.hold(ctx.session, exclusive="a")

        task_id = bench.execute_one()
        assert "use ctx.locks" in bench.error(task_id)
