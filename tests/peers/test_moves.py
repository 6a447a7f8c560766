"""Moving over from other systems."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tasks_app import Settings, acreate_task
from tasks_app.embedded.stack import Stack
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.testing import drain
from tests.docs.reading import blocks, text_of
from tests.environment import run_program
from tests.peers import play
from tests.peers.preludes import THEIRS
from tests.peers.shops import KINDS, Shop, handlers_of, programs_of

pytestmark = pytest.mark.timeout(300, method="thread")

BEFORE, AFTER = blocks(text_of("docs/from/django-celery-outbox.md"), "python")
SETTINGS = """
import os
INSTALLED_APPS = ["django_celery_outbox", "tasks_app.django"]
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ["PGDATABASE"], "HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"],
    "USER": os.environ["PGUSER"], "PASSWORD": os.environ["PGPASSWORD"],
    "OPTIONS": {"options": os.environ["PGOPTIONS"]},
}}
CELERY_OUTBOX_APP = "shop.jobs.app"
USE_TZ = True
SECRET_KEY = "of a test"
"""
SET_UP = """
import django
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from tasks_app import create_task, get_task
from tasks_app.celery_tasks import run_from_pool
from tasks_app.testing import drain

def save(order_id):
    connection.cursor().execute("INSERT INTO guide_order VALUES (%s)", [order_id])

def rows():
    found = []
    for table in ("guide_order", "celery_outbox", "task_pending"):
        cursor = connection.cursor()
        cursor.execute(f"SELECT count(*) FROM {table}")
        found.append(cursor.fetchone()[0])
    return found
"""


@pytest.fixture
def shop(engine: Engine, stack: Stack, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, programs_of("django-celery-outbox"), engine, stack.urls.broker)
    del shop.environment["TASKS_APP_DATABASE_URL"], shop.environment["TASKS_APP_IMPORTS"]
    shop.environment["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    with shop.schema("guide_peer"):
        shop.write(settings=SETTINGS, jobs=BEFORE.partition("def buy")[0])
        yield shop


@pytest.mark.test_all
def test_both_ways_of_buying_write_in_the_open_block(shop: Shop) -> None:
    said = shop.run(
        SET_UP
        + "from shop.jobs import app, send_receipt\n"
        + BEFORE.replace(BEFORE.partition("def buy")[0], "")
        + "buy_before = buy\n"
        + AFTER
        + """
call_command("migrate", "django_celery_outbox", verbosity=0)
buy_before(1)
buy(2)
print(rows())
try:
    with transaction.atomic():
        buy_before(3)
        buy(4)
        raise KeyError
except KeyError:
    print(rows())
run_from_pool(app)
[run] = drain().succeeded
print(run.name, run.result, rows())
"""
    )

    assert said.splitlines() == [
        "[2, 1, 1]",
        "[2, 1, 1]",
        "shop.send_receipt {'sent': 2} [2, 1, 0]",
    ]


PGQ_BEFORE, HANDLER, PGQ_AFTER, BARE = blocks(text_of("docs/from/pgqueuer.md"), "python")


@pytest.fixture
def orders(engine: Engine) -> Iterator[str]:
    """The shop's table; the URL of the database for drivers."""
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS guide_order"))
        connection.execute(text("CREATE TABLE guide_order (id bigint PRIMARY KEY)"))
    yield engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE guide_order"))


def test_both_new_ways_create_tasks_that_run(
    orders: str, engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HANDLERS, "specs", {})
    names: dict[str, Any] = {"acreate_task": acreate_task, "json": json, "text": text}
    names["__name__"] = "shop"
    exec(compile(HANDLER + PGQ_AFTER, "guide", "exec"), names)
    bare = dict(names)
    exec(compile(BARE, "guide", "exec"), bare)

    async def both() -> None:
        async_url = engine.url.set(drivername="postgresql+asyncpg")
        async_engine = create_async_engine(async_url)
        async with AsyncSession(async_engine) as session:
            await names["buy"](session, 1)
        await async_engine.dispose()
        connection = await asyncpg.connect(orders)
        await bare["buy"](connection, 2)
        await connection.close()

    asyncio.run(both())
    drained = drain(Settings(database_url=database_url)).assert_succeeded()

    assert [run.result for run in drained] == [{"sent": 1}, {"sent": 2}]


@pytest.mark.test_all
def test_the_way_before_is_theirs(orders: str) -> None:
    buying = f"import json\n{PGQ_BEFORE}\nawait buy(connection, queries, 1)"
    counted = "assert await connection.fetchval('SELECT count(*) FROM pgqueuer') == 2"
    path = "await connection.execute('SET search_path = guide_peer, public')"
    done = run_program(
        [programs_of("pgqueuer") / "python", Path(play.__file__)],
        input=json.dumps(
            {"prelude": THEIRS["pgqueuer"] + path, "snippets": [f"{buying}\n{counted}"]}
        ),
        env={**os.environ, "PGDSN": orders},
        timeout=60,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {}


JOBS, P_BEFORE, P_HANDLER, P_AFTER = blocks(text_of("docs/from/procrastinate.md"), "python")
ORDERS = 8
WORKER = ("-m", "procrastinate", "--app=shop.jobs.app", "worker")
BUYING = """
import psycopg
from shop.jobs import app, grant_points, send_receipt, tell_warehouse
from tasks_app import create_task

JOBS = {{"receipt": send_receipt, "points": grant_points, "warehouse": tell_warehouse}}
with app.open(), psycopg.connect() as connection:
    for order_id in {orders}:
        with connection.transaction():
            connection.execute("INSERT INTO guide_order VALUES (%s)", [order_id])
            for kind in {moved}:
                create_task(connection, JOBS[kind].name, {{"order_id": order_id}})
            for kind in {left}:
                JOBS[kind].configure(connection=connection).defer(order_id=order_id)
"""
"""An order and its three tasks in one transaction, whoever runs them."""


@pytest.fixture
def procrastinate(engine: Engine, stack: Stack, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, programs_of("procrastinate"), engine, stack.urls.broker)
    with shop.schema("guide_peer"):
        shop.write(jobs=JOBS, handlers="")
        shop.run("from shop.jobs import app\nwith app.open(): app.schema_manager.apply_schema()")
        yield shop


@pytest.mark.test_all
def test_three_tasks_move_one_by_one_while_both_run(procrastinate: Shop) -> None:
    expected: dict[tuple[str, int], str] = {}

    with procrastinate.serving(*WORKER):
        for stage in range(4):
            moved, left = KINDS[:stage], KINDS[stage:]
            orders = range(stage * ORDERS, (stage + 1) * ORDERS)
            procrastinate.write(handlers=handlers_of(P_HANDLER, moved))
            expected |= {(kind, order): "tasks_app" for kind in moved for order in orders}
            expected |= {(kind, order): "procrastinate" for kind in left for order in orders}
            with procrastinate.serving("-m", "tasks_app", "work", "-c", "1"):
                procrastinate.run(BUYING.format(orders=list(orders), moved=moved, left=left))
                procrastinate.wait_for(len(expected))

    assert procrastinate.makers() == expected
    assert set(procrastinate.done().values()) == {1}


@pytest.mark.test_all
def test_a_rollback_takes_both_systems_tasks_with_it(procrastinate: Shop) -> None:
    buying = BUYING.format(orders=[1], moved=KINDS[:1], left=KINDS[1:])
    procrastinate.run(f"{buying}            raise psycopg.Rollback\n")
    counted = procrastinate.run(
        "import psycopg\nwith psycopg.connect() as connection: print("
        "connection.execute('SELECT (SELECT count(*) FROM procrastinate_jobs)"
        " + (SELECT count(*) FROM task_pending) + (SELECT count(*) FROM guide_order)').fetchone())"
    )
    assert counted == "(0,)\n"


@pytest.mark.test_all
def test_the_guides_ways_of_buying_do_what_they_say(procrastinate: Shop) -> None:
    procrastinate.write(handlers=P_HANDLER)
    procrastinate.run(
        "import psycopg\nfrom shop.jobs import app, send_receipt\n"
        "from tasks_app import create_task\n"
        + P_BEFORE
        + "buy_before = buy\n"
        + P_AFTER
        + """
with app.open(), psycopg.connect() as connection:
    buy_before(connection, 1)
    buy(connection, 2)
    left = connection.execute("SELECT args FROM procrastinate_jobs WHERE status = 'todo'")
    assert left.fetchall() == [({"order_id": 1},)]
import shop.handlers
from tasks_app.testing import drain
drain().assert_succeeded()
"""
    )

    assert procrastinate.makers() == {("receipt", 2): "tasks_app"}


RQ_JOBS, RQ_BEFORE, RQ_HANDLER, RQ_AFTER = blocks(text_of("docs/from/rq.md"), "python")
RQ_BUYING = """
import os, sys
from redis import Redis
from rq import Queue
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from shop.jobs import grant_points, send_receipt, tell_warehouse
from tasks_app import create_task

queue = Queue(connection=Redis.from_url(os.environ["REDIS"]))
JOBS = {{"receipt": send_receipt, "points": grant_points, "warehouse": tell_warehouse}}
NAMES = {{"receipt": "receipt.send", "points": "points.grant", "warehouse": "warehouse.tell"}}
with Session(create_engine(os.environ["TASKS_APP_DATABASE_URL"])) as session:
    for order_id in {orders}:
        for kind in {moved}:
            create_task(session, NAMES[kind], {{"order_id": order_id}})
        session.commit()
        for kind in {left}:
            queue.enqueue(JOBS[kind], order_id)
"""
"""All three effects of each order: those that moved before the commit, the rest after it."""


@pytest.fixture
def rq(engine: Engine, stack: Stack, tmp_path: Path) -> Shop:
    shop = Shop(tmp_path, programs_of("rq"), engine, stack.urls.broker)
    shop.write(jobs=RQ_JOBS, handlers="")
    shop.run("import os, redis; redis.Redis.from_url(os.environ['REDIS']).flushdb()")
    return shop


@pytest.mark.test_all
def test_three_jobs_move_one_by_one_while_both_run(rq: Shop) -> None:
    worker = ("-m", "rq.cli", "worker", "--url", rq.environment["REDIS"], "default")
    expected: dict[tuple[str, int], str] = {}

    with rq.serving(*worker):
        for stage in range(4):
            moved, left = KINDS[:stage], KINDS[stage:]
            orders = range(stage * ORDERS, (stage + 1) * ORDERS)
            rq.write(handlers=handlers_of(RQ_HANDLER, moved))
            expected |= {(kind, order): "tasks_app" for kind in moved for order in orders}
            expected |= {(kind, order): "rq.cli" for kind in left for order in orders}
            with rq.serving("-m", "tasks_app", "work", "-c", "1"):
                rq.run(RQ_BUYING.format(orders=list(orders), moved=moved, left=left))
                rq.wait_for(len(expected))

    assert rq.makers() == expected
    assert set(rq.done().values()) == {1}


@pytest.mark.test_all
def test_what_lies_in_their_queue_at_the_move_is_still_run_by_their_worker(rq: Shop) -> None:
    rq.run(RQ_BUYING.format(orders=[1, 2], moved=(), left=KINDS))
    rq.write(handlers=RQ_HANDLER)
    rq.run(RQ_BUYING.format(orders=[3], moved=("receipt",), left=KINDS[1:]))
    rq.run("from tasks_app.testing import drain; import shop.handlers; drain()")
    url = ("--url", rq.environment["REDIS"])
    with rq.serving("-m", "rq.cli", "worker", "--burst", *url, "default") as worker:
        worker.wait(60)

    makers = rq.makers().items()
    receipts = {order: who for (kind, order), who in makers if kind == "receipt"}
    assert receipts == {1: "rq.cli", 2: "rq.cli", 3: "tasks_app"}
    assert set(rq.done().values()) == {1}


@pytest.mark.test_all
def test_the_guides_ways_of_buying_do_what_they_say_in_move_from_rq(rq: Shop) -> None:
    rq.write(handlers=RQ_HANDLER)
    rq.run(
        "from shop.jobs import send_receipt\nfrom tasks_app import create_task\n"
        + RQ_BEFORE
        + "buy_before = buy\n"
        + RQ_AFTER
        + """
import os, types
from redis import Redis
from rq import Queue
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

class Base(DeclarativeBase): pass

class Order(Base):
    __tablename__ = "guide_order"
    id: Mapped[int] = mapped_column(primary_key=True)

engine = create_engine(os.environ["TASKS_APP_DATABASE_URL"])
Base.metadata.drop_all(engine); Base.metadata.create_all(engine)
queue = Queue(connection=Redis.from_url(os.environ["REDIS"]))
with Session(engine) as session:
    buy_before(session, queue, Order(id=1))
    buy(session, Order(id=2))
assert len(queue) == 1
import shop.handlers
from tasks_app.testing import drain
drain().assert_succeeded()
Base.metadata.drop_all(engine)
"""
    )

    assert rq.makers() == {("receipt", 2): "tasks_app"}
