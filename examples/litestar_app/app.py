"""An order and its task in one transaction: uvicorn litestar_app.app:app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, asgi, get, post
from litestar.di import NamedDependency, Provide
from litestar.exceptions import ClientException, NotFoundException
from litestar.params import FromPath, FromQuery
from litestar.types import Receive, Scope, Send
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from litestar_app.models import Base, Order
from litestar_app.tasks import Placed, confirm_order
from tasks_app import Settings, acreate_task, aget_task
from tasks_app.dashboard.app import dashboard_app

settings = Settings()
engine = create_async_engine(settings.database)
sessions = async_sessionmaker(engine, expire_on_commit=False)
pages: Any = dashboard_app(settings)


@asynccontextmanager
async def lifespan(_: Litestar) -> AsyncIterator[None]:
    """Make the application's own tables; a real one has migrations."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


async def transaction() -> AsyncIterator[AsyncSession]:
    """Give a request its transaction: it commits before the answer, an exception rolls it back."""
    async with sessions.begin() as session:
        yield session


@post("/orders")
async def place(item: FromQuery[str], session: NamedDependency[AsyncSession]) -> dict[str, int]:
    """Insert an order and its task: both exist, or neither."""
    order = Order(item=item)
    session.add(order)
    await session.flush()  # gives order.id
    task_id = await acreate_task(session, confirm_order, Placed(order_id=order.id))
    if item == "unicorn":
        raise ClientException("We have none.", status_code=409)  # and no order, and no task
    return {"order_id": order.id, "task_id": int(task_id)}


@get("/orders/{order_id:int}")
async def show(order_id: FromPath[int], session: NamedDependency[AsyncSession]) -> dict[str, Any]:
    """Show an order."""
    order = await session.get(Order, order_id)
    if order is None:
        raise NotFoundException
    return {"item": order.item, "confirmed": order.confirmed}


@get("/order-tasks/{task_id:int}")
async def task(task_id: FromPath[int], session: NamedDependency[AsyncSession]) -> dict[str, Any]:
    """Say where the task is."""
    found = await aget_task(session, task_id)
    if found is None:
        raise NotFoundException
    return {"state": found.state, "error": found.error}


@asgi("/tasks", is_mount=True, copy_scope=True)
async def dashboard(scope: Scope, receive: Receive, send: Send) -> None:
    """Give the dashboard the path that was asked for: Litestar cuts the prefix off."""
    path = f"/tasks/{scope['path'].strip('/')}"
    await pages({**scope, "root_path": "/tasks", "path": path}, receive, send)


app = Litestar(
    [place, show, task, dashboard],
    dependencies={"session": Provide(transaction)},
    lifespan=[lifespan],
)
