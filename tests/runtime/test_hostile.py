"""Handlers that return or raise what nobody should: each leaves an outcome, and work goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.runtime.bench import Bench


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
def test_whatever_is_raised_is_recorded_and_the_next_task_runs(
    bench: Bench, error: BaseException, is_async: bool
) -> None:
    def raise_it(ctx: Any) -> None:
        raise error

    async def await_it(ctx: Any) -> None:
        raise error

    bench.handler("bad", max_attempts=1)(await_it if is_async else raise_it)
    bench.succeeding("good")
    bad, good = bench.create("bad"), bench.create("good")

    bench.execute([bad, good])

    assert bench.states([bad, good]) == ["FAILED", "SUCCEEDED"]
    assert type(error).__name__ in (bench.task(bad).error or "")
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
def test_a_result_that_cannot_be_stored_is_a_failure_named_so(
    bench: Bench, value: Any, path: str
) -> None:
    @bench.handler()
    def h(ctx: Any) -> Any:
        bench.runs.append(1)
        return value

    task_id = bench.create()
    bench.drain()
    task = bench.task(task_id)
    assert (task.state, bench.runs) == ("FAILED", [1])
    assert f"result cannot be stored: {path}" in (task.error or "")


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": [1, 2.5, None, True, "é"]}])
def test_a_result_that_can_be_stored_comes_back_as_it_was(bench: Bench, value: Any) -> None:
    @bench.handler()
    def h(ctx: Any) -> Any:
        return value

    task_id = bench.create()
    bench.drain()
    assert (bench.state(task_id), bench.task(task_id).result) == ("SUCCEEDED", value)


@pytest.mark.parametrize("at_most_once", [False, True])
def test_counters_at_their_limit_end_the_task_and_not_the_child(
    bench: Bench, at_most_once: bool
) -> None:
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
