"""A handler whose payload and result are encrypted; its folder is put on PYTHONPATH."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from tasks_app import TaskContext, handler

EFFECT = text("INSERT INTO effect (task_id, note) VALUES (:id, :note)")


@handler("secret", encrypt=True)
def secret(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
    ctx.session.execute(EFFECT, {"id": ctx.task_id, "note": str(payload["n"])})
    return {"n": payload["n"]}
