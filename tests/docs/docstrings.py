"""What the examples in docstrings find: a database with a few tasks, and names to begin with."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.orm import Session

import tasks_app
import tasks_app.testing
from tasks_app import BatchJob, Step, Table, create_task, handler, start_job, stop_job
from tasks_app.batch.job import JOBS
from tasks_app.runtime.handlers.middleware import MIDDLEWARE
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.hooks import HOOKS
from tasks_app.testing import drain, fail_next
from tasks_app.testing.draining import FAULTS

ROOMS = {tasks_app: tasks_app.__all__, tasks_app.testing: tasks_app.testing.__all__}
PUBLIC: dict[str, Any] = {
    name: getattr(room, name) for room, names in ROOMS.items() for name in names
}
"""By name; the kit has no name that the front door has, too."""


@contextmanager
def declared() -> Iterator[dict[str, Any]]:
    """Handlers and a job of the examples; what these declare is forgotten with them."""
    kept = [(each, each.copy()) for each in (HANDLERS.specs, HANDLERS.schedules, JOBS, MIDDLEWARE)]
    listening = HOOKS._subscribers
    HANDLERS.schedules.clear()  # a drain would create those of guides that were read before

    @handler("mail.send", retry="1d")  # or a drain may meet the next attempt
    def send_mail(ctx, payload: dict) -> dict:
        return {"sent": payload["to"]}

    @handler("card.charge", max_attempts=1)
    def charge_card(ctx, payload: dict) -> None:
        raise ConnectionRefusedError("no bank")

    def pay(ctx, rows) -> None:
        pass

    payroll = BatchJob("payroll", [Step("pay", Table("employee"), chunk=pay, retry="1d")])
    try:
        yield {"send_mail": send_mail, "charge_card": charge_card, "payroll": payroll}
    finally:
        HOOKS._subscribers = listening
        FAULTS.clear()
        for now, before in kept:
            now.clear()
            with suppress(AttributeError):
                now.extend(before)
            with suppress(AttributeError):
                now.update(before)


def prepared(connection: Connection, names: dict[str, Any]) -> dict[str, int]:
    """Commit a task that failed, one that waits, a job that was stopped, and one that runs."""
    connection.execute(text("DROP TABLE IF EXISTS employee"))
    connection.execute(text("CREATE TABLE employee (id int PRIMARY KEY, mail text)"))
    connection.execute(text("INSERT INTO employee SELECT id FROM generate_series(1, 40) AS id"))
    failed_id = create_task(connection, names["charge_card"], {"order": 7})
    stopped = start_job(connection, names["payroll"], {"month": "2029-11"})
    stop_job(connection, stopped.batch_id)
    running = start_job(connection, names["payroll"], {"month": "2029-12"})
    fail_next("payroll:pay", ConnectionError, when="before")
    drain(connection)
    mail = {"to": "a@example.org"}
    task_id = create_task(connection, names["send_mail"], mail, biz_key="order:7")
    return {
        "failed_id": failed_id, "task_id": task_id,
        "stopped_id": stopped.batch_id, "running_id": running.batch_id,
    }  # fmt: skip


@contextmanager
def world(engine: Engine) -> Iterator[dict[str, Any]]:
    """Yield what an example may name; what it does on ``session`` is rolled back."""
    url = make_url(engine.url).set(drivername="postgresql")
    with declared() as names:
        with engine.begin() as connection:
            ids = prepared(connection, names)
        with (
            engine.connect() as connection,
            connection.begin(),
            Session(connection, join_transaction_mode="create_savepoint") as session,
        ):
            yield {
                **PUBLIC, **names, **ids, "session": session, "engine": engine,
                "url": url.render_as_string(hide_password=False), "psycopg": psycopg,
                "date": date, "timedelta": timedelta, "text": text, "unittest": unittest,
            }  # fmt: skip
            connection.rollback()
