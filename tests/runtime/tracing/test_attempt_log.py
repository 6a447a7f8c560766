"""What a worker's log says of runs: each that fails, and how many did not."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app import Fail, Retry, Skip, Snooze
from tasks_app.domain.tasks.run import Cause
from tasks_app.pool.runs.claim import claim
from tasks_app.runtime.hooks import HOOKS, Notice, NoticeKind
from tasks_app.runtime.tracing.run_logs import ATTEMPTS, AttemptLog, logger
from tests.clock import Clock, until
from tests.factory import claimer
from tests.runtime.bench import Bench, effect
from tests.runtime.mortal import Mortal


@pytest.fixture(autouse=True)
def fresh(caplog: pytest.LogCaptureFixture) -> None:
    """Begin with nothing counted or left out by the tests before."""
    ATTEMPTS.tell(last=True)
    caplog.set_level(logging.INFO, logger.name)
    caplog.clear()


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == level and r.name == logger.name]


def test_a_failed_attempt_is_a_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.raising(
        ConnectionError("the provider does not answer\nDETAIL: a second line"), retry="1h,1h"
    )
    task_id = bench.run_one()

    (line,) = said(caplog, logging.WARNING)
    assert re.fullmatch(
        rf"task {task_id} \(t\): attempt 1 of 3 failed, again in 60 min \(\d\d:\d\d:\d\dZ\): "
        r"ConnectionError: the provider does not answer",
        line,
    )
    assert said(caplog, logging.ERROR) == []


def test_the_last_one_is_an_error(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.raising(ValueError("no such order"), retry="0s,0s")
    task_id = bench.run_one()

    assert [line.partition(" failed")[0] for line in said(caplog, logging.WARNING)] == [
        f"task {task_id} (t): attempt 1 of 3",
        f"task {task_id} (t): attempt 2 of 3",
    ]
    (line,) = said(caplog, logging.ERROR)
    first, _, rest = line.partition("\n")
    assert first == (
        f"task {task_id} (t): attempt 3 of 3 failed, and it is over "
        f"(tasks-app show {task_id}): ValueError: no such order"
    )
    assert 'bench.py", line ' in rest
    assert "raise error" in rest


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("at_most_once", [False, True])
def test_each_way_to_an_outcome_is_told_and_counted(
    bench: Bench, caplog: pytest.LogCaptureFixture, in_session: bool, at_most_once: bool
) -> None:
    outcomes = iter([None, Fail("no"), Retry("later", after="1h"), Snooze("1h"), Skip("no need")])

    @bench.handler(at_most_once=at_most_once)
    def h(ctx: Any) -> None:
        if in_session:
            effect(ctx)
        error = next(outcomes)
        if error is not None:
            raise error

    for _ in range(5):
        bench.create()

    bench.drain()

    (summary,) = said(caplog, logging.INFO)
    assert re.fullmatch(
        r"ran 5 tasks in \d+ s: 1 succeeded, 1 failed, 1 retried, 1 snoozed, 1 skipped", summary
    )
    assert len(said(caplog, logging.WARNING)) == len(said(caplog, logging.ERROR)) == 1


def test_async_and_other_runs_are_counted(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.writing("t")

    @bench.handler("u")
    async def aside(ctx: Any) -> None:
        await ctx.session.execute(text("SELECT 1"))

    for name in "t" * 20 + "u" * 10:
        bench.create(name)
    bench.drain()
    (summary,) = said(caplog, logging.INFO)
    assert re.fullmatch(r"ran 30 tasks in \d+ s: 30 succeeded, 0 failed, 0 retried", summary)


def test_uncharged_is_not_called_charged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.raising(ValueError("later"), on_error={ValueError: "retry_free"}, retry="1h,1h")
    task_id = bench.run_one()
    (line,) = said(caplog, logging.WARNING)
    assert line.startswith(
        f"task {task_id} (t): attempt 1 (0 of 3 charged) failed, again in 60 min "
    )


def test_payloads_values_are_in_no_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Neither by the handler's own words nor by the database's, whose first line may quote one."""

    @bench.handler("own")
    def own(ctx: Any, payload: dict[str, str]) -> None:
        raise ValueError(f"card {payload['card']} is refused")

    @bench.handler("sql")
    def sql(ctx: Any, payload: dict[str, str]) -> None:
        ctx.session.execute(text("SELECT CAST(:card AS int)"), payload)

    for name in ("own", "sql"):
        bench.create(name, {"card": "canary4111"}, max_attempts=1)

    bench.drain()

    lines = said(caplog, logging.ERROR)
    assert "ValueError: card *** is refused" in lines[0]
    assert "invalid input syntax for type integer" in lines[1]
    assert "canary" not in caplog.text


def test_a_tasks_fields_are_in_its_record(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.raising(ValueError("no"), max_attempts=1)
    task_id = bench.run_one()
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert (record.task_id, record.task_name, record.attempt) == (task_id, "t", 1)  # type: ignore[attr-defined]


def died(
    bench: Bench, caplog: pytest.LogCaptureFixture, *, tasks: int, running: int
) -> tuple[list[int], int]:
    """Let a child die with so many tasks, and be reaped; return the tasks, and its process."""
    caplog.set_level(logging.WARNING)
    bench.succeeding(retry="1h,1h")
    ids: list[int] = [bench.create() for _ in range(tasks)]
    claimed = bench.do(claim, ids, claimer(owner="dead"), uuid4())
    pid = Mortal(bench.slots, "dead", [task.run for task in claimed[:running]]).kill()
    bench.child(start=False).reap()
    return ids, pid


@pytest.mark.test_all
def test_who_a_dead_child_charged_is_said(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    (guilty, *_), pid = died(bench, caplog, tasks=3, running=1)
    attempt, reaped = [r.getMessage() for r in caplog.records]
    assert attempt.startswith(f"task {guilty} (t): attempt 1 of 3 failed, again in 60 min ")
    assert f": process died: Its process {pid} died while only this task ran in it." in attempt
    assert reaped == (
        f"child process {pid} died: task {guilty} (t) ran in it and is charged; "
        "2 not yet begun go back"
    )


@pytest.mark.test_all
def test_several_suspects_are_not_charged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    ids, pid = died(bench, caplog, tasks=2, running=2)
    *attempts, reaped = [r.getMessage() for r in caplog.records]
    assert [line.partition(":")[0] for line in attempts] == [f"task {i} (t)" for i in ids]
    assert all("was lost, not charged" in line for line in attempts)
    assert reaped == (
        f"child process {pid} died: no task is charged; it was one of task {ids[0]} (t), "
        f"task {ids[1]} (t)"
    )


def notice(number: int, kind: NoticeKind = NoticeKind.RETRIED, error: str = "ValueError") -> Notice:
    return Notice(
        kind, number, "storm", "default", None, 1, 1, timedelta(seconds=5),
        cause=Cause(error, "no", "the frames"), payload="{}", max_attempts=3,
    )  # fmt: skip


def test_of_a_storm_the_first_are_said_and_the_others_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    attempts = AttemptLog(clock)

    for number in range(1_000):
        attempts(notice(number))
    attempts(notice(2_000, error="KeyError"))
    attempts(notice(2_001, NoticeKind.FAILED))
    attempts(notice(2_002, NoticeKind.FAILED))
    in_the_storm = len(caplog.records)
    traces = caplog.text.count("the frames")
    clock.now += 60
    attempts.tell()

    assert (in_the_storm, traces) == (13, 1)
    (left_out,) = [line for line in said(caplog, logging.WARNING) if "left out" in line]
    assert left_out == (
        "left out 990 more lines of storm, retried with ValueError, of the last 60 s: "
        "the first 10 a minute are shown"
    )


def test_after_the_minute_failures_are_shown_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    attempts = AttemptLog(clock)
    for number in range(20):
        attempts(notice(number))
    clock.now += 61
    attempts(notice(99))
    lines = said(caplog, logging.WARNING)
    assert "left out 10 more lines" in lines[10]
    assert lines[11].startswith("task 99 (storm)")


def test_classes_without_number_are_bounded_too(caplog: pytest.LogCaptureFixture) -> None:
    """A handler may make a class of exceptions for each task."""
    attempts = AttemptLog(Clock())
    for number in range(5_000):
        attempts(notice(number, error=f"Error{number}"))
    assert len(caplog.records) < 200


def test_a_summary_comes_each_half_minute_if_at_all(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    attempts = AttemptLog(clock)

    attempts.tell()
    clock.now += 300
    attempts.succeeded(1_238)
    attempts(notice(1, NoticeKind.FAILED))
    attempts.tell()
    clock.now += 29
    attempts.tell()
    early = said(caplog, logging.INFO)
    clock.now += 1
    attempts.tell()
    attempts.tell()
    clock.now += 30
    attempts.tell()

    assert early == []
    assert said(caplog, logging.INFO) == [
        "ran 1,239 tasks in 30 s: 1,238 succeeded, 1 failed, 0 retried"
    ]


def test_a_running_worker_tells_by_itself(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(ATTEMPTS, "_clock", clock)
    bench.succeeding()
    child = bench.child()
    child.execute([bench.create()])
    clock.now += 30
    until(lambda: any("ran 1 task in " in line for line in said(caplog, logging.INFO)))


def test_that_it_listens_costs_successes_nothing() -> None:
    """Else each task would be made a notice of, and none would be run in a row."""
    assert not HOOKS.wanted


def test_ctx_log_says_which_run_a_line_is(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tasks_app.handlers")

    @bench.handler("mail.send")
    def h(ctx: Any) -> None:
        ctx.log.info("sent %s of 100 %%", 7, extra={"shop": "vienna", "task_id": -1})
        ctx.log.warning("rate is 5%")

    task_id = bench.run_one("mail.send")

    one, two = [r for r in caplog.records if r.name == "tasks_app.handlers"]
    prefix = f"task {task_id} (mail.send), attempt 1: "
    assert one.getMessage() == f"{prefix}sent 7 of 100 %"
    assert two.getMessage() == f"{prefix}rate is 5%"
    assert (one.shop, one.task_id, one.task_name) == ("vienna", task_id, "mail.send")  # type: ignore[attr-defined]


def test_a_formatter_may_add_the_prefix(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tasks_app.handlers")
    bench.handler()(lambda ctx: ctx.log.info("sent"))
    task_id = bench.create()
    bench.drain(log_prefix=False)
    (record,) = [r for r in caplog.records if r.name == "tasks_app.handlers"]
    assert (record.getMessage(), record.task_id) == ("sent", task_id)  # type: ignore[attr-defined]


def test_an_own_session_shows_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Its engine does not hide parameters; they stand behind the first line."""

    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        with Session(bench.engine) as session:
            values = {"x": "-".join(["canary"] * 2)}  # its line of code is in the traceback
            session.execute(text("SELECT * FROM nowhere WHERE x = :x"), values)

    bench.run_one(max_attempts=1)
    assert 'relation "nowhere" does not exist' in caplog.text
    assert "canary-canary" not in caplog.text
