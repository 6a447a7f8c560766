"""Handlers of a test, and sessions whose transaction is rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.testing import drain
from tasks_app.testing.results import Drained

NOTE = text("INSERT INTO note (text) VALUES (:text)")


@dataclass
class Kit:
    """A session with a table ``note``, and handlers of this test alone."""

    session: Session
    registry: Registry

    def handler(self, name: str = "a", **options: Any) -> Callable[[Callable[..., Any]], Any]:
        return handler(name, registry=self.registry, **options)

    def drain(self, *tasks: Any) -> Drained:
        """Create a task of each, and run what is due."""
        for each in tasks:
            create_task(self.session, each)
        return drain(self.session, registry=self.registry)

    def notes(self) -> list[str]:
        return list(self.session.execute(text("SELECT text FROM note ORDER BY text")).scalars())


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """What a user's test has: nothing of it is ever committed."""
    with (
        engine.connect() as connection,
        connection.begin(),
        Session(connection, join_transaction_mode="create_savepoint") as session,
    ):
        yield session
        connection.rollback()


@pytest.fixture
def registry() -> Registry:
    """Handlers of this test alone."""
    return Registry()


@pytest.fixture
def kit(session: Session, registry: Registry) -> Kit:
    session.execute(text("CREATE TABLE note (text text UNIQUE)"))
    return Kit(session, registry)


@pytest.fixture
def raw(engine: Engine, database_url: str) -> Iterator[psycopg.Connection]:
    """A connection of psycopg, in a transaction."""
    url = make_url(database_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        yield connection
        connection.rollback()


def in_async_session(url: str, scene: Callable[[AsyncSession], Awaitable[Any]]) -> Any:
    """Play a scene in an async session, which is rolled back."""

    async def play() -> Any:
        own = create_async_engine(make_url(url))
        async with AsyncSession(own) as session:
            found = await scene(session)
            await session.rollback()
        await own.dispose()
        return found

    return asyncio.run(play())
