"""Tasks of kept steps, whose processes die at a moment that their payload names."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from sqlalchemy import event, text

from tasks_app import handler

RETRY = ",".join(["0s"] * 50)
_CALLED = text("""
    INSERT INTO step_effect (task_id, name, late)
    SELECT :id, :name, EXISTS (SELECT FROM task_step WHERE task_id = :id AND name = :name)
""")
_ENDED = text("INSERT INTO step_effect (task_id, name) VALUES (:id, 'end')")


def _die_at(moment: str, ctx: Any, payload: dict[str, Any]) -> None:
    """Kill this process, the first time that a task comes to its moment."""
    if payload.get("dies") == moment:
        try:
            os.close(os.open(f"{os.environ['GATE_LOG']}.{ctx.task_id}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def _call(ctx: Any, name: str, key: object) -> dict[str, Any]:
    """Note the call outside, as a carrier would, and return how to write the effect."""
    with Path(os.environ["GATE_LOG"]).open("a") as log:
        log.write(f"{ctx.task_id} {name} {key}\n")
    return {"id": ctx.task_id, "name": name}


@handler("step.plain", retry=RETRY)
def plain(ctx: Any, payload: dict[str, Any]) -> None:
    def order(name: str, key: object) -> str:
        ctx.session.execute(_CALLED, _call(ctx, name, key))
        _die_at(f"function {name}", ctx, payload)
        return name

    def die_at_commit(_: object) -> None:
        _die_at(f"commit {doing[-1]}", ctx, payload)

    doing = [""]
    event.listen(ctx.session, "before_commit", die_at_commit)
    for name in payload["steps"]:
        doing.append(name)
        _die_at(f"before {name}", ctx, payload)
        assert ctx.step(name, order, name, key=ctx.step_key(name)) == name
        _die_at(f"behind {name}", ctx, payload)
    doing.append("nap")
    ctx.sleep("50ms", name="nap")
    _die_at("behind nap", ctx, payload)
    doing.append("end")
    ctx.session.execute(_ENDED, {"id": ctx.task_id})


@handler("step.async", retry=RETRY)
async def awaited(ctx: Any, payload: dict[str, Any]) -> None:
    async def order(name: str, key: object) -> str:
        await ctx.session.execute(_CALLED, _call(ctx, name, key))
        _die_at(f"function {name}", ctx, payload)
        return name

    def die_at_commit(_: object) -> None:
        _die_at(f"commit {doing[-1]}", ctx, payload)

    doing = [""]
    event.listen(ctx.session.sync_session, "before_commit", die_at_commit)
    for name in payload["steps"]:
        doing.append(name)
        _die_at(f"before {name}", ctx, payload)
        assert await ctx.step(name, order, name, key=ctx.step_key(name)) == name
        _die_at(f"behind {name}", ctx, payload)
    doing.append("nap")
    await ctx.sleep("50ms", name="nap")
    _die_at("behind nap", ctx, payload)
    doing.append("end")
    await ctx.session.execute(_ENDED, {"id": ctx.task_id})
