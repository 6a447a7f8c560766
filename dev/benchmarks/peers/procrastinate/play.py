"""Procrastinate as its documents run it: an async app on a pool of connections."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.jobs import JobDeferrer

from dev.benchmarks.marks import gather, mark, now
from dev.benchmarks.peers.verbs import DATABASE, EFFECT, WARM, Instants, answer, spread

AT_ONCE = 1_000
POOL = 12

connector = PsycopgConnector(conninfo=DATABASE, min_size=POOL, max_size=POOL)
app = App(connector=connector)


@app.task(name="noop")
async def noop(i: int) -> None:
    """Nothing."""
    mark(i, now())


@app.task(name="insert")
async def insert(i: int) -> None:
    """Write one row."""
    started = now()
    async with connector.pool.connection() as connection:
        await connection.execute(EFFECT.format("%s"), [i])
    mark(i, started)


def _sync() -> App:
    return App(connector=SyncPsycopgConnector(conninfo=DATABASE))


def install() -> None:
    """Make its tables."""
    with _sync().open() as opened:
        opened.schema_manager.apply_schema()


def enqueue(n: int, handler: str, first: int = 0) -> None:
    """Defer by its bulk call."""
    with _sync().open() as opened:
        _enqueue(opened.configure_task(handler), n, first)


def bulk(n: int, size: int = AT_ONCE) -> float:
    """Return the seconds that the bulk call takes for n jobs, ``size`` a call: a transaction."""
    with _sync().open() as opened:
        deferrer = opened.configure_task("noop")
        _enqueue(deferrer, WARM)
        started = now()
        _enqueue(deferrer, n, size=size)
        return (now() - started) / 1e9


def single(n: int) -> float:
    """Return the seconds that n calls take, one after the other."""
    with _sync().open() as opened:
        deferrer = opened.configure_task("noop")
        for _ in range(WARM):
            deferrer.defer(i=0)
        started = now()
        for i in range(n):
            deferrer.defer(i=i)
        return (now() - started) / 1e9


def latency(n: int, gap_s: float, warm: list[int]) -> Instants:
    """Defer one by one; each call is its transaction."""
    begun, committed = [], []
    with _sync().open() as opened:
        deferrer = opened.configure_task("noop")
        for i in warm:
            deferrer.defer(i=i)
        for i in spread(n, gap_s):
            begun.append(now())
            deferrer.defer(i=i)
            committed.append(now())
    return begun, committed


def _enqueue(deferrer: JobDeferrer, n: int, first: int = 0, size: int = AT_ONCE) -> None:
    for start in range(first, first + n, size):
        indices = range(start, min(first + n, start + size))
        deferrer.batch_defer(*({"i": i} for i in indices))


async def work(concurrency: int) -> None:
    """One worker process."""
    async with app.open_async():
        gather("procrastinate")
        await app.run_worker_async(concurrency=concurrency)


if __name__ == "__main__":
    answer(install, enqueue, bulk, single, latency, work)
