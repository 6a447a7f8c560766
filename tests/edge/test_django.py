"""Handlers that use Django's ORM, while their processes are killed."""

from __future__ import annotations

import random
import subprocess
import sys

import psutil
import pytest

from tests.clock import until
from tests.django.django_shop import Site

pytest.importorskip("django")
pytestmark = pytest.mark.timeout(600, method="thread")

ORDERS, KILLS = 400, 4
CREATE = f"""
from django.db import transaction
from orders.models import Order
from tasks_app import NewTask
from tasks_app.django import create_tasks
with transaction.atomic():
    orders = Order.objects.bulk_create(Order(customer="Ada", amount=10) for _ in range({ORDERS}))
    create_tasks([NewTask("orders.award", {{"order": order.pk}}) for order in orders])
"""


def test_effect_and_outcome_are_one_whatever_is_killed(shop: Site) -> None:
    created = shop.manage("shell", "-c", CREATE)
    assert created.returncode == 0, created.stderr
    done = "SELECT count(*) FROM task_completed WHERE state = 'SUCCEEDED'"
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "tasks_app", "work", "-c", "2"],
        cwd=shop.folder,
        env={**shop.environment, "TASKS_APP_LEASE": "10s"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for kill in range(1, KILLS + 1):
            so_far = ORDERS * kill // (KILLS + 1)
            until(lambda so_far=so_far: int(str(shop.sql(done))) >= so_far, 120, f"kill {kill}")
            children = psutil.Process(worker.pid).children()
            random.choice(children).kill()
        until(lambda: shop.sql(done) == ORDERS, 240, "all orders")
    finally:
        worker.terminate()
        worker.wait(30)

    assert shop.sql("SELECT count(*) FROM orders_points") == ORDERS
    assert shop.sql("SELECT count(DISTINCT order_id) FROM orders_points") == ORDERS
    assert shop.sql("SELECT count(*) FROM task_error") == 0
    charged = shop.sql("SELECT count(*) FROM task_attempt WHERE kind = 'process died'")
    print(f"\n{ORDERS} orders, {KILLS} kills, {charged} runs charged")
