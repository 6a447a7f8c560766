"""commit="batch": many runs in one transaction, or each in its own; never half of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import make_url

from tasks_app import create_task
from tasks_app.domain.handlers.outcomes import Skip
from tasks_app.pool.runs.rescue import rescue_expired
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.worker.child import Child
from tasks_app.runtime.worker.reaper import Reaper
from tests.factory import LEASE
from tests.runtime.bench import EFFECT, QUEUE, Bench, effect
from tests.runtime.mortal import forked
from tests.waiting import until
from torture.fault_proxy import FaultProxy

pytestmark = pytest.mark.timeout(60, method="thread")


@pytest.fixture(autouse=True)
def _slow_machine(bench: Bench) -> None:
    """What is fast on any machine is fast here, too, whatever else it does just now."""
    bench.tuning["run_times.fast_s"] = 10.0
    bench.tuning["batch_commit.hold_s"] = 10.0


def known(child: Child, name: str = "t") -> Child:
    """Let it know already that the handler is fast, and claim all at once."""
    for _ in range(30):
        child.run_times.learn(name, 0.0001)
        child.run_times.next_group(500)
    return child


def batch(bench: Bench, ids: list[int], **options: Any) -> None:
    """Carry out one message by a child that knows the handler."""
    child = known(bench.child(**options))
    child.execute(None, ids)
    until(lambda: child.inflight.empty)
    child.stop()


def inserts(ctx: Any, note: str = "") -> None:
    ctx.connection.execute(text(EFFECT), {"id": ctx.task_id, "note": note})


INSERT = b"INSERT INTO effect"
"""What handlers do, and no housekeeper, whose COMMIT might be lost in place of theirs."""


def commits(bench: Bench, ids: list[int]) -> int:
    """In how many transactions these tasks came to their pool."""
    return bench.sql(
        "SELECT count(DISTINCT xmin::text) FROM task_completed WHERE id = ANY(:ids)", ids=ids
    )


def exactly_once(bench: Bench, ids: list[int]) -> bool:
    return bench.states(ids) == ["SUCCEEDED"] * len(ids) and all(
        bench.effects(task_id) == 1 for task_id in ids
    )


def test_effects_outcomes_and_moves_of_all_are_one_transaction(bench: Bench) -> None:
    @bench.handler(commit="batch")
    def h(ctx: Any) -> int:
        inserts(ctx)
        return ctx.task_id

    ids = [bench.create() for _ in range(20)]

    batch(bench, ids)

    assert exactly_once(bench, ids)
    assert commits(bench, ids) == 1
    assert bench.sql("SELECT count(DISTINCT xmin::text) FROM effect") == 1
    assert bench.sql("SELECT max(xmin::text) FROM effect") == bench.sql(
        "SELECT max(xmin::text) FROM task_completed"
    )
    assert [bench.task(task_id).result for task_id in ids] == ids


def test_a_handler_is_run_alone_until_it_is_known_to_be_fast(bench: Bench) -> None:
    @bench.handler(commit="batch")
    def h(ctx: Any) -> None:
        inserts(ctx)

    ids = [bench.create() for _ in range(6)]

    bench.execute(ids)

    assert exactly_once(bench, ids)
    assert commits(bench, ids[:1]) == 1
    assert commits(bench, ids) == 2


@pytest.mark.test_all
def test_session_and_connection_may_be_mixed_and_left_out(bench: Bench) -> None:
    heard: list[int] = []

    @bench.handler(commit="batch")
    def h(ctx: Any, payload: dict) -> None:
        match payload["n"] % 4:
            case 0:
                inserts(ctx)
            case 1:
                effect(ctx)
                event.listen(ctx.session, "after_commit", lambda _: heard.append(ctx.task_id))
            case 2:
                effect(ctx)
                inserts(ctx)

    ids = [bench.create(payload={"n": n}) for n in range(12)]

    batch(bench, ids)

    assert bench.states(ids) == ["SUCCEEDED"] * 12
    assert [bench.effects(task_id) for task_id in ids] == [1, 1, 2, 0] * 3
    assert commits(bench, ids) == 1
    assert heard == ids[1::4]


def test_tasks_that_they_create_exist_once(bench: Bench) -> None:
    @bench.handler(commit="batch")
    def h(ctx: Any, payload: dict) -> None:
        create_task(ctx.session, "next", biz_key=str(ctx.task_id))
        if payload["bad"] and ctx.attempt == 1:
            raise ValueError

    ids = [bench.create(payload={"bad": n == 3}, retry="0s") for n in range(6)]

    batch(bench, ids)
    bench.execute(ids)

    made = "SELECT count(*) FROM task_pending WHERE name = 'next'"
    assert bench.sql(made) == 6
    assert bench.states(ids) == ["SUCCEEDED"] * 6


def value_error(ctx: Any) -> None:
    raise ValueError


def skip(ctx: Any) -> None:
    raise Skip("no need")


def leave(ctx: Any) -> None:
    raise SystemExit


def refused(ctx: Any) -> float:
    return float("nan")


def bad_sql(ctx: Any) -> None:
    ctx.connection.execute(text("SELECT 1 / 0"))


def hidden_bad_sql(ctx: Any) -> None:
    try:
        ctx.connection.execute(text("SELECT 1 / 0"))
    except Exception:
        return


def commit(ctx: Any) -> None:
    ctx.connection.commit()


ENDS = (value_error, skip, leave, refused, bad_sql, hidden_bad_sql, commit)


@pytest.mark.parametrize("ends", ENDS, ids=lambda ends: ends.__name__)
def test_one_that_does_not_succeed_costs_the_others_nothing_but_time(
    bench: Bench, ends: Callable[[Any], object]
) -> None:
    skips = ends is skip

    @bench.handler(commit="batch", max_attempts=1)
    def h(ctx: Any, payload: dict) -> Any:
        inserts(ctx)
        bench.runs.append(ctx.task_id)
        return ends(ctx) if payload["bad"] else None

    ids = [bench.create(payload={"bad": n == 5}) for n in range(8)]

    batch(bench, ids)

    others = [task_id for task_id in ids if task_id != ids[5]]
    assert bench.states(others) == ["SUCCEEDED"] * 7
    assert [bench.effects(task_id) for task_id in others] == [1] * 7
    assert bench.state(ids[5]) == ("SKIPPED" if skips else "FAILED")
    assert bench.effects(ids[5]) == 0
    assert bench.task(ids[5]).failures == (0 if skips else 1)
    assert Counter(bench.runs)[ids[0]] == 2  # rolled back, and run again


def test_after_trouble_batches_are_smaller_for_a_while(bench: Bench) -> None:
    @bench.handler(commit="batch", max_attempts=1)
    def h(ctx: Any, payload: dict) -> None:
        bench.runs.append(ctx.task_id)
        if payload["bad"]:
            raise ValueError

    ids = [bench.create(payload={"bad": n == 3}) for n in range(30)]

    batch(bench, ids)

    assert bench.states(ids).count("SUCCEEDED") == 29
    assert sorted(Counter(bench.runs).values(), reverse=True)[:5] == [2, 2, 2, 2, 1]
    assert commits(bench, ids[4:]) > 1


def test_a_timeout_of_one_rolls_all_back_and_is_charged_once(bench: Bench) -> None:
    @bench.handler(commit="batch", timeout="100ms", retry="1h")
    def h(ctx: Any, payload: dict) -> None:
        inserts(ctx)
        if payload["slow"]:
            until(lambda: False, 5)

    ids = [bench.create(payload={"slow": n == 2}) for n in range(5)]

    batch(bench, ids)

    assert exactly_once(bench, [ids[0], ids[1], ids[3], ids[4]])
    task = bench.task(ids[2])
    assert (task.state, task.failures, bench.effects(ids[2])) == ("PENDING", 1, 0)


@pytest.mark.parametrize(
    "statement", ["SET LOCAL lock_timeout = 7", "SET lock_timeout = 7", "ROLLBACK TO SAVEPOINT x"]
)
def test_what_one_sets_the_next_does_not_meet(bench: Bench, statement: str) -> None:
    @bench.handler(commit="batch")
    def h(ctx: Any, payload: dict) -> str:
        met = ctx.connection.execute(text("SHOW lock_timeout")).scalar_one()
        if payload["sets"] and "SAVEPOINT" in statement:
            ctx.session.execute(text("SELECT 1"))
            ctx.session.rollback()
        elif payload["sets"]:
            ctx.connection.execute(text(statement))
        inserts(ctx)
        return str(met)

    ids = [bench.create(payload={"sets": n == 1}) for n in range(4)]

    batch(bench, ids)

    assert [bench.task(task_id).result for task_id in ids] == ["0"] * 4
    assert exactly_once(bench, ids)


def test_a_batch_ends_after_a_moment_so_that_locks_are_short(bench: Bench) -> None:
    bench.tuning["batch_commit.hold_s"] = 0.0

    @bench.handler(commit="batch")
    def h(ctx: Any) -> None:
        inserts(ctx)

    ids = [bench.create() for _ in range(5)]

    batch(bench, ids)

    assert exactly_once(bench, ids)
    assert commits(bench, ids) == 5


def test_what_runs_alone_is_not_in_a_batch(bench: Bench) -> None:
    @bench.handler(commit="batch")
    def h(ctx: Any) -> None:
        inserts(ctx)

    ids = [bench.create() for _ in range(5)]
    bench.sql("UPDATE task_pending SET crashes = 1, attempt = 1 WHERE id = :id", id=ids[2])

    batch(bench, ids)

    assert exactly_once(bench, ids)
    assert commits(bench, ids) == 2


@pytest.mark.test_all
def test_threads_have_batches_of_their_own(bench: Bench) -> None:
    @bench.handler(commit="batch")
    def h(ctx: Any) -> None:
        inserts(ctx)

    ids = [bench.create() for _ in range(60)]

    batch(bench, ids, extra_threads=2)

    assert exactly_once(bench, ids)


class TestSomebodyElse:
    @pytest.mark.test_all
    def test_holds_the_row_of_one(self, bench: Bench) -> None:
        """A user's open transaction that cancels one member: nobody else waits for it."""
        aboard, go_on = threading.Event(), bench.event()

        @bench.handler(commit="batch")
        def h(ctx: Any) -> None:
            inserts(ctx)
            if ctx.task_id == ids[-1]:
                aboard.set()
                go_on.wait(20)

        ids = [bench.create() for _ in range(6)]
        child = known(bench.child())
        thread = bench.beside(child.execute, None, ids)
        assert aboard.wait(10)
        with bench.engine.begin() as user:
            user.execute(
                text("UPDATE task_pending SET cancel_requested_at = now() WHERE id = :id"),
                {"id": ids[3]},
            )
            go_on.set()
            until(lambda: exactly_once(bench, ids[:3]))
            assert bench.state(ids[3]) == "RUNNING"
        thread.join(10)
        child.stop()

        assert exactly_once(bench, ids)

    def test_holds_the_row_of_one_for_a_moment(self, bench: Bench) -> None:
        """Our own housekeeper does when it renews: not worth to run all again."""
        user = bench.engine.connect()
        bench.at_end(user.close)

        def let_go(_: float) -> None:
            bench.runs.append("waited")
            user.rollback()
            # The housekeeper may be at it, too.
            bench.sql("SELECT id FROM task_pending WHERE id = :id FOR UPDATE", id=ids[2])

        bench.tuning["batch_commit.pause"] = let_go

        @bench.handler(commit="batch")
        def h(ctx: Any) -> None:
            inserts(ctx)
            if ctx.task_id == ids[-1]:
                user.execute(
                    text("SELECT FROM task_pending WHERE id = :id FOR UPDATE"), {"id": ids[2]}
                )

        ids = [bench.create() for _ in range(5)]

        batch(bench, ids)

        assert exactly_once(bench, ids)
        assert commits(bench, ids) == 1
        assert bench.runs == ["waited"]

    @pytest.mark.test_all
    def test_took_the_lease_of_one(self, bench: Bench) -> None:
        aboard, go_on = threading.Event(), bench.event()

        @bench.handler(commit="batch")
        def h(ctx: Any) -> None:
            inserts(ctx, f"attempt {ctx.attempt}")
            if ctx.task_id == ids[-1] and not go_on.is_set():
                aboard.set()
                go_on.wait(20)

        ids = [bench.create() for _ in range(6)]
        child = known(bench.child(start=False))
        thread = bench.beside(child.execute, None, ids)
        assert aboard.wait(10)
        bench.sql(
            "UPDATE task_pending SET lease_until = now() - interval '1 s' WHERE id = :id",
            id=ids[3],
        )
        with bench.engine.begin() as connection:
            rescued = rescue_expired(connection, lease=LEASE, max_crashes=5)
        go_on.set()
        thread.join(10)
        before = (bench.state(ids[3]), bench.effects(ids[3]))
        bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
        bench.execute(ids)

        assert set(rescued) == {ids[3]}
        assert before == ("PENDING", 0)
        assert exactly_once(bench, ids)
        assert bench.sql("SELECT note FROM effect WHERE task_id = :id", id=ids[3]) == "attempt 2"


class TestTheDatabase:
    @pytest.mark.test_all
    @pytest.mark.parametrize("lose", ["lose_request", "lose_reply_to"])
    def test_a_commit_that_was_not_answered_is_never_settled_again(
        self, bench: Bench, lose: str
    ) -> None:
        """Lost on its way there: all run again. On its way back: it took place."""

        @bench.handler(commit="batch")
        def h(ctx: Any) -> None:
            inserts(ctx)
            if ctx.task_id == ids[-1] and ctx.attempt == 1:
                getattr(proxy, lose)(b"COMMIT\x00")

        ids = [bench.create() for _ in range(5)]
        url = make_url(bench.url)
        with FaultProxy((url.host or "", url.port or 0), only=INSERT) as proxy:
            batch(bench, ids, url=url.set(port=proxy.port).render_as_string(hide_password=False))
            assert proxy.lost == 1
        took_place = lose == "lose_reply_to"
        assert exactly_once(bench, ids) is took_place
        assert took_place or bench.states(ids) == ["PENDING"] * 5
        assert [bench.task(task_id).failures for task_id in ids] == [0] * 5
        bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
        bench.drain()

        assert exactly_once(bench, ids)

    def test_one_that_kills_its_backend_is_the_only_suspect(self, bench: Bench) -> None:
        @bench.handler(commit="batch")
        def h(ctx: Any, payload: dict) -> None:
            inserts(ctx)
            if payload["kills"]:
                ctx.connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

        ids = [bench.create(payload={"kills": n == 2}) for n in range(5)]

        batch(bench, ids)

        assert exactly_once(bench, [i for i in ids if i != ids[2]])
        assert [bench.task(task_id).crashes for task_id in ids] == [0, 0, 1, 0, 0]


class TestItsProcess:
    def work(self, bench: Bench, ids: list[int]) -> Callable[[], None]:
        def work() -> None:
            child = known(Child(bench.settings(), bench.registry, bench.slots, queues=(QUEUE,)))
            child.start()
            child.execute(None, ids)

        return work

    @pytest.mark.test_all
    def test_killed_in_the_middle_only_the_one_that_ran_is_charged(self, bench: Bench) -> None:
        @bench.handler(commit="batch", retry="0s,0s,0s")
        def h(ctx: Any, payload: dict) -> None:
            inserts(ctx)
            if payload["poison"] and ctx.attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        ids = [bench.create(payload={"poison": n == 7}) for n in range(12)]

        with forked(self.work(bench, ids)):
            until(lambda: any(view.dead for view in bench.slots.occupied()))
        assert bench.sql("SELECT count(*) FROM effect") == 0
        database = Database(bench.url)
        bench.at_end(database.dispose)
        until(lambda: Reaper(database, bench.slots, bench.registry, bench.settings()).look() == 0)

        assert [bench.task(task_id).failures for task_id in ids] == [0] * 7 + [1] + [0] * 4
        assert [bench.task(task_id).crashes for task_id in ids] == [0] * 12
        bench.execute(ids)
        assert exactly_once(bench, ids)

    @pytest.mark.test_all
    @pytest.mark.parametrize("round_", range(5))
    def test_killed_at_any_moment_effects_and_outcomes_agree(
        self, bench: Bench, round_: int
    ) -> None:
        @bench.handler(commit="batch", retry="0s,0s,0s")
        def h(ctx: Any) -> None:
            inserts(ctx)

        ids = [bench.create() for _ in range(400)]
        with forked(self.work(bench, ids)) as process:
            until(lambda: bool(bench.slots.occupied()))
            time.sleep(0.05 + 0.04 * round_)  # any moment will do
            process.kill()
        done = bench.sql("SELECT array_agg(id ORDER BY id) FROM task_completed") or []
        effects = bench.sql("SELECT array_agg(task_id ORDER BY task_id) FROM effect") or []

        assert done == effects

    def test_when_the_worker_drains_the_batch_ends_and_nothing_more_starts(
        self, bench: Bench
    ) -> None:
        aboard, go_on = threading.Event(), bench.event()

        @bench.handler(commit="batch")
        def h(ctx: Any) -> None:
            inserts(ctx)
            bench.runs.append(ctx.task_id)
            if len(bench.runs) == 3:
                aboard.set()
                go_on.wait(20)

        ids = [bench.create() for _ in range(6)]
        child = known(bench.child())
        thread = bench.beside(child.execute, None, ids)
        assert aboard.wait(10)
        bench.slots.drain()
        until(child.inflight.stopping.is_set)
        go_on.set()
        thread.join(10)
        child.stop()

        assert exactly_once(bench, ids[:3])
        assert bench.states(ids[3:]) == ["PENDING"] * 3

    def test_one_that_fails_while_the_worker_drains_is_not_run_again_here(
        self, bench: Bench
    ) -> None:
        aboard, go_on = threading.Event(), bench.event()

        @bench.handler(commit="batch")
        def h(ctx: Any) -> None:
            inserts(ctx)
            bench.runs.append(ctx.task_id)
            if len(bench.runs) == 3:
                aboard.set()
                go_on.wait(20)
                raise ValueError

        ids = [bench.create() for _ in range(6)]
        child = known(bench.child())
        thread = bench.beside(child.execute, None, ids)
        assert aboard.wait(10)
        bench.slots.drain()
        until(child.inflight.stopping.is_set)
        go_on.set()
        thread.join(10)
        child.stop()

        assert bench.states(ids) == ["PENDING"] * 6
        assert [bench.task(task_id).failures for task_id in ids] == [0] * 6
        assert bench.sql("SELECT count(*) FROM effect") == 0
        assert len(bench.runs) == 3
