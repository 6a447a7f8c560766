"""An order and its task in one transaction: uvicorn fastapi_app.app:app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from fastapi_app.models import Base, Order
from fastapi_app.tasks import Placed, confirm_order
from tasks_app import Settings, acreate_task, aget_task
from tasks_app.dashboard.app import dashboard_app

settings = Settings()
url = make_url(settings.database)
writes = create_async_engine(url.set(drivername="postgresql+psycopg"))
reads = create_async_engine(url.set(drivername="postgresql+asyncpg"))
sessions = async_sessionmaker(writes, expire_on_commit=False)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Make the application's own tables; a real one has migrations."""
    async with writes.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await reads.dispose()
    await writes.dispose()


async def transaction() -> AsyncIterator[AsyncSession]:
    """Give a request its transaction; an exception rolls it back."""
    async with sessions.begin() as session:
        yield session


# scope="function": it commits before the answer is sent, not after.
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]
app = FastAPI(lifespan=lifespan)
app.mount("/tasks", dashboard_app(settings))


@app.post("/orders", status_code=201)
async def place(item: str, session: Transaction) -> dict[str, int]:
    """Insert an order and its task: both exist, or neither."""
    order = Order(item=item)
    session.add(order)
    await session.flush()  # gives order.id
    task_id = await acreate_task(session, confirm_order, Placed(order_id=order.id))
    if item == "unicorn":
        raise HTTPException(409, "We have none.")  # and no order, and no task
    return {"order_id": order.id, "task_id": int(task_id)}


@app.get("/orders/{order_id}")
async def show(order_id: int) -> dict[str, Any]:
    """Read on asyncpg."""
    async with reads.connect() as connection:
        found = await connection.execute(
            text("SELECT item, confirmed FROM orders WHERE id = :id"), {"id": order_id}
        )
        row = found.mappings().one_or_none()
    if row is None:
        raise HTTPException(404)
    return dict(row)


@app.get("/order-tasks/{task_id}")
async def task(task_id: int, session: Transaction) -> dict[str, Any]:
    """Say where the task is."""
    found = await aget_task(session, task_id)
    if found is None:
        raise HTTPException(404)
    return {"state": found.state, "error": found.error}
