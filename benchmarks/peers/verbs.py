"""``python -m benchmarks.peers.<system>.play <verb> [<json>]``: carry it out, answer in JSON."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

DATABASE = os.environ.get("BENCH_DATABASE_URL", "")
BROKER = os.environ.get("BENCH_BROKER_URL", "")
EFFECT = "INSERT INTO effect (i) VALUES ({})"
"""What the handlers that write do."""


def answer(*verbs: Callable[..., Any]) -> None:
    """Run the verb that the command line names, async or not, and print what it returns."""
    known = {verb.__name__: verb for verb in verbs}
    arguments = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    result = known[sys.argv[1]](**arguments)
    if inspect.iscoroutine(result):
        result = _run(result)
    if result is not None:
        print(json.dumps(result), flush=True)


def _run(coroutine: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)
