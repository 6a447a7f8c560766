"""A handler that notes when it began and ended, in a file that outlives its process."""

from __future__ import annotations

import os
import time
from typing import Any

from tasks_app import handler

_LOG = os.open(os.environ["GATE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _note(word: str, task_id: int, key: str) -> None:
    os.write(_LOG, f"{word} {time.time_ns()} {os.getpid()} {task_id} {key}\n".encode())


@handler("gated", retry=",".join(["1s"] * 20))
def gated(ctx: Any, payload: dict[str, Any]) -> None:
    _note("begin", ctx.task_id, payload["key"])
    time.sleep(payload.get("seconds", 0.0))
    _note("end", ctx.task_id, payload["key"])
