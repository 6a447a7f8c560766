"""Each action of an operator leaves one line; what did nothing leaves none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from tasks_app import (
    backfill_schedule,
    cancel_task,
    cancel_tasks,
    change_schedule,
    create_schedule,
    disable_schedule,
    enable_schedule,
    pause_queue,
    remove_schedule,
    requeue_task,
    resume_queue,
)
from tasks_app.pool.operations import audit
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.retention import Retention
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do, Mailbox
from tasks_app.runtime.worker.housekeeper import ControlCommands
from tests.factory import claimed_task, pending_task
from tests.runtime.bench import Bench

START = datetime(2026, 1, 1, tzinfo=UTC)


def scheduled(connection: Connection) -> str:
    create_schedule(connection, "s", "t", every="1h")
    return "s"


VERBS: dict[str, Callable[[Connection, str], object]] = {
    "pause": lambda c, by: pause_queue(c, "q", "why", by=by),
    "resume": lambda c, by: (pause_queue(c, "q"), resume_queue(c, "q", by=by)),
    "cancel": lambda c, by: cancel_task(c, pending_task(c), by=by),
    "requeue": lambda c, by: (
        cancel_task(c, task_id := pending_task(c)),
        requeue_task(c, task_id, by=by),
    ),
    "schedule add": lambda c, by: create_schedule(c, "s", "t", every=60, by=by),
    "schedule change": lambda c, by: change_schedule(c, scheduled(c), every=60, by=by),
    "schedule enable": lambda c, by: enable_schedule(c, scheduled(c), by=by),
    "schedule disable": lambda c, by: disable_schedule(c, scheduled(c), by=by),
    "schedule remove": lambda c, by: remove_schedule(c, scheduled(c), by=by),
    "schedule backfill": lambda c, by: backfill_schedule(
        c, scheduled(c), START, START + timedelta(hours=3), by=by
    ),
}


@pytest.mark.parametrize("action", VERBS)
def test_who_did_what_when(connection: Connection, action: str) -> None:
    VERBS[action](connection, "ann")

    line, *_ = audit.find(connection)
    now, role = connection.exec_driver_sql("SELECT statement_timestamp(), current_user").one()
    assert (line.action, line.who, line.role) == (action, "ann", role)
    assert timedelta(0) <= now - line.at < timedelta(minutes=1)
    assert len(audit.find(connection, action=action)) == 1


def test_what_it_was_done_to(connection: Connection) -> None:
    waiting, running = pending_task(connection), claimed_task(connection).task_id

    cancel_task(connection, waiting)
    cancel_tasks(connection, name="t")
    pause_queue(connection, "q", "a leak")

    paused, many, one = audit.find(connection)
    assert (one.ids, one.number, one.answers) == ([waiting], 1, {"cancelled": 1})
    assert (many.ids, many.what) == ([running], {"name": "t"})
    assert many.answers == {"cancelled": 0, "requested": 1}
    assert paused.what == {"queue": "q", "reason": "a leak"}


def test_of_very_many_a_sample_of_the_ids_is_kept(connection: Connection) -> None:
    for _ in range(audit.MOST_IDS + 1):
        pending_task(connection)

    cancel_tasks(connection, name="t")

    (line,) = audit.find(connection)
    assert (line.number, len(line.ids)) == (audit.MOST_IDS + 1, audit.MOST_IDS)


def test_what_did_nothing_leaves_no_line(connection: Connection) -> None:
    cancel_task(connection, 10**9)
    requeue_task(connection, pending_task(connection))
    cancel_tasks(connection, name="nobody")
    resume_queue(connection, "q")
    pause_queue(connection, "q")
    pause_queue(connection, "q")
    enable_schedule(connection, "nobody")

    assert [line.action for line in audit.find(connection)] == ["pause"]


def test_a_line_is_gone_with_what_was_rolled_back(engine: Engine) -> None:
    with engine.connect() as connection:
        pause_queue(connection, "q")
        connection.rollback()

        assert audit.find(connection) == []


def test_remote_control_is_noted(bench: Bench, tmp_path: Any) -> None:
    task_id = bench.create()
    mailbox = Mailbox.beside(tmp_path / "slots")
    for command in (
        ControlCommand(Do.CANCEL, ids=(int(task_id),)),
        ControlCommand(Do.PAUSE, queue="q"),
    ):
        mailbox.leave(command)

    database = Database(bench.url)
    ControlCommands(database, mailbox, lambda: None).carry_out()
    database.dispose()

    with bench.engine.connect() as connection:
        noted = {(line.action, line.who) for line in audit.find(connection)}
    assert noted == {("cancel", "remote control"), ("pause", "remote control")}


def test_a_prune_is_noted_before_and_after(bench: Bench) -> None:
    database = Database(bench.url)
    Retention(bench.settings(keep_errors="7d"), database).run_for("ann")
    database.dispose()

    with bench.engine.connect() as connection:
        after, before = audit.find(connection)
    ages = {"completed": "30d", "errors": "7d", "batches": "365d"}
    assert (before.action, before.what) == ("prune", ages)
    assert (after.action, after.who, after.number) == ("pruned", "ann", 0)
