"""Procrastinate as its documents run it: an async app on a pool of connections."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from benchmarks.marks import gather, mark, now
from benchmarks.peers.verbs import DATABASE, EFFECT, answer

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


def enqueue(n: int, handler: str) -> None:
    """Defer by its bulk call."""
    with _sync().open() as opened:
        deferrer = opened.configure_task(handler)
        for start in range(0, n, AT_ONCE):
            deferrer.batch_defer(*({"i": i} for i in range(start, min(n, start + AT_ONCE))))


async def work(concurrency: int) -> None:
    """One worker process."""
    async with app.open_async():
        gather("procrastinate")
        await app.run_worker_async(concurrency=concurrency)


if __name__ == "__main__":
    answer(install, enqueue, work)
