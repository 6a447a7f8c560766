"""Stacks: who is asked, what a child answers, and what it never says."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import Engine

from tasks_app.pool.runs.heartbeats import ask_stacks, read_stacks, take_stacks_asked
from tests.clock import until
from tests.factory import do
from tests.runtime.bench import Bench

SECRET = "4111-1111-1111-1111"


@pytest.fixture
def busy(bench: Bench) -> dict[str, int]:
    """Run a plain handler in a thread, and an async one that waits for a coroutine of its own."""
    go_on, started = bench.event(), threading.Semaphore(0)

    @bench.handler("plain")
    def plain(ctx: Any, payload: dict) -> None:
        card = payload["card"]
        started.release()
        assert go_on.wait(30), card

    async def waits_within() -> None:
        await asyncio.get_running_loop().run_in_executor(None, go_on.wait, 30)

    @bench.handler("coroutine")
    async def coroutine(ctx: Any, payload: dict) -> None:
        started.release()
        await asyncio.gather(asyncio.create_task(waits_within(), name=payload["card"]))

    ids = {name: bench.create(name, {"card": SECRET}) for name in ("plain", "coroutine")}
    child = bench.child(extra_threads=1)
    bench.beside(child.execute, list(ids.values()))
    for _ in ids:
        assert started.acquire(timeout=10)
    until(lambda: bench.sql("SELECT count(*) FROM task_worker") == 1)
    return ids


def answer(bench: Bench) -> str:
    until(lambda: bench.sql("SELECT stacks FROM task_worker") is not None)
    return str(bench.sql("SELECT stacks FROM task_worker"))


def part(said: str, heading: str) -> str:
    """Return the stack under this heading."""
    lines = said.split(heading, 1)[1].splitlines()[1:]
    ends = next((n for n, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    return "\n".join(lines[:ends])


def test_an_operator_elsewhere_reads_what_each_thread_and_coroutine_does(
    bench: Bench, busy: dict[str, int]
) -> None:
    assert len(bench.do(ask_stacks, "test")) == 1

    said = answer(bench)

    plain, waits = (f" runs task {busy[name]} ({name})" for name in ("plain", "coroutine"))
    assert said.index(plain) < said.index("\nthread ")  # who looks wants those that run tasks
    assert "in plain\n    assert go_on.wait(30), card" in part(said, plain)
    assert "in coroutine\n    await asyncio.gather" in part(said, waits)
    assert "in waits_within" in part(said, "coroutine busy.<locals>.waits_within")
    assert "thread tasks_app async pool\n" in said
    assert SECRET not in said


def test_a_signal_asks_by_the_scoreboard_and_each_is_answered_once(
    bench: Bench, busy: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    bench.slots.ask_stacks()
    answer(bench)
    logged = [each.getMessage() for each in caplog.records if "stacks" in each.getMessage()]
    (said,) = logged
    assert f"runs task {busy['plain']} (plain)" in said
    assert SECRET not in said


def test_who_is_asked(bench: Bench, engine: Engine) -> None:
    """A worker, one child, or all that were heard of lately; then older answers are gone."""
    for owner, node in (("a:1", "a"), ("a:2", "a"), ("b:1", "b"), ("gone", "a")):
        bench.sql(
            "INSERT INTO task_worker (owner, node, queues, handlers, stacks, seen_at) VALUES"
            " (:owner, :node, '{}', '{}', 'old', now() - CAST(:ago AS interval))",
            owner=owner,
            node=node,
            ago="1 hour" if owner == "gone" else "1 second",
        )
    assert do(engine, ask_stacks, "a") == ["a:1", "a:2"]
    assert [each.stacks for each in do(engine, read_stacks, "")] == [None, None, "old"]
    assert do(engine, take_stacks_asked, ["b:1"]) is False
    assert do(engine, take_stacks_asked, ["a:1", "a:2"]) is True
    assert do(engine, take_stacks_asked, ["a:1", "a:2"]) is False
    assert do(engine, ask_stacks, "b:1") == ["b:1"]
    assert do(engine, ask_stacks, "") == ["a:1", "a:2", "b:1"]
