"""Handlers whose module imports nothing of tasks_app but ``handler``."""

from __future__ import annotations

import time
from typing import Any

from tasks_app import handler


@handler("bare.short")
def short(ctx: Any) -> None:
    time.sleep(0.02)


@handler("bare.fails", retry="100ms, 100ms, 100ms, 100ms")
def fails(ctx: Any) -> None:
    if ctx.failures < 4:
        raise LookupError
