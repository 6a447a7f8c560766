"""What subscribers are told is what became of the task, and nothing of theirs reaches a task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tasks_app import Cancel, Fail, Notice, Retry, Skip, Snooze
from tasks_app.pool.runs.claim import claim
from tasks_app.runtime.hooks import HOOKS, Hooks, NoticeKind
from tasks_app.runtime.leader.rescuer import Rescuer
from tests.clock import until
from tests.factory import claimed_task, claimer, some
from tests.runtime.bench import Bench, effect
from tests.runtime.mortal import Mortal
from tests.tiers import few


@pytest.fixture
def told() -> Iterator[list[Notice]]:
    notices: list[Notice] = []
    HOOKS.subscribe(notices.append)
    yield notices
    HOOKS.unsubscribe(notices.append)


def kinds(told: list[Notice], task_id: int) -> list[str]:
    return [notice.kind.value for notice in told if notice.task_id == task_id]


def last(told: list[Notice], task_id: int) -> Notice:
    return [notice for notice in told if notice.task_id == task_id][-1]


ENDINGS = [
    (None, "succeeded"),
    (Fail("no"), "failed"),
    (Retry("again", after="1h"), "retried"),
    (Snooze("1h"), "snoozed"),
    (Cancel("no longer"), "cancelled"),
    (Skip("nothing to do"), "skipped"),
    (ValueError("broken"), "retried"),
]


def test_who_does_not_listen_now_is_not_told() -> None:
    hooks, notices, listens = Hooks(), [], [False, True]
    hooks.subscribe(notices.append, while_=lambda: listens[0])
    notice = Notice(NoticeKind.STARTED, 1, "t", "default")
    assert not hooks.wanted
    hooks.tell([notice])
    listens.pop(0)
    assert hooks.wanted
    hooks.tell([notice])
    assert notices == [notice]


@pytest.mark.parametrize("at_most_once", few(1, [False, True]))
@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize(("error", "kind"), ENDINGS)
def test_each_run_is_told_from_claim_to_outcome(
    bench: Bench,
    told: list[Notice],
    error: BaseException | None,
    kind: str,
    in_session: bool,
    at_most_once: bool,
) -> None:
    @bench.handler(at_most_once=at_most_once, on_error={ValueError: "retry"}, retry="fixed 1h")
    def h(ctx: Any) -> None:
        if in_session:
            effect(ctx)
        if error is not None:
            raise error

    task_id = bench.run_one(biz_key="order:1")

    assert kinds(told, task_id) == ["received", "started", kind]
    notice = last(told, task_id)
    assert (notice.name, notice.queue, notice.biz_key) == ("t", "default", "order:1")
    assert (notice.attempt, notice.failures) == (1, bench.task(task_id).failures)
    assert notice.wait == (timedelta(hours=1) if isinstance(error, Retry | Snooze) else notice.wait)
    assert notice.kind.is_final is (kind not in ("retried", "snoozed"))


def test_what_is_told_at_last_is_true_in_the_database_already(bench: Bench) -> None:
    seen: dict[str, str] = {}

    def look(notice: Notice) -> None:
        seen[notice.kind] = bench.state(notice.task_id)

    bench.succeeding()
    bench.create()
    HOOKS.subscribe(look)
    try:
        bench.drain()
    finally:
        HOOKS.unsubscribe(look)

    assert seen == {"received": "RUNNING", "started": "RUNNING", "succeeded": "SUCCEEDED"}


@pytest.mark.parametrize("in_session", [False, True])
def test_a_retry_that_was_cancelled_meanwhile_is_told_as_cancelled(
    bench: Bench, told: list[Notice], in_session: bool
) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        if in_session:
            effect(ctx)
        bench.sql("UPDATE task_pending SET cancel_requested_at = statement_timestamp()")
        raise ValueError

    task_id = bench.run_one()
    assert kinds(told, task_id) == ["received", "started", "cancelled"]
    assert bench.state(task_id) == "CANCELLED"


def test_an_outcome_is_told_as_it_could_be_stored(bench: Bench, told: list[Notice]) -> None:
    bench.handler()(lambda ctx: "x")
    task_id = bench.create()
    bench.sql("ALTER TABLE task_completed ADD CONSTRAINT refuse CHECK (result IS NULL) NOT VALID")
    bench.at_end(lambda: bench.sql("ALTER TABLE task_completed DROP CONSTRAINT refuse"))
    bench.drain()
    assert kinds(told, task_id) == ["received", "started", "failed"]
    assert bench.state(task_id) == "FAILED"


def test_unstarted_claims_are_told_when_they_are_back(bench: Bench, told: list[Notice]) -> None:
    go, begun = bench.event(), bench.event()

    @bench.handler()
    def h(ctx: Any) -> None:
        begun.set()
        go.wait(20)

    first, second = bench.create(), bench.create()
    child = bench.child(give_back_after=0.1)
    running = bench.beside(child.execute, [first, second])
    begun.wait(10)

    until(lambda: kinds(told, second) == ["received", "released"])
    assert bench.state(second) == "PENDING"
    go.set()
    running.join(10)
    assert kinds(told, first) == ["received", "started", "succeeded"]


@pytest.mark.test_all
def test_a_death_is_told_by_who_buries(bench: Bench, told: list[Notice]) -> None:
    bench.succeeding()
    guilty, innocent = ids = [bench.create(), bench.create()]
    tasks = bench.do(claim, ids, claimer(owner="dead"), uuid4())
    Mortal(bench.slots, "dead", [tasks[0].run]).kill()
    bench.child(start=False).reap()
    assert kinds(told, innocent) == ["released"]
    assert kinds(told, guilty) == ["retried"]
    cause = some(last(told, guilty).cause)
    assert cause.kind == "process died"


@pytest.mark.test_all
def test_claims_of_an_unclear_death_are_rescued(bench: Bench, told: list[Notice]) -> None:
    bench.succeeding()
    again, once = bench.create(), bench.create(max_attempts=1)
    with bench.engine.begin() as connection:
        claim(connection, [again], claimer(owner="dead"), uuid4())
        claim(connection, [once], claimer(owner="dead", at_most_once=True), uuid4())
    Mortal(bench.slots, "dead").kill()
    bench.child(start=False).reap()
    assert (kinds(told, again), kinds(told, once)) == (["rescued"], ["failed"])


def test_a_lapsed_lease_is_told_with_name_and_state(bench: Bench, told: list[Notice]) -> None:
    with bench.engine.begin() as connection:
        again, once = claimed_task(connection), claimed_task(connection, at_most_once=True)
    database = bench.child(start=False).database
    Rescuer(bench.settings(), database).run_once(now=datetime.now(UTC) + timedelta(hours=1))
    assert (kinds(told, again.task_id), kinds(told, once.task_id)) == (["rescued"], ["failed"])
    notice = last(told, once.task_id)
    assert (notice.name, notice.cause and notice.cause.kind) == ("t", "outcome unknown")


@pytest.mark.test_all
def test_rows_that_must_not_run_are_told_if_swept(bench: Bench, told: list[Notice]) -> None:
    bench.succeeding()
    off = bench.create(enabled=False)
    late = bench.run_one(expires_at=datetime.now(UTC) + timedelta(milliseconds=1))
    assert (kinds(told, off), kinds(told, late)) == (["skipped"], ["expired"])


@pytest.mark.test_all
def test_whatever_a_subscriber_does_the_task_succeeds_and_the_others_are_told(
    bench: Bench, told: list[Notice], caplog: pytest.LogCaptureFixture
) -> None:
    def hostile(notice: Notice) -> None:
        raise SystemExit("secret\nmore")

    bench.succeeding()
    ids = [bench.create() for _ in range(3)]
    HOOKS.unsubscribe(told.append)
    HOOKS.subscribe(hostile)
    HOOKS.subscribe(told.append)
    try:
        bench.drain()
    finally:
        HOOKS.unsubscribe(hostile)

    assert bench.states(ids) == ["SUCCEEDED"] * 3
    assert [kinds(told, i) for i in ids] == [["received", "started", "succeeded"]] * 3
    complaints = [r.getMessage() for r in caplog.records if "subscriber" in r.getMessage()]
    assert len(complaints) == 4  # of nine: the 1st, 2nd, 4th and 8th
    assert all("hostile" in line and "more" not in line for line in complaints)


def test_a_slow_subscriber_keeps_nobody_from_writing(bench: Bench) -> None:
    """It is told outside of the settler's turn: the housekeeper flushes for other threads."""
    stuck, go = bench.event(), bench.event()

    def slow(notice: Notice) -> None:
        if notice.kind == "succeeded" and not stuck.is_set():
            stuck.set()
            go.wait(20)

    bench.succeeding()
    child = bench.child()
    HOOKS.subscribe(slow)
    bench.at_end(lambda: HOOKS.unsubscribe(slow))
    first, second = bench.create(), bench.create()
    one = bench.beside(child.execute, [first])
    stuck.wait(10)

    other = bench.beside(child.execute, [second])
    other.join(10)

    assert not other.is_alive()
    assert bench.state(second) == "SUCCEEDED"
    go.set()
    one.join(10)


def test_nothing_is_looked_up_when_nobody_listens() -> None:
    def costly() -> Iterator[Notice]:
        raise AssertionError
        yield  # pragma: no cover

    Hooks().tell(costly())


def test_subscribing_twice_is_once_and_payloads_are_not_in_the_repr() -> None:
    hooks, notices = Hooks(), []
    hooks.subscribe(notices.append)
    hooks.subscribe(notices.append)
    hooks.tell([Notice(NoticeKind.STARTED, 1, "t", "default", payload='{"card": "canary"}')])
    assert len(notices) == 1
    assert "canary" not in repr(notices[0])
