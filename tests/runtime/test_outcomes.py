"""Every way in which a run can end, hostile ones too, and what becomes of the task."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field, model_validator
from sqlalchemy import event, text

from tasks_app import Cancel, Fail, Retry, Skip, Snooze
from tests.runtime.bench import EFFECT, NOW_DUE, Bench, due_in_s


class OneWay(BaseModel):
    note: str = Field("", serialization_alias="orderNote")


def test_what_a_handler_returns_is_the_result(bench: Bench) -> None:
    bench.handler()(lambda ctx, payload: {"double": payload["n"] * 2})
    task_id = bench.run_one(payload={"n": 21})
    task = bench.task(task_id)
    assert (task.pool, task.state, task.result) == ("completed", "SUCCEEDED", {"double": 42})
    assert (task.attempt, task.failures) == (1, 0)
    assert bench.attempts(task_id) == []


def test_retry_waits_as_it_says_and_charges_one_failure(bench: Bench) -> None:
    bench.raising(Retry("later", after="10m"))
    task_id = bench.run_one()
    task = bench.task(task_id)
    assert (task.state, task.failures, task.attempt, task.retry_level) == ("PENDING", 1, 1, 1)
    assert 590 < due_in_s(bench, task_id) <= 600
    assert [(a.event, a.kind) for a in bench.attempts(task_id)] == [("retry", "Retry")]


def test_retry_without_a_wait_takes_the_next_level(bench: Bench) -> None:
    bench.raising(Retry(), retry="1m,1h")
    task_id = bench.run_one()
    bench.sql(NOW_DUE)
    bench.drain()
    assert bench.task(task_id).retry_level == 2
    assert 3590 < due_in_s(bench, task_id) <= 3600


def test_retry_may_bring_another_payload(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any, payload: dict) -> int:
        if payload["n"] < 3:
            ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": "rolls back"})
            raise Retry(after=0, payload={"n": payload["n"] + 1})
        return payload["n"]

    task_id = bench.run_one(payload={"n": 1})
    task = bench.task(task_id)
    assert (task.result, task.payload, task.failures) == (3, {"n": 3}, 2)
    assert bench.sql("SELECT count(*) FROM effect") == 0


def test_a_payload_to_retry_with_is_checked(bench: Bench) -> None:
    bench.raising(Retry(payload={"n": {1}}))
    task_id = bench.run_one(payload={"n": 1})
    task = bench.task(task_id)
    assert (task.state, task.payload) == ("FAILED", {"n": 1})
    assert "payload.n is of type set" in (task.error or "")


def test_a_payload_to_retry_with_must_be_read_back_as_it_is_given(bench: Bench) -> None:
    @bench.handler()
    def h(ctx: Any, payload: OneWay) -> None:
        raise Retry(after=0, payload=OneWay(note="fragile"))  # type: ignore[arg-type]

    task_id = bench.run_one()
    assert "payload.note is written in one way" in bench.error(task_id)


def test_retry_may_go_beyond_the_tasks_limit_for_once(bench: Bench) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        raise Retry(after=0, max_attempts=3 if ctx.failures < 1 else None)

    task_id = bench.run_one()
    assert (bench.task(task_id).state, bench.task(task_id).failures) == ("FAILED", 2)


def test_snooze_waits_and_charges_nothing(bench: Bench) -> None:
    bench.raising(Snooze("5m", "not open yet"))
    task_id = bench.run_one(max_attempts=1)
    task = bench.task(task_id)
    assert (task.state, task.failures, task.attempt) == ("PENDING", 0, 1)
    assert 290 < due_in_s(bench, task_id) <= 300


@pytest.mark.parametrize(
    ("error", "pool", "state"),
    [
        (Fail("no such order"), "error", "FAILED"),
        (Cancel("shop is closed"), "completed", "CANCELLED"),
        (Skip("nothing to do"), "completed", "SKIPPED"),
    ],
)
def test_fail_cancel_skip_end_a_task(bench: Bench, error: Exception, pool: str, state: str) -> None:
    bench.raising(error)
    task_id = bench.run_one()
    task = bench.task(task_id)
    assert (task.pool, task.state) == (pool, state)
    assert str(error) in (task.error or "")
    assert bench.runs == [task_id]


def test_an_exception_is_tried_again_until_the_attempts_are_used_up(bench: Bench) -> None:
    bench.raising(ValueError("no good"), retry="0s,0s")
    task_id = bench.run_one()
    task = bench.task(task_id)
    assert (task.state, task.failures, task.attempt) == ("FAILED", 3, 3)
    assert task.error == "ValueError: no good"
    assert [a.event for a in bench.attempts(task_id)] == ["retry", "retry", "fail"]
    frames = bench.attempts(task_id)[0].traceback or ""
    assert "raise error" in frames
    assert frames.count("  File ") == 1, "our own frames say nothing"


def test_a_task_can_succeed_at_its_last_attempt(bench: Bench) -> None:
    @bench.handler(retry="0s,0s")
    def h(ctx: Any) -> str:
        if ctx.failures < 2:
            raise ValueError(ctx.failures)
        return f"attempt {ctx.attempt}"

    task_id = bench.run_one()
    task = bench.task(task_id)
    assert (task.state, task.result, task.failures) == ("SUCCEEDED", "attempt 3", 2)


class TestOnError:
    RULES = {LookupError: "fail", KeyError: "retry", OSError: "retry_free"}  # noqa: RUF012

    def test_the_rule_of_the_class_decides(self, bench: Bench) -> None:
        bench.raising(IndexError("gone"), on_error=self.RULES)
        task_id = bench.run_one()
        assert bench.state(task_id) == "FAILED"
        assert len(bench.runs) == 1

    def test_the_nearest_class_wins_over_its_parent(self, bench: Bench) -> None:
        bench.raising(KeyError("gone"), on_error=self.RULES, retry="1h")
        task_id = bench.run_one()
        assert (bench.state(task_id), bench.task(task_id).failures) == ("PENDING", 1)

    def test_retry_free_waits_without_a_charge(self, bench: Bench) -> None:
        bench.raising(ConnectionRefusedError("away"), on_error=self.RULES, retry="1h")
        task_id = bench.run_one(max_attempts=1)
        assert (bench.state(task_id), bench.task(task_id).failures) == ("PENDING", 0)
        assert 3590 < due_in_s(bench, task_id) <= 3600

    def test_an_unlisted_class_is_retried(self, bench: Bench) -> None:
        bench.raising(ValueError(), on_error=self.RULES, retry="1h")
        task_id = bench.run_one()
        assert (bench.state(task_id), bench.task(task_id).failures) == ("PENDING", 1)


class TestTheTasksOwnOptionsWin:
    def test_max_attempts(self, bench: Bench) -> None:
        bench.raising(ValueError(), retry="0s,0s,0s", max_attempts=4)
        task_id = bench.run_one(max_attempts=2)
        assert (bench.state(task_id), len(bench.runs)) == ("FAILED", 2)

    def test_retry(self, bench: Bench) -> None:
        bench.raising(ValueError(), retry="1s")
        task_id = bench.run_one(retry="2h,3h")
        assert 7190 < due_in_s(bench, task_id) <= 7200

    @pytest.mark.timeout(method="thread")
    def test_timeout(self, bench: Bench) -> None:
        bench.handler(timeout="10m")(lambda ctx: ctx.remaining)
        task_id = bench.run_one(timeout="7m")
        assert 400 < bench.task(task_id).result <= 420

    def test_hard_timeout_in_the_slot(self, bench: Bench) -> None:
        @bench.handler(hard_timeout="10m")
        def h(ctx: Any) -> float:
            (view,) = bench.slots.occupied()
            return view.kill_at - view.since

        task_ids = [bench.create(hard_timeout="7m"), bench.create()]
        bench.drain()
        assert [round(bench.task(i).result) for i in task_ids] == [420, 600]


class Order(BaseModel):
    order_id: int
    lines: list[int] = []


class Watched(BaseModel):
    """A payload that tells when it is read."""

    look: ClassVar[Callable[[], None]] = lambda: None

    @model_validator(mode="before")
    @classmethod
    def read(cls, payload: Any) -> Any:
        cls.look()
        return payload


class TestPayload:
    def test_a_model_arrives_as_a_model(self, bench: Bench) -> None:
        @bench.handler()
        def h(ctx: Any, payload: Order) -> int:
            return payload.order_id

        task_id = bench.run_one(payload=Order(order_id=42))
        assert bench.task(task_id).result == 42

    def test_what_does_not_fit_the_model_fails_by_path_unretried(self, bench: Bench) -> None:
        @bench.handler()
        def h(ctx: Any, payload: Order) -> None:
            bench.runs.append(1)

        task_id = bench.run_one(payload={"order_id": 1, "lines": [1, "two"]})
        task = bench.task(task_id)
        assert (task.state, bench.runs) == ("FAILED", [])
        assert "payload.lines[1]" in (task.error or "")
        assert "two" not in (task.error or "")

    def test_the_slot_names_a_task_before_its_payload_is_read(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A payload that kills whoever reads it is charged to its own task."""
        seen = []

        def look() -> None:
            seen.append([run.task_id for v in bench.slots.occupied() for run in v.running])

        monkeypatch.setattr(Watched, "look", staticmethod(look))

        @bench.handler()
        def h(ctx: Any, payload: Watched) -> None:
            bench.runs.append(ctx.task_id)

        task_id = bench.run_one(payload={})

        assert bench.runs == [task_id]
        assert seen[0] == [task_id]

    def test_a_large_payload_is_fetched_on_its_own(self, bench: Bench) -> None:
        bench.handler()(lambda ctx, payload: len(payload["text"]))
        task_id = bench.sql(
            "INSERT INTO task_pending (name, payload) SELECT 't', jsonb_build_object('text',"
            " string_agg(md5(n::text), '')) FROM generate_series(1, 8000) n RETURNING id"
        )
        bench.drain()
        assert bench.task(task_id).result == 8000 * 32

    def test_a_row_that_cannot_be_read_hurts_only_itself(self, bench: Bench) -> None:
        bench.handler()(lambda ctx, payload: bench.runs.append(ctx.task_id))
        good = [bench.create() for _ in range(3)]
        raw = (
            "INSERT INTO task_pending (name, payload) VALUES ('t', CAST(:p AS jsonb)) RETURNING id"
        )
        deep = bench.sql(raw, p='{"a":' + "[" * 5_000 + "]" * 5_000 + "}")
        long = bench.sql(raw, p='{"n": 1' + "0" * 5_000 + "}")
        good += [bench.create() for _ in range(3)]

        bench.drain()

        assert bench.states(good) == ["SUCCEEDED"] * 6
        assert [bench.task(i).failures for i in good] == [0] * 6
        assert bench.states([deep, long]) == ["FAILED", "FAILED"]
        assert re.search("payload cannot be read", bench.error(long))

    def test_the_handlers_context_tells_who_it_is(self, bench: Bench) -> None:
        @bench.handler("who.am.i")
        def h(ctx: Any) -> list:
            return [ctx.task_id, ctx.name, ctx.biz_key, ctx.attempt, ctx.headers, ctx.cancelled]

        task_id = bench.run_one("who.am.i", biz_key="order:42", headers={"trace": "x"})
        assert bench.task(task_id).result == [
            task_id, "who.am.i", "order:42", 1, {"trace": "x"}, False,
        ]  # fmt: skip

    def test_the_idempotency_key_is_the_same_at_every_attempt(self, bench: Bench) -> None:
        @bench.handler(retry="0s,0s")
        def h(ctx: Any) -> None:
            bench.runs.append(ctx.idempotency_key)
            raise ValueError

        task_id = bench.run_one()
        assert bench.runs == [bench.task(task_id).idempotency_key] * 3


class TestAtMostOnce:
    def test_it_is_claimed_alone_and_settled_before_the_next_one_starts(self, bench: Bench) -> None:
        @bench.handler(at_most_once=True)
        def h(ctx: Any) -> int:
            bench.runs.append([bench.state(i) for i in ids])
            return ctx.attempt

        ids = [bench.create() for _ in range(3)]
        bench.execute(ids)
        p, r, s = "PENDING", "RUNNING", "SUCCEEDED"
        assert bench.runs == [[r, p, p], [s, r, p], [s, s, r]]

    def test_the_slot_names_it_until_its_outcome_is_answered(self, bench: Bench) -> None:
        """Collected, it would be nobody's: its child could die, and it would run again."""
        bench.succeeding(at_most_once=True)
        task_id, child, named = bench.create(), bench.child(), []

        @event.listens_for(child.database.engine, "before_cursor_execute")
        def look(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if bench.runs and "INSERT INTO task_completed" in statement:
                named.append([run.task_id for v in bench.slots.occupied() for run in v.running])

        child.execute([task_id])
        assert bench.state(task_id) == "SUCCEEDED"
        assert named[:1] == [[task_id]]

    def test_an_exception_sends_it_to_the_error_pool(self, bench: Bench) -> None:
        bench.raising(ValueError("half done"), at_most_once=True)
        task_id = bench.run_one()
        assert (bench.state(task_id), len(bench.runs)) == ("FAILED", 1)

    def test_a_rule_may_still_say_that_an_exception_is_harmless(self, bench: Bench) -> None:
        bench.raising(ValueError(), at_most_once=True, on_error={ValueError: "retry"}, retry="1h")
        task_id = bench.run_one()
        assert bench.state(task_id) == "PENDING"


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Handle SIGINT as a process in the foreground does; asyncio looks at it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class UnspeakableError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Numbers(BaseException):
    """Not even an Exception."""


ERRORS = [
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    MemoryError(),
    RecursionError(),
    StopIteration(),
    Numbers(),
    UnspeakableError(),
    ValueError("a\x00b"),
    ValueError("lone \ud800 surrogate"),
    ValueError("x" * 100_000),
    ExceptionGroup("many", [ValueError(n) for n in range(3)]),
]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_is_raised_is_recorded(bench: Bench, error: BaseException, is_async: bool) -> None:
    def raise_it(ctx: Any) -> None:
        raise error

    async def await_it(ctx: Any) -> None:
        raise error

    bench.handler("bad", max_attempts=1)(await_it if is_async else raise_it)
    bench.succeeding("good")
    bad, good = bench.create("bad"), bench.create("good")

    bench.execute([bad, good])

    assert bench.states([bad, good]) == ["FAILED", "SUCCEEDED"]
    assert type(error).__name__ in bench.error(bad)
    assert len(bench.attempts(bad)[0].message) <= 2000


def cyclic() -> list:
    ring: list = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "result"),
        ({"a": [1, float("inf")]}, "result.a[1]"),
        ({"a": {1, 2}}, "result.a"),
        (cyclic(), "result"),
        ("x" * 70_000, "result"),
        (2**64, "result"),
        ("a\x00b", "result"),
        (object(), "result"),
        ({1: 2}, "result["),
    ],
    ids=["nan", "infinity", "set", "cycle", "too large", "too big", "NUL", "object", "key"],
)
def test_a_result_beyond_storage_is_a_failure(bench: Bench, value: Any, path: str) -> None:
    @bench.handler()
    def h(ctx: Any) -> Any:
        bench.runs.append(1)
        return value

    task_id = bench.run_one()
    task = bench.task(task_id)
    assert (task.state, bench.runs) == ("FAILED", [1])
    assert f"result cannot be stored: {path}" in (task.error or "")


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": [1, 2.5, None, True, "é"]}])
def test_a_result_that_can_be_stored_comes_back_as_it_was(bench: Bench, value: Any) -> None:
    bench.handler()(lambda ctx: value)
    task_id = bench.run_one()
    assert (bench.state(task_id), bench.task(task_id).result) == ("SUCCEEDED", value)


@pytest.mark.parametrize("at_most_once", [False, True])
def test_full_counters_end_the_task_not_the_child(bench: Bench, at_most_once: bool) -> None:
    """A row written by hand: its failure cannot be counted, so not even the failure fits."""
    bench.raising(ValueError(), "bad", at_most_once=at_most_once)
    bench.succeeding("good")
    bad, good = bench.create("bad"), bench.create("good")
    bench.sql(
        "UPDATE task_pending SET attempt = 40000, failures = 32767, max_attempts = 32767"
        " WHERE id = :id",
        id=bad,
    )

    bench.execute([bad, good])

    assert bench.state(good) == "SUCCEEDED"
    assert bench.state(bad) in ("RUNNING", "FAILED")  # the lease, then the rescuer, end it
