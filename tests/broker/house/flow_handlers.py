"""Steps of flows; each leaves a row for each run, and hands its own name on."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from tasks_app import Fail, handler

RETRY = ",".join(["0s"] * 50)
_STEP = text("INSERT INTO flow_effect (task_id, needed) VALUES (:id, :needed)")
_BROKEN = text("SELECT count(*) FROM flow_broken")


@handler("flow.step", retry=RETRY)
def step(ctx: Any, payload: dict[str, Any]) -> str:
    needed = ctx.needs()
    if payload.get("fails") and ctx.session.execute(_BROKEN).scalar():
        raise Fail("it is not mended yet")
    results = [each.result for each in needed.values() if each.end == "success"]
    ctx.session.execute(_STEP, {"id": ctx.task_id, "needed": results})
    return str(payload["name"])


@handler("flow.plain", retry=RETRY)
def plain(ctx: Any, payload: dict[str, Any]) -> str:
    return str(payload["name"])


@handler("flow.list", retry=RETRY)
def list_(ctx: Any, payload: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": f"item {n}"} for n in range(payload["items"])]
