"""What async callers pass, and psycopg's URL."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.types.string import TextLoader
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from tests.runtime.bench import Bench


def plain_url(bench: Bench) -> str:
    url = make_url(bench.url).set(drivername="postgresql")
    return url.render_as_string(hide_password=False)


@asynccontextmanager
async def async_session(bench: Bench) -> Any:
    engine = create_async_engine(bench.url)
    async with AsyncSession(engine) as made, made.begin():
        yield made
    await engine.dispose()


@asynccontextmanager
async def async_connection(bench: Bench) -> Any:
    engine = create_async_engine(bench.url)
    async with engine.begin() as made:
        yield made
    await engine.dispose()


@asynccontextmanager
async def async_scoped(bench: Bench) -> Any:
    engine = create_async_engine(bench.url)
    made = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    yield made
    await made.commit()
    await made.remove()
    await engine.dispose()


@asynccontextmanager
async def asyncpg_session(bench: Bench) -> Any:
    """As in an application that has SQLAlchemy on asyncpg."""
    engine = create_async_engine(make_url(bench.url).set(drivername="postgresql+asyncpg"))
    async with AsyncSession(engine) as made, made.begin():
        yield made
    await engine.dispose()


@asynccontextmanager
async def async_raw(bench: Bench) -> Any:
    async with await psycopg.AsyncConnection.connect(plain_url(bench)) as made:
        for kind in ("jsonb", "timestamptz", "int8"):
            made.adapters.register_loader(kind, TextLoader)
        yield made


@asynccontextmanager
async def async_autocommit(bench: Bench) -> Any:
    url = plain_url(bench)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as made:
        yield made


ASYNC_KINDS = [
    *(async_session, async_connection, async_scoped, asyncpg_session),
    *(async_raw, async_autocommit),
]
