"""``empty_pool``: nothing of an earlier test is left."""

from __future__ import annotations

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app.pool import testing
from tasks_app.pool.tables import TABLES
from tasks_app.runtime.api.limits import set_limit
from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.schedules.schedules import create_schedule
from tasks_app.testing import created, drain, empty_pool


def left(session: Session) -> dict[str, int]:
    counted = {
        name: session.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()
        for name in TABLES - {"tasks_app_version"}
    }
    return {name: number for name, number in counted.items() if number}


def test_it_leaves_nothing_but_the_version(session: Session, registry: Registry) -> None:
    @handler("a", registry=registry, max_attempts=1)
    def bad(ctx: TaskContext) -> None:
        raise ValueError

    create_task(session, bad)
    create_task(session, "b", order_key="o", unique_key="u", unique_scope="forever")
    create_schedule(session, "s", "b", every="1h")
    set_limit(session, "queue", "mail", most=5)
    drain(session, registry=registry)
    assert len(left(session)) > 5

    empty_pool(session)

    assert left(session) == {}
    assert session.execute(text("SELECT count(*) FROM tasks_app_version")).scalar() == 1


def test_on_a_connection_of_psycopg(raw: psycopg.Connection) -> None:
    create_task(raw, "a")

    empty_pool(raw)

    assert created(raw) == []


def test_large_tables_are_truncated(session: Session) -> None:
    number = 50 * testing.LARGE
    session.execute(
        text(
            "INSERT INTO task_pending (name, payload) SELECT 'a', jsonb_build_object('n',"
            f" repeat('x', 200)) FROM generate_series(1, {number})"
        )
    )

    empty_pool(session)

    assert left(session) == {}
