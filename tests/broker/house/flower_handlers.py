"""Handlers whose tasks are looked at in Flower."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from sqlalchemy import text

from tasks_app import Cancel, Fail, Skip, TaskContext, handler

SECRET = "canary-4711"


@handler("fine")
def fine(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
    return {"points": 10, "token": SECRET}


@handler("wobbly", retry="0.1s,0.1s")
def wobbly(ctx: TaskContext, payload: dict[str, Any]) -> None:
    if ctx.attempt == 1:
        raise ValueError(f"no credit for {payload.get('card')}")


@handler("broken", max_attempts=1)
def broken(ctx: TaskContext, payload: dict[str, Any]) -> None:
    if "fixed" in os.environ.get("HOUSE", "") or payload.get("fixed"):
        return
    raise ValueError(f"card {payload.get('card')} refused")


@handler("row", max_attempts=1)
def row(ctx: TaskContext, payload: dict[str, Any]) -> None:
    values = {"id": ctx.task_id, "note": payload["card"] + " and more"}
    ctx.session.execute(text("CREATE TEMP TABLE IF NOT EXISTS one (id bigint, note text UNIQUE)"))
    for _ in range(2):
        ctx.session.execute(text("INSERT INTO one VALUES (:id, :note)"), values)


@handler("mended", max_attempts=1)
def mended(ctx: TaskContext) -> None:
    if ctx.attempt == 1:
        raise LookupError("not yet")


@handler("stops")
def stops(ctx: TaskContext, payload: dict[str, Any]) -> None:
    raise {"cancel": Cancel, "skip": Skip, "fail": Fail}[payload["how"]]("as told")


@handler("killer", retry="0.1s,0.1s")
def killer(ctx: TaskContext) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@handler("patient")
def patient(ctx: TaskContext) -> None:
    ends = time.monotonic() + 60
    while not ctx.cancelled and time.monotonic() < ends:
        time.sleep(0.02)
    raise Cancel("as you wish")
