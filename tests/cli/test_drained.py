"""What ``work --drain`` says at its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tasks_app.cli.work import print_drained, unrunnable_tasks
from tasks_app.pool.connection.row_by_row import Refusal
from tasks_app.pool.dispatch.set_aside import park_tasks
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.tables import database_now
from tasks_app.runtime.worker.supervisor import WorkerEnd
from tests.cli.shell import Shell
from tests.factory import claimed_task, pending_task, unknown

UNKNOWN = "no live worker of this queue has a handler named"

HANDLERS = """
import os, signal
from tasks_app import Snooze, handler

@handler("runs")
def runs(ctx):
    pass

@handler("writes")
def writes(ctx):
    ctx.session.connection().exec_driver_sql("SELECT 1")

@handler("shares")
def shares(ctx):
    ctx.write("SELECT 1")

@handler("once", at_most_once=True)
def once(ctx):
    pass

@handler("later")
def later(ctx):
    raise Snooze("1h")

@handler("fails", max_attempts=1)
def fails(ctx):
    raise ValueError("no")

@handler("kills", max_attempts=1)
def kills(ctx):
    os.kill(os.getpid(), signal.SIGKILL)

@handler("mail", queue="mail")
def mail(ctx):
    pass
"""


@pytest.fixture
def shell(
    engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    (tmp_path / "drain_handlers.py").write_text(HANDLERS)
    return Shell(
        monkeypatch,
        tmp_path,
        TASKS_APP_DATABASE_URL=database_url,
        TASKS_APP_IMPORTS="drain_handlers",
    )


@pytest.mark.test_all
@pytest.mark.test_all
@pytest.mark.timeout(300)
def test_it_counts_what_ran_in_every_way_also_before_a_death(shell: Shell, engine: Engine) -> None:
    numbers = {"runs": 3, "writes": 2, "shares": 2, "once": 1, "later": 1, "fails": 1, "kills": 1}
    with engine.begin() as connection:
        for name, number in numbers.items():
            for _ in range(number):
                pending_task(connection, name)
        nobodys = pending_task(connection, "nobody")

    done = shell.process("work", "--drain")

    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            "11 runs ended: 2 failed, 1 to run again, 8 succeeded.",
            "1 due task left:",
            f"  1 nobody in default: {UNKNOWN} nobody. More: tasks-app explain {nobodys}",
        ],
    )


@pytest.mark.parametrize("wrong", ["mail,", "a b", "mail;reports"])
def test_a_queue_that_cannot_be_is_refused(shell: Shell, wrong: str) -> None:
    done = shell("work", "--drain", "--queue", wrong)

    assert done.returncode == 2
    assert "no queue is called" in done.stderr


@pytest.mark.test_all
@pytest.mark.timeout(120)
def test_several_queues_may_be_given_in_one_text(shell: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        for queue, name in (("default", "runs"), ("mail", "mail")):
            pending_task(connection, name=name, queue=queue)

    done = shell.process("work", "--drain", "-c", "1", "-q", "default, mail")

    assert (done.returncode, done.stdout) == (0, "2 runs ended: 2 succeeded.\n")


@pytest.fixture
def now(engine: Engine) -> datetime:
    with engine.begin() as connection:
        return database_now(connection)


def found(engine: Engine, since: datetime) -> list[tuple[str, int, int, str]]:
    with engine.begin() as connection:
        left = unrunnable_tasks(connection, ["default", "mail"], since, WorkerEnd(0, None))
    return [(each["name"], each["number"], each["first"], each["why"]) for each in left]


def test_what_is_due_and_stays_is_told_with_its_reason(engine: Engine, now: datetime) -> None:
    before = now - timedelta(hours=1)
    with engine.begin() as connection:
        parked = [pending_task(connection, "nobody", now=before) for _ in range(2)]
        park_tasks(connection, parked, unknown("nobody"), timedelta(seconds=30))
        held = pending_task(connection, "mail", queue="mail", now=before)
        pause(connection, "mail", "the provider is down")
        pending_task(connection, "nobody", delay="1h")
        pending_task(connection, "runs", queue="elsewhere", now=before)
        claimed_task(connection)

    (first, second) = found(engine, now)

    assert first == ("nobody", 2, parked[0], f"{UNKNOWN} nobody")
    assert second[:3] == ("mail", 1, held)
    assert second[3].startswith("the queue is paused since ")
    assert second[3].endswith(": the provider is down")


def test_what_becomes_due_while_it_ends_does_not_count_unless_it_is_parked(
    engine: Engine, now: datetime
) -> None:
    with engine.begin() as connection:
        late, known = pending_task(connection, "late"), pending_task(connection, "known")
        park_tasks(connection, [known], unknown("known"), timedelta(seconds=30))

    assert found(engine, now - timedelta(hours=1)) == [("known", 1, known, f"{UNKNOWN} known")]
    assert [name for name, *_ in found(engine, now + timedelta(hours=1))] == ["late", "known"]
    assert found(engine, now + timedelta(hours=1))[0][2:] == (late, "the reason is unknown")


def test_it_says_nothing_ran(capsys: pytest.CaptureFixture[str]) -> None:
    print_drained({}, [], [], json_=False)

    assert capsys.readouterr().out == "Nothing ran.\n"


def test_it_says_what_the_database_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refused = Refusal("rescue of tasks", "7", "UniqueViolation 23505", datetime.now(UTC))
    print_drained({}, [], [refused], json_=False)

    assert capsys.readouterr().out == (
        "Nothing ran.\nrescue of tasks refused: 7 (UniqueViolation 23505).\n"
    )
