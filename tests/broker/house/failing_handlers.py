"""Handlers that fail, and say so in the log."""

from __future__ import annotations

import logging
import os
import signal

from tasks_app import TaskContext, handler


@handler("fails.always", retry="10ms,10ms")
def fails_always(ctx: TaskContext, payload: dict[str, str]) -> None:
    ctx.log.info("asking")
    raise ConnectionError(f"the provider does not answer {payload['who']}")


@handler("fails.deadly", retry="0s", queue="deadly")
def fails_deadly(ctx: TaskContext) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@handler("fails.not")
def fails_not(ctx: TaskContext) -> None:
    logging.getLogger("shop").info("as ever")
