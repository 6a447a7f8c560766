"""Oban for Python as its documents run it: asyncio, a limit per queue, woken by NOTIFY."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from oban import Oban, worker
from oban.job import Job
from oban.schema import install as install_schema
from psycopg_pool import AsyncConnectionPool

from dev.benchmarks.marks import gather, mark, now
from dev.benchmarks.peers.verbs import DATABASE, EFFECT, WARM, Instants, answer, aspread

AT_ONCE = 1_000
POOL = 10
QUEUE = "default"
_pools: list[AsyncConnectionPool[Any]] = []


@worker(queue=QUEUE)
class Noop:
    """Nothing."""

    async def process(self, job: Job) -> None:
        """Mark it."""
        mark(job.args["i"], now())


@worker(queue=QUEUE)
class Insert:
    """Write one row."""

    async def process(self, job: Job) -> None:
        """Write and mark it."""
        started = now()
        async with _pools[0].connection() as connection:
            await connection.execute(EFFECT.format("%s"), [job.args["i"]])
        mark(job.args["i"], started)


NOOP: Any = Noop  # the decorator has added ``new``
WORKERS: dict[str, Any] = {"noop": NOOP, "insert": Insert}


@asynccontextmanager
async def _oban(**options: Any) -> AsyncIterator[Oban]:
    pool = await Oban.create_pool(DATABASE, min_size=POOL, max_size=POOL)
    try:
        async with Oban(pool=pool, **options) as oban:
            yield oban
    finally:
        await pool.close()


async def install() -> None:
    """Make its tables."""
    pool = await Oban.create_pool(DATABASE)
    await install_schema(pool)
    await pool.close()


async def enqueue(n: int, handler: str, first: int = 0) -> None:
    """Enqueue by its bulk call."""
    async with _oban() as oban:
        await _enqueue(oban, n, handler, first)


async def bulk(n: int, size: int = AT_ONCE) -> float:
    """Return the seconds that the bulk call takes for n jobs, ``size`` a call: a transaction."""
    async with _oban() as oban:
        await _enqueue(oban, WARM, "noop")
        started = now()
        await _enqueue(oban, n, "noop", size=size)
        return (now() - started) / 1e9


async def _enqueue(oban: Oban, n: int, handler: str, first: int = 0, size: int = AT_ONCE) -> None:
    make = WORKERS[handler].new
    for start in range(first, first + n, size):
        indices = range(start, min(first + n, start + size))
        await oban.enqueue_many([make({"i": i}) for i in indices])


async def single(n: int) -> float:
    """Return the seconds that n calls take, one after the other."""
    async with _oban() as oban:
        for _ in range(WARM):
            await oban.enqueue(NOOP.new({"i": 0}))
        started = now()
        for i in range(n):
            await oban.enqueue(NOOP.new({"i": i}))
        return (now() - started) / 1e9


async def latency(n: int, gap_s: float, warm: list[int]) -> Instants:
    """Enqueue one by one; each call is its transaction."""
    begun, committed = [], []
    async with _oban() as oban:
        for i in warm:
            await oban.enqueue(NOOP.new({"i": i}))
        async for i in aspread(n, gap_s):
            begun.append(now())
            await oban.enqueue(NOOP.new({"i": i}))
            committed.append(now())
    return begun, committed


async def work(limit: int) -> None:
    """One worker process."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with AsyncConnectionPool(
        DATABASE, min_size=POOL, max_size=POOL, kwargs={"autocommit": True}
    ) as effects:
        _pools.append(effects)
        gather("oban")
        async with _oban(queues={QUEUE: limit}):
            await ended.wait()


if __name__ == "__main__":
    answer(install, enqueue, bulk, single, latency, work)
