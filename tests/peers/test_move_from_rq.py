"""A shop on RQ moves its three jobs one by one, by the code of the guide."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from tasks_app.embedded.stack import Stack
from tests.docs.reading import blocks, text_of
from tests.peers.environments import programs_of
from tests.peers.shops import KINDS, Shop, handlers_of

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(300, method="thread")]

JOBS, BEFORE, HANDLER, AFTER = blocks(text_of("docs/from/rq.md"), "python")
ORDERS = 8
BUYING = """
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
def shop(engine: Engine, stack: Stack, tmp_path: Path) -> Shop:
    shop = Shop(tmp_path, programs_of("rq"), engine, stack.urls.broker)
    shop.write(jobs=JOBS, handlers="")
    shop.run("import os, redis; redis.Redis.from_url(os.environ['REDIS']).flushdb()")
    return shop


def test_three_jobs_move_one_by_one_while_both_run(shop: Shop) -> None:
    worker = ("-m", "rq.cli", "worker", "--url", shop.environment["REDIS"], "default")
    expected: dict[tuple[str, int], str] = {}

    with shop.serving(*worker):
        for stage in range(4):
            moved, left = KINDS[:stage], KINDS[stage:]
            orders = range(stage * ORDERS, (stage + 1) * ORDERS)
            shop.write(handlers=handlers_of(HANDLER, moved))
            expected |= {(kind, order): "tasks_app" for kind in moved for order in orders}
            expected |= {(kind, order): "rq.cli" for kind in left for order in orders}
            with shop.serving("-m", "tasks_app", "work", "-c", "1"):
                shop.run(BUYING.format(orders=list(orders), moved=moved, left=left))
                shop.wait_for(len(expected))

    assert shop.makers() == expected
    assert set(shop.done().values()) == {1}


def test_what_lies_in_their_queue_at_the_move_is_still_run_by_their_worker(shop: Shop) -> None:
    shop.run(BUYING.format(orders=[1, 2], moved=(), left=KINDS))
    shop.write(handlers=HANDLER)
    shop.run(BUYING.format(orders=[3], moved=("receipt",), left=KINDS[1:]))
    shop.run("from tasks_app.testing import drain; import shop.handlers; drain()")
    burst = ("-m", "rq.cli", "worker", "--burst", "--url", shop.environment["REDIS"], "default")
    with shop.serving(*burst) as worker:
        worker.wait(60)

    assert {order: who for (kind, order), who in shop.makers().items() if kind == "receipt"} == {
        1: "rq.cli",
        2: "rq.cli",
        3: "tasks_app",
    }
    assert set(shop.done().values()) == {1}


def test_the_guides_ways_of_buying_do_what_they_say(shop: Shop) -> None:
    shop.write(handlers=HANDLER)
    shop.run(
        "from shop.jobs import send_receipt\nfrom tasks_app import create_task\n"
        + BEFORE
        + "buy_before = buy\n"
        + AFTER
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

    assert shop.makers() == {("receipt", 2): "tasks_app"}
