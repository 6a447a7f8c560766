"""A handler that notes each call of a dependency that is down, in a file of all processes."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from tasks_app import Breaker, handler

_LOG = os.open(os.environ["CALL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_BANK = Breaker("bank", least=40, open_for=timedelta(hours=1))


@handler("pay", depends_on=_BANK, dependency_errors=[ConnectionError], dependency_retry="1h")
def pay(ctx: Any, payload: dict[str, Any]) -> None:
    if payload.get("up"):
        return
    os.write(_LOG, f"{os.getpid()} {ctx.task_id}\n".encode())
    raise ConnectionError("the bank does not answer")
