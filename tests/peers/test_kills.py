"""What a killed worker costs elsewhere: the row of the comparison, seen, each with its defaults.

Only waiting is shortened: who has to look for the lost job is made to look now.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tasks_app.embedded.stack import Stack
from tests.clock import until
from tests.peers.shops import Shop, programs_of

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(300, method="thread")]

SITTING = """
import os, pathlib, time

def sit():
    with open("runs", "a") as runs:
        runs.write("run\\n")
    while not pathlib.Path("enough").exists():
        time.sleep(0.05)
"""
PGQUEUER = """
import asyncio, os, sys
from datetime import timedelta
import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from shop.sitting import sit

async def connect():
    path = {"search_path": "guide_peer"}
    return await asyncpg.connect(os.environ["PGDSN"], server_settings=path)

async def work(mode):
    pgq = PgQueuer(AsyncpgDriver(await connect()))

    @pgq.entrypoint("sit")
    async def sits(job: Job) -> None:
        await asyncio.to_thread(sit)

    @pgq.entrypoint("fail")
    async def fails(job: Job) -> None:
        raise ValueError

    await pgq.run(
        batch_size=1,
        dequeue_timeout=timedelta(seconds=3),
        heartbeat_timeout=timedelta(seconds=1),
        mode=QueueExecutionMode(mode),
    )

async def start():
    queries = Queries(AsyncpgDriver(await connect()))
    await queries.install()
    await queries.enqueue(["sit", "fail"], [None, None], [0, 0])

async def look():
    connection = await connect()
    print(await connection.fetchval("SELECT count(*) FROM pgqueuer"))
    log = "SELECT entrypoint, status FROM pgqueuer_log WHERE status IN ('successful', 'exception')"
    print(*sorted(f"{name} {status}" for name, status in await connection.fetch(log)), sep="\\n")

if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
"""
Make = Callable[[str], Shop]


@pytest.fixture
def make(engine: Engine, stack: Stack, tmp_path: Path) -> Iterator[Make]:
    """A shop in a system's environment, or in ours; its broker is empty."""
    schemas = []

    def build(package: str) -> Shop:
        ours = package == "celery"
        programs = Path(sys.executable).parent if ours else programs_of(package)
        shop = Shop(tmp_path, programs, engine, stack.urls.broker)
        shop.run("import os, redis; redis.Redis.from_url(os.environ['REDIS']).flushdb()")
        schemas.append(shop.schema("guide_peer"))
        schemas[-1].__enter__()
        shop.write(sitting=SITTING)
        return shop

    yield build
    for schema in schemas:
        schema.__exit__(None, None, None)


def kill_while_it_runs(shop: Shop, *worker: str, ready: Callable[[], bool] = lambda: True) -> None:
    """Kill the worker, and what it started, with SIGKILL when it runs the job and is `ready`."""
    with shop.serving(*worker) as process:
        until(lambda: runs(shop) == 1 and ready(), 30, "a run")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        process.wait(10)


def runs(shop: Shop) -> int:
    noted = shop.folder / "runs"
    return len(noted.read_text().splitlines()) if noted.exists() else 0


@pytest.mark.parametrize(("retry", "becomes"), [("None", "failed"), ("Retry(max=1)", "queued")])
def test_rq_fails_the_job_or_retries_it_at_a_later_maintenance(
    make: Make, retry: str, becomes: str
) -> None:
    shop = make("rq")
    begin = "import os\nfrom redis import Redis\nfrom rq import Queue, Retry\n"
    begin += "queue = Queue(connection=Redis.from_url(os.environ['REDIS']))\n"
    shop.run(f"{begin}queue.enqueue('shop.sitting.sit', job_id='sits', retry={retry})")
    kill_while_it_runs(shop, "-m", "rq.cli", "worker", "--url", shop.environment["REDIS"])
    look = "print(queue.fetch_job('sits').get_status().value)\n"
    assert shop.run(begin + look) == "started\n"
    clean = "import time\nqueue.started_job_registry.cleanup(time.time() + 1_000_000)\n"
    assert shop.run(begin + clean + look) == f"{becomes}\n"


def test_procrastinate_leaves_the_job_doing_and_ends_it_by_its_id(make: Make) -> None:
    shop = make("procrastinate")
    shop.write(
        jobs="from procrastinate import App, PsycopgConnector\nfrom shop.sitting import sit\n"
        "app = App(connector=PsycopgConnector())\napp.task(name='sit')(sit)\n"
    )
    begin = "import psycopg\nfrom shop.jobs import app\n"
    shop.run(
        f"{begin}with app.open():\n    app.schema_manager.apply_schema()\n"
        "    app.configure_task('sit').defer()"
    )
    worker = ("-m", "procrastinate", "--app=shop.jobs.app", "worker")
    kill_while_it_runs(shop, *worker)
    with shop.serving(*worker, "--one-shot") as second:
        second.wait(30)

    query = "SELECT status, worker_id IS NULL FROM procrastinate_jobs"
    look = f"{begin}with psycopg.connect() as c: print(*c.execute({query!r}).fetchone())"
    assert shop.run(look).startswith("doing ")
    assert runs(shop) == 1
    ended = "SELECT procrastinate_finish_job_v1(id, 'succeeded', false) FROM procrastinate_jobs"
    shop.run(f"{begin}with psycopg.connect() as c: c.execute({ended!r})")
    assert shop.run(look).startswith("succeeded ")


def test_pgqueuer_runs_the_job_again_when_its_heartbeat_is_old_and_deletes_a_failed_one(
    make: Make,
) -> None:
    shop = make("pgqueuer")
    shop.write(jobs=PGQUEUER)
    shop.run("import asyncio, shop.jobs\nasyncio.run(shop.jobs.start())")
    kill_while_it_runs(shop, "-m", "shop.jobs", "continuous")
    (shop.folder / "enough").touch()
    look = "import asyncio, shop.jobs\nasyncio.run(shop.jobs.look())"
    ended = ["0", "fail exception", "sit successful"]
    with shop.serving("-m", "shop.jobs", "continuous"):
        until(lambda: shop.run(look).splitlines() == ended, 30, "the end of both")
    assert runs(shop) == 2


@pytest.mark.parametrize(("late", "kept"), [(False, 0), (True, 1)])
def test_celery_has_forgotten_the_message_unless_it_acknowledges_late(
    make: Make, late: bool, kept: int
) -> None:
    shop = make("celery")
    shop.write(
        jobs="import os\nfrom celery import Celery\nfrom shop.sitting import sit\n"
        "app = Celery('shop', broker=os.environ['REDIS'])\n"
        f"app.task(name='sit', acks_late={late})(sit)\n"
    )
    shop.run("from shop.jobs import app\napp.send_task('sit')")
    look = (
        "import os\nfrom redis import Redis\nredis = Redis.from_url(os.environ['REDIS'])\n"
        "print(redis.llen('celery') + redis.hlen('unacked'))"
    )
    # The worker's main process acknowledges a moment after its child has begun.
    acknowledged = (lambda: True) if late else (lambda: int(shop.run(look)) == 0)
    worker = ("-m", "celery", "-A", "shop.jobs", "worker", "-c", "1")
    kill_while_it_runs(shop, *worker, ready=acknowledged)

    assert int(shop.run(look)) == kept
