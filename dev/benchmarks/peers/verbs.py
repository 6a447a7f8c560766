"""``python -m dev.benchmarks.peers.<system>.play <verb> [<json>]``: do it, answer in JSON."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

DATABASE = os.environ.get("BENCH_DATABASE_URL", "")
BROKER = os.environ.get("BENCH_BROKER_URL", "")
EFFECT = "INSERT INTO effect (i) VALUES ({})"
"""What the handlers that write do."""
EFFECTS = "INSERT INTO effect (i) SELECT unnest(CAST({} AS bigint[]))"
"""What those do that are called for many tasks."""
WARM = 50
"""Calls before the clock starts: connections, caches and plans are there."""


Instants = tuple[list[int], list[int]]
"""When each call of a producer began, and when its commit returned."""


def spread(n: int, gap_s: float) -> Iterator[int]:
    """Yield 0 … n - 1, each ``gap_s`` after the one before, asleep in between."""
    start = time.monotonic()
    for i in range(n):
        time.sleep(max(0.0, start + i * gap_s - time.monotonic()))
        yield i


async def aspread(n: int, gap_s: float) -> AsyncIterator[int]:
    """Do the same in a loop of asyncio."""
    start = time.monotonic()
    for i in range(n):
        await asyncio.sleep(max(0.0, start + i * gap_s - time.monotonic()))
        yield i


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
