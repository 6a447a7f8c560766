"""PGQueuer as its own benchmark runs it: asyncpg, uvloop, async handlers."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.models import Job

from dev.benchmarks.marks import gather, mark, now
from dev.benchmarks.peers.verbs import DATABASE, EFFECT, WARM, Instants, answer, aspread

AT_ONCE = 1_000


async def _queries() -> Queries:
    return Queries(AsyncpgDriver(await asyncpg.connect(DATABASE)))


async def install() -> None:
    """Make its tables, durable as by default, with the vacuum settings that it advises."""
    queries = await _queries()
    await queries.install()
    await queries.optimize_autovacuum()


async def enqueue(n: int, handler: str, first: int = 0) -> None:
    """Enqueue by its bulk call."""
    await _enqueue(await _queries(), n, handler, first)


async def bulk(n: int, size: int = AT_ONCE) -> float:
    """Return the seconds that the bulk call takes for n jobs, ``size`` a call: a transaction."""
    queries = await _queries()
    await _enqueue(queries, WARM, "noop")
    started = now()
    await _enqueue(queries, n, "noop", size=size)
    return (now() - started) / 1e9


async def single(n: int) -> float:
    """Return the seconds that n calls take, one after the other."""
    queries = await _queries()
    for _ in range(WARM):
        await queries.enqueue("noop", b'{"i": 0}')
    started = now()
    for i in range(n):
        await queries.enqueue("noop", json.dumps({"i": i}).encode())
    return (now() - started) / 1e9


async def latency(n: int, gap_s: float, warm: list[int]) -> Instants:
    """Enqueue one by one; each call is its transaction."""
    queries, begun, committed = await _queries(), [], []
    for i in warm:
        await queries.enqueue("noop", json.dumps({"i": i}).encode())
    async for i in aspread(n, gap_s):
        begun.append(now())
        await queries.enqueue("noop", json.dumps({"i": i}).encode())
        committed.append(now())
    return begun, committed


async def _enqueue(
    queries: Queries, n: int, handler: str, first: int = 0, size: int = AT_ONCE
) -> None:
    for start in range(first, first + n, size):
        indices = range(start, min(first + n, start + size))
        payloads: list[bytes | None] = [json.dumps({"i": i}).encode() for i in indices]
        await queries.enqueue([handler] * len(payloads), payloads, [0] * len(payloads))


async def work(batch: int, pool: int) -> None:
    """One worker process."""
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(DATABASE)))
    effects = await asyncpg.create_pool(DATABASE, min_size=pool, max_size=pool)

    @pgq.entrypoint("noop")
    async def noop(job: Job) -> None:
        mark(_index(job), now())

    @pgq.entrypoint("insert")
    async def insert(job: Job) -> None:
        started, index = now(), _index(job)
        await effects.execute(EFFECT.format("$1"), index)
        mark(index, started)

    @pgq.entrypoint("sleep_async")
    async def sleep_async(job: Job) -> None:
        started = now()
        await asyncio.sleep(1)
        mark(_index(job), started)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pgq.shutdown.set)
    gather("pgqueuer")
    await pgq.run(batch_size=batch)


def _index(job: Job) -> int:
    payload: dict[str, Any] = json.loads(job.payload or b"{}")
    return int(payload["i"])


if __name__ == "__main__":
    answer(install, enqueue, bulk, single, latency, work)
