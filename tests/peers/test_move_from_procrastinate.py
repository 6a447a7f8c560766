"""A shop on Procrastinate moves its three tasks one by one, by the code of the guide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tasks_app.embedded.stack import Stack
from tests.docs.reading import blocks, text_of
from tests.peers.environments import programs_of
from tests.peers.shops import KINDS, Shop, handlers_of

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(300, method="thread")]

JOBS, BEFORE, HANDLER, AFTER = blocks(text_of("docs/from/procrastinate.md"), "python")
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
def shop(engine: Engine, stack: Stack, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, programs_of("procrastinate"), engine, stack.urls.broker)
    with shop.schema("guide_peer"):
        shop.write(jobs=JOBS, handlers="")
        shop.run("from shop.jobs import app\nwith app.open(): app.schema_manager.apply_schema()")
        yield shop


def test_three_tasks_move_one_by_one_while_both_run(shop: Shop) -> None:
    expected: dict[tuple[str, int], str] = {}

    with shop.serving(*WORKER):
        for stage in range(4):
            moved, left = KINDS[:stage], KINDS[stage:]
            orders = range(stage * ORDERS, (stage + 1) * ORDERS)
            shop.write(handlers=handlers_of(HANDLER, moved))
            expected |= {(kind, order): "tasks_app" for kind in moved for order in orders}
            expected |= {(kind, order): "procrastinate" for kind in left for order in orders}
            with shop.serving("-m", "tasks_app", "work", "-c", "1"):
                shop.run(BUYING.format(orders=list(orders), moved=moved, left=left))
                shop.wait_for(len(expected))

    assert shop.makers() == expected
    assert set(shop.done().values()) == {1}


def test_a_rollback_takes_both_systems_tasks_with_it(shop: Shop) -> None:
    buying = BUYING.format(orders=[1], moved=KINDS[:1], left=KINDS[1:])
    shop.run(f"{buying}            raise psycopg.Rollback\n")

    counted = shop.run(
        "import psycopg\nwith psycopg.connect() as connection: print("
        "connection.execute('SELECT (SELECT count(*) FROM procrastinate_jobs)"
        " + (SELECT count(*) FROM task_pending) + (SELECT count(*) FROM guide_order)').fetchone())"
    )
    assert counted == "(0,)\n"


def test_the_guides_ways_of_buying_do_what_they_say(shop: Shop) -> None:
    shop.write(handlers=HANDLER)
    shop.run(
        "import psycopg\nfrom shop.jobs import app, send_receipt\n"
        "from tasks_app import create_task\n"
        + BEFORE
        + "buy_before = buy\n"
        + AFTER
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

    assert shop.makers() == {("receipt", 2): "tasks_app"}
