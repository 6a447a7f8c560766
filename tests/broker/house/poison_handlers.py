"""Handlers that kill their process at every run, and good ones beside them.

Each run first leaves a line in the file that ``STARTS`` names, past every transaction.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zoo
from poisons import HANGS, MAX_ATTEMPTS, POISONS
from sqlalchemy import text

from tasks_app import AsyncTaskContext, TaskContext, handler

EFFECT = text("INSERT INTO effect (task_id, note) VALUES (:id, :note)")


def note_start(ctx: TaskContext) -> None:
    with Path(os.environ["STARTS"]).open("a") as file:
        file.write(f"{ctx.task_id}\n")


def endless_in_c(ctx: TaskContext) -> None:
    re.match(r"(a+)+b", "a" * 64)


def poisons(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(ctx: TaskContext) -> Any:
        note_start(ctx)
        return function(ctx)

    return run


for _name in POISONS:
    _found = zoo.KINDS.get(f"zoo.{_name}")
    handler(
        f"poison.{_name}",
        max_attempts=MAX_ATTEMPTS,
        retry="0.1s,0.1s",
        hard_timeout=0.5 if _name in HANGS else 30,
    )(poisons(_found.function if _found else endless_in_c))


@handler("good", max_attempts=1)
def good(ctx: TaskContext) -> None:
    note_start(ctx)
    ctx.session.execute(EFFECT, {"id": ctx.task_id, "note": "good"})


@handler("good.async", max_attempts=1)
async def good_async(ctx: AsyncTaskContext) -> None:
    note_start(ctx)
    await ctx.session.execute(EFFECT, {"id": ctx.task_id, "note": "good"})


@handler("good.long", max_attempts=1)
def good_long(ctx: TaskContext, payload: dict[str, str]) -> None:
    note_start(ctx)
    ctx.session.execute(EFFECT, {"id": ctx.task_id, "note": "good"})
    while not Path(payload["go"]).exists():
        time.sleep(0.02)


@handler("hog", max_attempts=MAX_ATTEMPTS, retry="0.1s,0.1s")
def hog(ctx: TaskContext, payload: dict[str, str]) -> None:
    """Wait for a word, and take all the memory that there is; first in line when it runs out."""
    note_start(ctx)
    Path("/proc/self/oom_score_adj").write_text("500")
    while not Path(payload["go"]).exists():
        time.sleep(0.02)
    hoard = []
    while True:
        hoard.append(b"x" * 5_000_000)
