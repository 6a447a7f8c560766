"""Commits that share a round trip harm no others; nothing begins when its lease may be over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from tasks_app import Notice
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.runtime.api.tasks import cancel_task
from tasks_app.runtime.execution import settler
from tasks_app.runtime.execution.runner import Runner
from tasks_app.runtime.handler_db.ends import in_time
from tasks_app.runtime.handler_db.statements import PROVEN
from tasks_app.runtime.hooks import HOOKS, NoticeKind
from tasks_app.runtime.leader.rescuer import Rescuer
from tasks_app.runtime.worker.child import Child
from tests.clock import until
from tests.factory import claimed_task, ending
from tests.runtime.bench import Bench, carry_out, known_as_writes, warm

INSERT = "INSERT INTO effect (task_id, note) VALUES (%s, %s)"
RETAKEN = "UPDATE task_pending SET lease_token = gen_random_uuid() WHERE id = :id"


@pytest.fixture(autouse=True)
def known() -> None:
    known_as_writes(INSERT)


def writes_one(bench: Bench, name: str = "t", **options: Any) -> None:
    bench.handler(name, **options)(lambda ctx: ctx.write(INSERT, (ctx.task_id, "")))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of late successes, in the order in which they are counted."""
    ids: list[int] = []
    known = settler.count_settled

    def count(settlements: Any, states: Any) -> None:
        ids.extend(s.fence.task_id for s in settlements if s.writes and s.fence.task_id in states)
        known(settlements, states)

    monkeypatch.setattr(settler, "count_settled", count)
    return ids


@pytest.fixture
def refusing_failures(bench: Bench) -> Iterator[None]:
    """While the fixture lasts, the database takes no failure, as if a right were missing."""
    bench.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE 'not now' USING ERRCODE = '42501'; END $$;"
        " CREATE TRIGGER refuse BEFORE INSERT ON task_error FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    yield
    bench.sql("DROP FUNCTION IF EXISTS refuse() CASCADE")


@pytest.mark.test_all
@pytest.mark.usefixtures("refusing_failures")
def test_an_outcome_that_is_refused_holds_up_none(bench: Bench, counted: list[int]) -> None:
    writes_one(bench)

    @bench.handler("fails", max_attempts=1)
    def fails(_ctx: Any) -> None:
        raise ValueError

    @bench.handler("waits")
    def waits(ctx: Any) -> None:
        ctx.connection.execute(text("SELECT 1"))

    bad = bench.create("fails")
    good = [bench.create("t"), bench.create("waits"), bench.create("waits"), bench.create("t")]
    child = warm(warm(bench.child(give_back_after=60)), "waits")
    threading.Thread(target=child.execute, args=([bad, *good],)).start()

    until(lambda: set(counted) >= {good[0], good[3]})
    assert bench.states(good) == ["SUCCEEDED"] * 4
    assert bench.state(bad) == "RUNNING"
    bench.sql("DROP FUNCTION refuse() CASCADE")
    until(lambda: bench.state(bad) == "FAILED")
    until(lambda: not child.in_hand)


class TestTheDeadline:
    @pytest.mark.test_all
    def test_what_takes_long_is_sent_again_alone(self, bench: Bench, counted: list[int]) -> None:
        """Its function switches the limit of a statement off, which no text shows."""
        bench.sql(
            "CREATE FUNCTION hurries_not() RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM set_config('statement_timeout', '0', true); END $$;"
            " INSERT INTO effect VALUES (0, 'held')"
        )
        waits = "UPDATE effect SET note = note || '!' WHERE task_id = 0"
        known_as_writes("SELECT hurries_not()", waits)
        writes_one(bench)

        @bench.handler("slow")
        def slow(ctx: Any) -> None:
            ctx.write("SELECT hurries_not()")
            ctx.write(waits)

        ids = [bench.create("t"), bench.create("slow"), bench.create("t")]
        child = warm(bench.child(give_back_after=60, lease="3s"))  # a sixth of it a round trip
        with bench.engine.connect() as holder:
            holder.execute(text("UPDATE effect SET note = 'mine' WHERE task_id = 0"))
            threading.Thread(target=child.execute, args=(ids,)).start()
            until(lambda: set(counted) == {ids[0], ids[2]}, 20)
            assert bench.states(ids) == ["SUCCEEDED", "RUNNING", "SUCCEEDED"]
            holder.commit()
        until(lambda: not child.in_hand)

        assert bench.states(ids) == ["SUCCEEDED"] * 3
        assert bench.sql("SELECT note FROM effect WHERE task_id = 0") == "mine!"
        bench.sql("DROP FUNCTION hurries_not()")

    def test_too_many_writes_are_sent_by_their_run(self, bench: Bench, counted: list[int]) -> None:
        @bench.handler()
        def h(ctx: Any) -> None:
            for n in range(settler.MOST_WRITES + 1):
                ctx.write(INSERT, (ctx.task_id, str(n)))

        task_id = bench.create()
        carry_out(bench, [task_id])
        assert counted == []
        assert bench.effects(task_id) == settler.MOST_WRITES + 1

    @pytest.mark.test_all
    def test_steps_that_are_late_end_their_connection(self, database_url: str) -> None:
        url = make_url(database_url).set(drivername="postgresql")
        connection = psycopg.connect(url.render_as_string(hide_password=False))
        cursor = psycopg.ClientCursor(connection)
        steps = cursor._execute_gen("SELECT pg_sleep(60)")  # as psycopg itself waits
        began = time.monotonic()
        with pytest.raises(psycopg.OperationalError, match="did not answer within"):
            connection.wait(in_time(steps, 0.2))
        assert time.monotonic() - began < 30
        connection.close()

    def test_steps_in_time_return_what_they_return(self) -> None:
        def steps() -> Any:
            ready = yield "wanted"
            return ready

        waited = in_time(steps(), 60.0)
        assert next(waited) == "wanted"
        with pytest.raises(StopIteration) as end:
            waited.send(1)
        assert end.value.value == 1


def test_a_commit_that_fails_loses_no_success_behind_it(bench: Bench, counted: list[int]) -> None:
    """The transaction is over then, so those behind it in the round trip commit."""
    bench.sql(
        "CREATE OR REPLACE FUNCTION hides() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE"
        " 'DECLARE c CURSOR WITH HOLD FOR SELECT 1 / (relpages - relpages) FROM pg_class'; END $$"
    )

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        ctx.write(INSERT, (ctx.task_id, ""))
        if ctx.biz_key:
            ctx.write("SELECT hides()")

    known_as_writes("SELECT hides()")
    ids = [bench.create(biz_key="bad" if n == 2 else None) for n in range(6)]

    carry_out(bench, ids, give_back_after=60)

    good = [*ids[:2], *ids[3:]]
    assert bench.states(good) == ["SUCCEEDED"] * 5
    assert sorted(counted) == good
    assert (bench.state(ids[2]), bench.effects(ids[2])) == ("FAILED", 0)
    bench.sql("DROP FUNCTION hides()")


class TestACommitWithoutAnAnswer:
    def run(self, bench: Bench, lose: str) -> int:
        """Let one task write whose COMMIT is lost, or the answer to it; return its id."""
        with bench.proxy(only=b"INTO effect") as (proxy, url):

            @bench.handler()
            def h(ctx: Any) -> None:
                getattr(proxy, lose)(b"tasks_app COMMIT")
                ctx.write(INSERT, (ctx.task_id, ""))

            task_id = bench.create()
            child = bench.child(url=url)
            child.execute([task_id])
            until(lambda: child.inflight.empty)
            child.stop()
            assert proxy.lost == 1
        return task_id

    def test_is_no_success_where_somebody_else_has_the_task(
        self, bench: Bench, counted: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It never reached the server, and its lease was over before it was sent again."""
        self.between(bench, monkeypatch, lambda task_id: bench.sql(RETAKEN, id=task_id))
        task_id = self.run(bench, "lose_request")
        assert (counted, bench.state(task_id), bench.effects(task_id)) == ([], "RUNNING", 0)

    def test_is_no_success_where_the_task_was_cancelled_meanwhile(
        self, bench: Bench, counted: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def cancel(task_id: int) -> None:
            with bench.engine.begin() as connection:  # in one: else the child may renew its lease
                cancel_task(connection, task_id)
                connection.exec_driver_sql(
                    "UPDATE task_pending SET lease_until = now() - interval '1 hour'"
                )
                rescue_expired(connection, lease=timedelta(seconds=30), max_crashes=5)

        self.between(bench, monkeypatch, cancel)
        task_id = self.run(bench, "lose_request")
        assert (counted, bench.state(task_id), bench.effects(task_id)) == ([], "CANCELLED", 0)

    @pytest.mark.parametrize("twice", ["twice", "fails"])
    def test_is_no_lost_lease_where_it_stands_and_is_sent_again_alone(
        self,
        bench: Bench,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        twice: str,
    ) -> None:
        """Its text is no longer known to be a write, so that it is refused before it is sent."""
        if twice == "fails":
            bench.sql("CREATE UNIQUE INDEX once ON effect (task_id)")
            bench.at_end(lambda: bench.sql("DROP INDEX once"))
        caplog.set_level("INFO", logger="tasks_app")
        self.between(bench, monkeypatch, lambda _: PROVEN.clear())
        task_id = self.run(bench, "lose_reply_to")
        assert (bench.state(task_id), bench.effects(task_id)) == ("SUCCEEDED", 1)
        assert "its commit stands, or its lease was lost" in caplog.text
        assert "the lease was lost, its" not in caplog.text

    def between(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, do: Callable[[int], object]
    ) -> None:
        """Do it after the loss, before the commit is sent again."""
        known = settler.Settler._unanswered

        def unanswered(late: Any, settlements: Any) -> None:
            known(late, settlements)
            do(settlements[0].fence.task_id)

        monkeypatch.setattr(settler.Settler, "_unanswered", unanswered)


def test_outcomes_are_not_asked_for_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits until all are written would look for them without a rest."""
    child = bench.child(start=False)
    for query in (INSERT, *("UPDATE effect SET note = %s WHERE task_id = %s",) * 2):
        task = bench.do(claimed_task)
        writes = ((query, (task.task_id, "")),)
        child.inflight.receive([task])
        child.inflight.start_next()
        child.inflight.collect(ending(task, Event.SUCCEED)._replace(writes=writes, task=task))

    def lost(*_: object) -> None:
        raise OperationalError("", None, psycopg.OperationalError("the server is gone"))

    monkeypatch.setattr(settler.Settler, "_commit_each", lost)

    assert not child.executor.settler.flush_quietly()


def test_an_outcome_sent_alone_may_go_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    writes_one(bench)
    child = bench.child(start=False)
    task = bench.do(claimed_task)
    outcome = ending(task, Event.SUCCEED)._replace(writes=((INSERT, (1, "")),), task=task)
    child.inflight.receive([task])
    child.inflight.start_next()
    child.inflight.collect(outcome)
    child.inflight.split_off(outcome)

    def breaks(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Runner, "attempt", breaks)
    with pytest.raises(MemoryError):
        child.executor.runner.write_all(child.executor.settler.flush_quietly)

    assert child.inflight.running() == []
    assert [item.fence for item in child.inflight.returning()] == [task.fence]


LEASE_S = 1.0


def claimed(bench: Bench, name: str, **options: Any) -> tuple[Child, int]:
    """Return a child that has claimed a task and not begun it, as if it was stopped there."""
    child = bench.child(lease=LEASE_S, **options)
    task_id = bench.create(name)
    assert child.executor.fetcher.claim([task_id])
    return child, task_id


def declare(bench: Bench, *, is_async: bool = False) -> None:
    """Declare ``t``, and ``once``, which may run once."""

    async def aside(ctx: Any) -> None:
        bench.runs.append(ctx.attempt)

    def plain(ctx: Any) -> None:
        bench.runs.append(ctx.attempt)

    for name in ("t", "once"):
        function = aside if is_async else plain
        bench.handler(name, at_most_once=name == "once")(function)


def run_what_waits(child: Child) -> None:
    child.executor.run_waiting()
    until(lambda: not child.executor.async_pool.busy)


ASYNC = pytest.mark.parametrize("is_async", [False, True])


@pytest.mark.test_all
@ASYNC
def test_what_was_declared_unknown_does_not_begin_afterwards(bench: Bench, is_async: bool) -> None:
    """Interleaving: claim; the process is stopped; rescue; the process goes on."""
    declare(bench, is_async=is_async)
    child, task_id = claimed(bench, "once", start=False)
    rescuer = Rescuer(bench.settings(lease=LEASE_S), child.database)
    until(rescuer.run_once)
    run_what_waits(child)
    assert bench.runs == []
    assert bench.error(task_id).startswith("outcome unknown: The worker vanished")


@pytest.mark.test_all
@ASYNC
@pytest.mark.parametrize("name", ["t", "once"])
def test_what_nobody_rescued_runs_again_uncharged(bench: Bench, name: str, is_async: bool) -> None:
    declare(bench, is_async=is_async)
    child, task_id = claimed(bench, name, start=False)
    over = time.monotonic() + LEASE_S
    until(lambda: time.monotonic() > over)

    run_what_waits(child)
    child.start()
    until(lambda: child.inflight.empty)
    task = bench.task(task_id)
    assert (task.state, task.failures, task.crashes, bench.runs) == ("PENDING", 0, 0, [])
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    bench.drain()

    assert (bench.state(task_id), bench.runs) == ("SUCCEEDED", [2])


@pytest.mark.test_all
def test_a_claim_counts_from_when_it_was_sent(bench: Bench) -> None:
    """Interleaving: claim; the process is stopped before it puts the task in flight."""
    declare(bench)
    child = bench.child(lease=LEASE_S, start=False)
    task_id = bench.create("once")
    rescuer = Rescuer(bench.settings(lease=LEASE_S), child.database)

    def stop(notice: Notice) -> None:
        if notice.kind is NoticeKind.RECEIVED:
            until(rescuer.run_once)

    HOOKS.subscribe(stop)
    bench.at_end(lambda: HOOKS.unsubscribe(stop))

    child.execute([task_id])

    assert bench.runs == []
    assert bench.error(task_id).startswith("outcome unknown: The worker vanished")


@pytest.mark.test_all
def test_who_renews_may_wait_for_longer_than_a_lease(bench: Bench) -> None:
    declare(bench)
    child, task_id = claimed(bench, "once")
    later = time.monotonic() + 2 * LEASE_S
    until(lambda: time.monotonic() > later)
    run_what_waits(child)
    assert (bench.state(task_id), bench.runs) == ("SUCCEEDED", [1])
