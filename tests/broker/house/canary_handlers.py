"""Handlers that get secrets, compute with them, and fail in all the ways in which secrets leak."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from pydantic import BaseModel
from sqlalchemy import text

from tasks_app import AsyncTaskContext, TaskContext, handler

INSERT = text("INSERT INTO effect (task_id, note) VALUES (:id, :note)")
ONCE = "0.1s"


class Order(BaseModel):
    card: int


@handler("canary.ok")
def ok(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
    ctx.session.execute(INSERT, {"id": ctx.task_id, "note": payload["card"]})
    return {"echo": payload["card"], "list": [payload["card"]]}


@handler("canary.raises", retry=ONCE)
def raises(ctx: TaskContext, payload: dict[str, Any]) -> None:
    local = payload["card"] + " in a local variable"
    raise ValueError(f"card {payload['card']} refused\nsecond line: {local}")


@handler("canary.twice", retry=ONCE)
def twice(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
    if ctx.attempt == 1:
        raise ValueError(f"card {payload['card']} refused")
    return {"echo": payload["card"]}


@handler("canary.local", retry=ONCE)
def local(ctx: TaskContext, payload: dict[str, Any]) -> float:
    card = payload["card"]
    return len(card) / 0


@handler("canary.sql", retry=ONCE)
def sql(ctx: TaskContext, payload: dict[str, Any]) -> None:
    ctx.session.execute(text("SELECT 1 / CAST(:zero AS int), :card"), {"zero": 0, **payload})


@handler("canary.write", retry=ONCE)
def write(ctx: TaskContext, payload: dict[str, Any]) -> None:
    ctx.write("SELECT 1 / CAST(%(zero)s AS int), %(card)s::text", {"zero": 0, **payload})


@handler("canary.async", retry=ONCE)
async def asynchronous(ctx: AsyncTaskContext, payload: dict[str, Any]) -> None:
    await asyncio.sleep(0)
    await ctx.session.execute(text("SELECT 1 / CAST(:zero AS int), :card"), {"zero": 0, **payload})


@handler("canary.result", max_attempts=1)
def result(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
    return {"bad": float("nan"), "text": payload["card"] + "\x00", "set": {payload["card"]}}


@handler("canary.typed", max_attempts=1)
def typed(ctx: TaskContext, payload: Order) -> None:
    """Never get it: it is of another type."""


@handler("canary.late", timeout="200ms", max_attempts=1)
def late(ctx: TaskContext, payload: dict[str, Any]) -> None:
    card = payload["card"]
    while card:
        time.sleep(0.01)


@handler("canary.dies", retry=ONCE)
def dies(ctx: TaskContext, payload: dict[str, Any]) -> None:
    card = payload["card"]
    os.kill(os.getpid(), signal.SIGKILL if card else 0)
