"""Members of groups, what they call, and a long way in chunks; all leave a row for each run."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from tasks_app import Fail, handler

RETRY = ",".join(["0s"] * 50)
_MEMBER = text("INSERT INTO group_effect (task_id) VALUES (:id)")
_CALL = text("INSERT INTO group_call VALUES (:name, :id, :group_id, :succeeded, :failed)")
_SEEN = text("UPDATE group_item SET seen = seen + 1 WHERE id = ANY(:ids)")


@handler("member.plain", retry=RETRY)
def plain(ctx: Any, payload: dict[str, Any]) -> int:
    return int(payload["n"])


@handler("member.effects", retry=RETRY)
def effects(ctx: Any, payload: dict[str, Any]) -> int:
    ctx.session.execute(_MEMBER, {"id": ctx.task_id})
    return int(payload["n"])


@handler("member.writes", retry=RETRY)
def writes(ctx: Any, payload: dict[str, Any]) -> int:
    ctx.write("INSERT INTO group_effect (task_id) VALUES (%s)", (ctx.task_id,))
    return int(payload["n"])


@handler("member.async", retry=RETRY)
async def asynchronous(ctx: Any, payload: dict[str, Any]) -> int:
    await ctx.session.execute(_MEMBER, {"id": ctx.task_id})
    return int(payload["n"])


@handler("member.fails", retry=RETRY)
def fails(ctx: Any) -> None:
    raise Fail("it always does")


@handler("group.then", retry=RETRY)
def then(ctx: Any) -> None:
    _called(ctx)


@handler("group.else", retry=RETRY)
def otherwise(ctx: Any) -> None:
    _called(ctx)


def _called(ctx: Any) -> None:
    told = {"name": ctx.name, "id": ctx.task_id, **ctx.headers}
    ctx.session.execute(_CALL, told)


@handler("chunks", retry=RETRY)
def chunks(ctx: Any, payload: dict[str, Any]) -> None:
    statement = "SELECT id FROM group_item WHERE id % :of = :n"
    for page in ctx.chunks(statement, key="id", size=20, params=payload):
        ctx.session.execute(_SEEN, {"ids": [row.id for row in page]})
