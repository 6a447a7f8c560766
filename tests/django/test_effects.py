"""What a handler writes through the ORM commits with its outcome, or not at all (P4, P6)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import cancel_task
from tests.clock import until
from tests.runtime.bench import Bench
from tests.runtime.ends.points import INSERT as EFFECT
from tests.runtime.ends.points import POINTS, Actor, Setting, Trial, cases, triggers
from tests.tiers import few

if pytest.importorskip("django"):
    from django.db import IntegrityError, connection, connections, transaction


INSERT = "INSERT INTO shop_order (task_id, note) VALUES (%s, '')"


def orders() -> Any:
    from tests.django.shop.models import Order

    return Order.objects


def number_of(task_id: int) -> int:
    """Return how many are committed."""
    return len(list(orders().using("other").filter(task_id=task_id)))


def outcome(site: Bench, task_id: int) -> tuple[int, str]:
    return number_of(task_id), site.state(task_id)


def fails_alone(site: Bench) -> int:
    """Run a task that fails and leaves nothing, and behind it one that succeeds."""
    site.handler("next")(lambda ctx: orders().create(task_id=ctx.task_id) and None)
    task_id, following = site.create(max_attempts=1), site.create("next")
    site.drain()
    assert outcome(site, task_id) == (0, "FAILED")
    assert outcome(site, following) == (1, "SUCCEEDED")
    return int(task_id)


class DjangoActor(Actor):
    """Writes by ctx.write, a cursor or the ORM of Django."""

    def write(self, ctx: Any, way: str, note: str) -> None:
        if way == "orm":
            from tests.django.shop.models import Effect

            Effect.objects.create(task_id=ctx.task_id, note=note)
        elif way == "cursor":
            with connection.cursor() as cursor:
                cursor.execute(EFFECT, (ctx.task_id, note))
        else:
            super().write(ctx, way, note)

    def say(self, ctx: Any, way: str, query: str) -> None:
        if way == "write":
            ctx.write(query)
        else:
            with connection.cursor() as cursor:
                cursor.execute(query)


@pytest.mark.parametrize("circumstance", few(1, ["group", "slow", "none", "failures", "once"]))
def test_the_contract_of_ends_is_kept(
    site: Bench, circumstance: str, caplog: pytest.LogCaptureFixture
) -> None:
    trial = Trial(site, Setting("django", circumstance), DjangoActor)
    at = [name for name in POINTS if name != "commit()"]
    trial.create(cases(["none", "write", "used", "cursor", "orm"], at))
    with triggers(site):
        assert trial.faults(caplog) == []


def test_a_nested_atomic_may_fail_alone(site: Bench) -> None:
    @site.handler()
    def h(ctx: Any) -> None:
        orders().create(pk=ctx.task_id, task_id=ctx.task_id)
        with suppress(IntegrityError), transaction.atomic():
            orders().create(pk=ctx.task_id, task_id=ctx.task_id)

    task_id = site.run_one()
    assert outcome(site, task_id) == (1, "SUCCEEDED")


def swallows(ctx: Any) -> None:
    with suppress(IntegrityError):
        orders().create(pk=orders().get(task_id=ctx.task_id).pk, task_id=ctx.task_id)


def leaves_a_broken_block(ctx: Any) -> None:
    with suppress(KeyError), transaction.atomic(savepoint=False):
        raise KeyError


def sets_rollback(ctx: Any) -> None:
    transaction.set_rollback(True)


def breaks_a_foreign_key(ctx: Any) -> None:
    from tests.django.shop.models import Line

    Line.objects.create(order_id=-1)


def commits(ctx: Any) -> None:
    transaction.commit()


def says_commit(ctx: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")


def closes(ctx: Any) -> None:
    connection.close()


def is_durable(ctx: Any) -> None:
    with transaction.atomic(durable=True):
        pass


def leaves_a_block_open(ctx: Any) -> None:
    transaction.atomic().__enter__()


def leaves_a_statement_at_work(ctx: Any) -> None:
    connection.connection.pgconn.send_query(b"SELECT 1")


def writes_through_both(ctx: Any) -> None:
    ctx.connection.execute(text("INSERT INTO effect (task_id) VALUES (:id)"), {"id": ctx.task_id})


def reads_through_the_other(ctx: Any) -> None:
    assert ctx.session.scalar(text("SELECT 1")) == 1


def swallows_a_refused_write(ctx: Any) -> None:
    ctx.write("SET ROLE pg_monitor")
    with suppress(RuntimeError):
        ctx.commit()


def swallows_the_end_of_its_transaction(ctx: Any) -> None:
    ctx.write(f"/*{20_000 * chr(45)}*/ ROLLBACK AND CHAIN")
    ctx.write("INSERT INTO effect (task_id) VALUES (%s)", (ctx.task_id,))
    with suppress(Exception):
        ctx.commit()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (swallows_a_refused_write, "one statement that writes"),
        (swallows_the_end_of_its_transaction, "ended the transaction"),
        (swallows, "swallowed a database error"),
        (leaves_a_broken_block, "swallowed a database error"),
        (sets_rollback, "set_rollback"),
        (breaks_a_foreign_key, "violates foreign key"),
        (commits, "forbidden when an 'atomic' block"),
        (says_commit, "commits together with the task"),
        (closes, "closed"),
        (is_durable, "durable"),
        (leaves_a_block_open, "left an atomic() block open"),
        (leaves_a_statement_at_work, "at work on its connection"),
        (writes_through_both, "two transactions"),
        (reads_through_the_other, "used Django's connection and ctx.session"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_commit_with_the_outcome_fails(site: Bench, function: Any, reason: str) -> None:
    @site.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        orders().create(task_id=ctx.task_id)
        function(ctx)

    task_id = fails_alone(site)
    assert site.effects(task_id) == 0
    assert reason in (site.task(task_id).error or "")


def test_errors_have_djangos_names(site: Bench) -> None:
    site.handler(max_attempts=1)(breaks_a_foreign_key)
    task_id = site.run_one(max_attempts=1)
    assert (site.task(task_id).error or "").startswith("django.db.utils.IntegrityError")


def test_callbacks_are_called_after_the_commit(site: Bench) -> None:
    @site.handler()
    def h(ctx: Any) -> None:
        def note() -> None:
            within = connection.in_atomic_block
            site.runs.append((site.state(ctx.task_id), number_of(ctx.task_id), within))

        def fail() -> None:
            raise KeyError

        orders().create(task_id=ctx.task_id)
        transaction.on_commit(fail)
        transaction.on_commit(note)

    task_id = site.run_one()

    assert site.runs == [("SUCCEEDED", 1, False)]
    assert site.state(task_id) == "SUCCEEDED"


def test_callbacks_of_a_run_that_fails_are_not_called(site: Bench) -> None:
    @site.handler()
    def h(ctx: Any) -> None:
        transaction.on_commit(lambda: site.runs.append("called"))
        raise KeyError

    site.run_one(max_attempts=1)
    assert site.runs == []


def test_a_callback_alone_commits(site: Bench) -> None:
    @site.handler()
    def h(ctx: Any) -> None:
        transaction.on_commit(lambda: site.runs.append(site.state(ctx.task_id)))

    site.run_one()
    assert site.runs == ["SUCCEEDED"]


def test_a_connection_that_died_between_runs_is_not_noticed(site: Bench) -> None:
    @site.handler()
    def h(ctx: Any) -> None:
        orders().create(task_id=ctx.task_id)
        pid = connection.connection.info.backend_pid
        transaction.on_commit(lambda: site.sql("SELECT pg_terminate_backend(:pid)", pid=pid))

    ids = [site.create() for _ in range(3)]
    site.drain()
    assert [outcome(site, i) for i in ids] == [(1, "SUCCEEDED")] * 3
    assert [site.task(i).attempt for i in ids] == [1, 1, 1]


def test_a_time_limit_within_a_nested_block_leaves_no_trace(site: Bench) -> None:
    @site.handler(max_attempts=1, timeout=0.3)
    def slow(ctx: Any) -> None:
        orders().create(task_id=ctx.task_id)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")

    fails_alone(site)


@pytest.mark.parametrize("thread", ["main", "another"])
def test_a_cancel_ends_a_statement_on_its_connection(site: Bench, thread: str) -> None:
    @site.handler()
    def slow(ctx: Any) -> None:
        orders().create(task_id=ctx.task_id)
        site.do(cancel_task, ctx.task_id)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(23)")

    task_id = site.create()
    if thread == "main":
        site.drain()
    else:
        child = site.child()
        site.beside(child.execute, [task_id]).join(15)
    until(lambda: site.state(task_id) == "CANCELLED", 5)
    assert site.error(task_id).startswith("TaskCancelledError: ")
    assert number_of(task_id) == 0
    active = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE :like"
    until(lambda: site.sql(active, like="SELECT pg_sleep(23)%") == 0, 2, "the statement's end")


@pytest.mark.usefixtures("cold_connections")
@pytest.mark.parametrize(
    "statement",
    [
        *("SET statement_timeout = '7s'", "SET search_path = pg_catalog", "LISTEN something"),
        "SELECT set_config('statement_timeout', '7s', false)",
        *("CREATE TEMP TABLE mine (n int)", "SELECT pg_advisory_lock(4711)"),
    ],
)
def test_what_stays_in_the_session_does_not_reach_the_next_run(site: Bench, statement: str) -> None:
    @site.handler()
    def h(ctx: Any) -> None:
        site.runs.append(connection.connection.info.backend_pid)
        if len(site.runs) == 1:
            with connection.cursor() as cursor:
                cursor.execute(statement)
        transaction.on_commit(lambda: None)

    ids = [site.create() for _ in range(3)]
    site.drain()
    first, second, third = site.runs
    assert first != second == third
    assert site.states(ids) == ["SUCCEEDED"] * 3


def test_ctx_session_still_works_where_django_is_not_used(site: Bench) -> None:
    @site.handler()
    def h(ctx: Any) -> None:
        ctx.session.execute(text("INSERT INTO effect (task_id) VALUES (:id)"), {"id": ctx.task_id})

    task_id = site.run_one()
    assert (site.effects(task_id), site.state(task_id)) == (1, "SUCCEEDED")


def test_ctx_commit_keeps_what_was_done_so_far(site: Bench) -> None:
    @site.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        orders().create(task_id=ctx.task_id, note="before")
        transaction.on_commit(lambda: site.runs.append("kept"))
        ctx.commit({"done": 1})
        site.runs.append((connection.in_atomic_block, ctx.checkpoint))
        orders().create(task_id=ctx.task_id, note="behind")
        raise KeyError

    task_id = site.run_one(max_attempts=1)
    assert [o.note for o in orders().filter(task_id=task_id)] == ["before"]
    assert site.runs == ["kept", (True, {"done": 1})]
    assert site.state(task_id) == "FAILED"


def test_a_step_keeps_what_was_done_by_django(site: Bench) -> None:
    @site.handler(retry="0s,0s")
    def h(ctx: Any) -> None:
        def order(note: str) -> str:
            orders().create(task_id=ctx.task_id, note=note)
            return note

        site.runs.append(ctx.step("a", order, "a"))
        site.runs.append(ctx.step("b", order, "b"))
        if ctx.attempt == 1:
            orders().create(task_id=ctx.task_id, note="lost")
            raise KeyError
        site.runs.append(ctx.step("c", order, "c"))

    task_id = site.run_one()

    assert site.runs == ["a", "b", "a", "b", "c"]
    assert [o.note for o in orders().filter(task_id=task_id).order_by("note")] == ["a", "b", "c"]
    assert site.state(task_id) == "SUCCEEDED"


@pytest.mark.parametrize("first", ["checkpoint", "orm", "need"])
def test_the_next_attempt_reads_what_is_ours_and_writes_by_django(site: Bench, first: str) -> None:
    @site.handler(retry="0s,0s", max_attempts=2)
    def h(ctx: Any) -> None:
        if first == "orm":
            orders().create(task_id=ctx.task_id, note="before")
        site.runs.append(ctx.needs() if first == "need" else ctx.checkpoint)
        orders().create(task_id=ctx.task_id, note="behind")
        ctx.commit({"done": ctx.attempt})
        if ctx.attempt == 1:
            raise KeyError

    task_id = site.run_one()

    assert site.runs == ([{}, {}] if first == "need" else [None, {"done": 1}])
    assert outcome(site, task_id) == (4 if first == "orm" else 2, "SUCCEEDED")


def test_who_swallows_a_failed_ctx_commit_writes_no_more(site: Bench) -> None:
    @site.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        from tests.django.shop.models import Line

        Line.objects.create(order_id=-1)
        transaction.on_commit(lambda: site.runs.append("called"))
        with suppress(IntegrityError):
            ctx.commit()
        site.runs.append(connection.in_atomic_block)
        with suppress(transaction.TransactionManagementError):
            orders().create(task_id=ctx.task_id)

    task_id = site.run_one(max_attempts=1)

    assert outcome(site, task_id) == (0, "FAILED")
    assert "swallowed a database error" in (site.task(task_id).error or "")
    assert site.runs == [True]


def test_a_task_of_the_handler_exists_if_the_outcome_commits(site: Bench) -> None:
    from tasks_app.django import create_task

    @site.handler()
    def h(ctx: Any) -> None:
        create_task("next", {"of": ctx.task_id})
        if ctx.attempt == 1:
            raise KeyError

    site.create(retry="0s")
    site.drain()
    assert site.sql("SELECT count(*) FROM task_pending WHERE name = 'next'") == 1


def test_a_non_atomic_handler_may_be_durable(site: Bench) -> None:
    from tasks_app.django import non_atomic

    @site.handler(max_attempts=1)
    @non_atomic
    def h(ctx: Any) -> None:
        with transaction.atomic(durable=True):
            orders().create(task_id=ctx.task_id)
        raise KeyError

    task_id = site.run_one(max_attempts=1)
    assert outcome(site, task_id) == (1, "FAILED")


def test_another_database_commits_alone(site: Bench) -> None:
    @site.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        orders().using("other").create(task_id=ctx.task_id)
        transaction.atomic(using="other").__enter__()
        raise KeyError

    task_id = site.run_one(max_attempts=1)
    assert outcome(site, task_id) == (1, "FAILED")
    assert not connections["other"].in_atomic_block


def test_a_dead_connection_to_another_database_is_closed(site: Bench) -> None:
    @site.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        with connections["other"].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    site.create(max_attempts=1)
    connections["other"].ensure_connection()
    site.drain()
    assert connections["other"].connection is None


def test_what_a_late_write_sets_ends_with_its_run(site: Bench) -> None:
    @site.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        orders().create(task_id=ctx.task_id)
        ctx.write(INSERT, (ctx.task_id,))
        ctx.write("SELECT set_config('search_path', 'nowhere', false)")

    ids = [site.create(max_attempts=1) for _ in range(2)]
    site.drain()
    assert [outcome(site, task_id) for task_id in ids] == [(2, "SUCCEEDED")] * 2


def test_a_bulk_handler_commits_on_djangos_connection(site: Bench) -> None:
    """One poisoned item is undone alone, and the effects of the others stand."""
    calls: list[int] = []

    @site.handler(at_once=10, max_attempts=1)
    def h(ctx: Any, items: Any) -> None:
        calls.append(len(items))
        for item in items:
            orders().create(task_id=item.task_id)
            if item.payload["n"] == 3:
                raise ValueError("three")

    ids = [site.create(payload={"n": n}) for n in range(6)]
    site.drain()
    found = [outcome(site, task_id) for task_id in ids]
    assert found == [*[(1, "SUCCEEDED")] * 3, (0, "FAILED"), *[(1, "SUCCEEDED")] * 2]
    assert calls[0] == 6
