"""Lines that handlers log, kept beside the attempt: which, how many, and that no line does harm."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.domain.config.retention import parse_keep
from tasks_app.pool.retention import DayPartition, delete_old, forget_history
from tasks_app.pool.tables import ERROR
from tasks_app.pool.tasks.run_records import LogOfAttempt, keep_lines, read_lines
from tasks_app.runtime.tracing.run_logs import _TAKER, RunLines
from tests.factory import some
from tests.runtime.bench import Bench

ON = {"log_lines": 5}
shop = logging.getLogger("shop.of.this.test")


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.fixture(autouse=True)
def _fresh(bench: Bench, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO)
    yield
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.removeHandler(_TAKER)


def kept(bench: Bench, task_id: int) -> list[LogOfAttempt]:
    return bench.do(read_lines, task_id)


def texts(bench: Bench, task_id: int) -> list[str]:
    return [line.text for log in kept(bench, task_id) for line in log.lines]


def test_each_attempt_keeps_its_own_lines(bench: Bench) -> None:
    @bench.handler("t", retry="0s")
    def handle(ctx: Any) -> None:
        ctx.log.info("asking %s", "the provider")
        shop.warning("attempt %s", ctx.attempt)
        ctx.log.debug("not shown, so not kept")
        if ctx.attempt == 1:
            raise ConnectionError

    task_id = bench.create()
    bench.drain(**ON)

    first, second = kept(bench, task_id)
    assert [(line.level, line.text) for line in first.lines] == [
        ("INFO", "asking the provider"),
        ("WARNING", "attempt 1"),
    ]
    assert [line.text for line in second.lines] == ["asking the provider", "attempt 2"]
    assert (first.attempt, second.attempt, second.cut) == (1, 2, 0)
    assert first.lines[0].at <= first.lines[1].at


@pytest.mark.test_all
def test_without_lines_there_is_no_row_and_off_keeps_none(bench: Bench) -> None:
    @bench.handler("t")
    def handle(ctx: Any, payload: dict[str, Any]) -> None:
        if payload.get("says"):
            ctx.log.info("hello")

    silent = bench.create()
    bench.drain(**ON)
    shop.warning("outside of any run")
    spoken = bench.run_one(payload={"says": True})
    assert kept(bench, silent) == kept(bench, spoken) == []
    assert bench.sql("SELECT count(*) FROM task_log") == 0


def test_runs_side_by_side_do_not_mix_their_lines(bench: Bench) -> None:
    @bench.handler("async")
    async def asynchronous(ctx: Any, payload: dict[str, int]) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            shop.info("of %s", payload["n"])

    ids = [bench.create("async", {"n": n}) for n in range(8)]
    bench.drain(**ON)
    for n, task_id in enumerate(ids):
        assert texts(bench, task_id) == [f"of {n}"] * 3


def test_the_last_lines_stay_within_bounds(bench: Bench) -> None:
    @bench.handler("t")
    def handle(ctx: Any) -> None:
        for n in range(20):
            ctx.log.info("line %s", n)

    task_id = bench.create()
    bench.drain(**ON)
    [log] = kept(bench, task_id)
    assert [line.text for line in log.lines] == [f"line {n}" for n in range(15, 20)]
    assert log.cut == 15


def test_bytes_are_bounded_too() -> None:
    lines = RunLines(100, 1_024, "")
    for _ in range(50):
        record = logging.LogRecord("x", logging.INFO, "", 0, "ä" * 5_000, (), None)
        lines.add(record)
        lines.add(logging.LogRecord("x", logging.INFO, "", 0, "short", (), None))
    run = some(lines.of(1, 1))
    assert len(run.lines) < 1_024
    assert lines.cut >= 50


def test_a_thread_that_still_logs_does_not_disturb_the_end_of_its_run() -> None:
    lines, over = RunLines(100, 1_000_000, ""), threading.Event()
    record = logging.LogRecord("x", logging.INFO, "", 0, "left behind", (), None)

    def log() -> None:
        while not over.is_set():
            lines.add(record)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=log) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(500):
            lines.of(1, 1)  # raised: deque mutated during iteration
    finally:
        over.set()
        sys.setswitchinterval(usual)
        for thread in threads:
            thread.join()


def test_no_line_does_harm(bench: Bench) -> None:
    @bench.handler("t")
    def handle(ctx: Any) -> None:
        ctx.log.info("nul \x00")
        ctx.log.info("x" * 100_000)
        shop.info("%d", "no number")
        shop.info("%s", Hostile())
        try:
            raise ValueError(Hostile())
        except ValueError:
            ctx.log.exception("caught")

    logging.raiseExceptions, before = False, logging.raiseExceptions
    task_id = bench.create()
    try:
        bench.drain(**ON, log_bytes=64 * 1024)
    finally:
        logging.raiseExceptions = before

    assert bench.state(task_id) == "SUCCEEDED"
    said = texts(bench, task_id)
    assert said[0] == "nul \ufffd"
    assert len(said[1]) == 2_000
    assert said[2:4] == ["(a line that cannot be formatted)"] * 2
    assert "ValueError" in said[4]


def test_a_lone_surrogate_can_be_stored(bench: Bench) -> None:
    lines = RunLines(5, 1_024, "")
    lines.add(logging.LogRecord("x", logging.INFO, "", 0, "half a character: \ud800", (), None))
    run = some(lines.of(1, 1))
    bench.do(keep_lines, [run])
    assert texts(bench, 1) == ["half a character: ?"]


def test_a_role_without_rights_runs_tasks(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.handler("t")(lambda ctx: ctx.log.info("hello"))
    task_id = bench.create()
    bench.sql("ALTER TABLE task_log RENAME TO task_log_away")
    try:
        bench.drain(**ON)
    finally:
        bench.sql("ALTER TABLE task_log_away RENAME TO task_log")
    assert bench.state(task_id) == "SUCCEEDED"
    assert "log lines of 1 runs are not kept" in caplog.text


def test_they_go_with_their_task(bench: Bench) -> None:
    bench.succeeding("ok")
    bench.raising(ValueError("x"), "bad", max_attempts=1)
    good, bad = bench.create("ok"), bench.create("bad")
    bench.drain(**ON)
    bench.sql("INSERT INTO task_log (task_id, attempt, lines) SELECT id, 1, '[]' FROM task_all")
    day = bench.sql("SELECT tableoid::regclass::text FROM task_completed")
    with bench.engine.connect() as connection:
        delete_old(connection, ERROR, parse_keep("1s"), now=_in(bench, days=1))
        assert _left(connection) == [good]
        partition = DayPartition(day, _in(bench), 0, attached=False)
        forget_history(connection, partition, 0)
        assert _left(connection) == []
        connection.rollback()
    assert bad


def _in(bench: Bench, days: int = 0) -> Any:
    return bench.sql("SELECT now()") + timedelta(days=days)


def _left(connection: Any) -> list[int]:
    return list(connection.execute(text("SELECT task_id FROM task_log")).scalars())
