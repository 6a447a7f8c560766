"""A producer whose database has no schema of ours reads a sentence, and none of its payload."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import InternalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tasks_app import NewTask, TasksError, acreate_task, create_task, create_tasks
from tasks_app.domain.errors import SchemaError

SECRET = {"card": "canary4111"}
NAME = "no_schema_yet"


@pytest.fixture(scope="module")
def bare_url(postgres: Any) -> Iterator[str]:
    """A database without our tables."""
    administrator = create_engine(postgres.url_of("postgres"), isolation_level="AUTOCOMMIT")
    with administrator.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {NAME}"))
    yield postgres.url_of(NAME)
    with administrator.connect() as connection:
        connection.execute(text(f"DROP DATABASE {NAME} WITH (FORCE)"))
    administrator.dispose()


WAYS: list[Callable[[Any], object]] = [
    lambda session: create_task(session, "t", SECRET),
    lambda session: create_tasks(session, [NewTask("t", SECRET), NewTask("t", SECRET)]),
]


def check(refusal: pytest.ExceptionInfo[Any]) -> None:
    said = str(refusal.value)
    assert said.startswith("The schema of tasks_app is missing in this database, or not where ")
    assert "Run: tasks-app migrate." in said
    assert said.endswith(
        "The transaction is in error now, as after any statement that failed: roll it back."
    )
    assert "canary" not in "".join(traceback.format_exception(refusal.value))
    assert refusal.value.__context__ is None  # nor where those look who show all of an error
    assert isinstance(refusal.value, TasksError)


@pytest.mark.parametrize("create", WAYS, ids=["one", "many"])
def test_it_is_said_and_the_transaction_is_as_postgresql_leaves_it(
    bare_url: str, create: Callable[[Any], object]
) -> None:
    engine = create_engine(bare_url)  # a producer's own: it shows parameters in its errors
    with Session(engine) as session:
        with pytest.raises((SchemaError, ProgrammingError)) as refusal:
            create(session)

        with pytest.raises(InternalError, match="current transaction is aborted"):
            session.execute(text("SELECT 1"))
        session.rollback()
        assert session.execute(text("SELECT 1")).scalar() == 1
    engine.dispose()

    check(refusal)


@pytest.mark.parametrize("create", WAYS, ids=["one", "many"])
def test_also_on_a_connection_of_psycopg(bare_url: str, create: Callable[[Any], object]) -> None:
    url = make_url(bare_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection, pytest.raises(SchemaError) as refusal:
        create(connection)

    check(refusal)


def test_also_in_an_async_session(bare_url: str) -> None:
    async def create() -> None:
        engine = create_async_engine(bare_url)
        try:
            async with AsyncSession(engine) as session:
                await acreate_task(session, "t", SECRET)
        finally:
            await engine.dispose()

    with pytest.raises(SchemaError) as refusal:
        asyncio.run(create())

    check(refusal)


def test_a_schema_that_is_too_old_is_said(bare_url: str) -> None:
    engine = create_engine(bare_url)
    with engine.connect() as connection:  # and never commit
        connection.execute(text("CREATE TABLE task_pending (id int)"))

        with pytest.raises(SchemaError, match="is not the one that this version needs") as refusal:
            create_task(connection, "t", SECRET)
    engine.dispose()

    assert "canary" not in "".join(traceback.format_exception(refusal.value))
