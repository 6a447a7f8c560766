"""Handlers of a shop in which some things go well, and some do not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dev.documents.screenshots.history import PARTS, ROWS_OF_PART
from tasks_app import (
    BatchJob,
    Breaker,
    ChunkContext,
    DependencyDown,
    Step,
    Table,
    TaskContext,
    handler,
)
from tasks_app.batch.planners.even import Even

LONG_S = 3600.0
"""Longer than the pictures take."""
SOLD_OUT = 36_000
"""Rows from here on wait after their first chunk: so the pictures always show the same."""


class CardDeclinedError(Exception):
    """The bank said no."""


def charge(brand: str, order: str) -> str:
    if brand == "amex":
        raise CardDeclinedError(f"card type not supported: {brand}, {order}")
    return "authorised"


@handler(
    "orders.charge_card",
    queue="payments",
    retry="200ms,400ms",
    depends_on=Breaker("bank", least=1_000),
)
def charge_card(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, str]:
    ctx.log.info("charging order")
    time.sleep(payload.get("work", 0.02))
    return {"bank": charge(payload["card"]["brand"], payload["order"])}


@handler("orders.invoice", retry="200ms")
def invoice(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
    customer = payload["customer"]
    if not customer["zip"].isdigit():
        raise ValueError(f"customer.zip: digits expected, got {customer['zip']!r}")
    return {"number": f"2026-{payload['number']}"}


@handler("stock.sync", timeout="2m")
def sync_stock(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, int]:
    warehouses = {"berlin": 4_112, "lyon": 2_981}
    time.sleep(0.03)
    return {"items": warehouses[payload.get("warehouse", "berlin")]}


@handler("stock.count")
def count_stock(ctx: TaskContext, payload: dict[str, Any]) -> None:
    with ctx.locks(exclusive=f"warehouse:{payload['warehouse']}"):
        ctx.progress(0.44, "shelf 44 of 100")
        time.sleep(LONG_S)


@handler(
    "shipping.label",
    queue="shipping",
    depends_on=Breaker("carrier", least=5),
    dependency_retry="fixed 1h",
)
def print_label(ctx: TaskContext, payload: dict[str, Any]) -> None:
    raise DependencyDown("carrier", "https://carrier.example gave no answer within 5 s")


@handler("reports.monthly", queue="reports")
def monthly(ctx: TaskContext, payload: dict[str, Any]) -> None:
    ctx.progress(0.61, "11 of 18 tables")
    ctx.checkpoint = {"table": "order_line", "row": 1_204_118}
    time.sleep(LONG_S)


@handler("search.index", queue="search")
def index(ctx: TaskContext, payload: dict[str, Any]) -> None:
    time.sleep(payload.get("work", 0.01))


@handler("mail.receipt", queue="mail")
def receipt(ctx: TaskContext, payload: dict[str, Any]) -> None:
    time.sleep(0.01)


def load(ctx: ChunkContext, rows: Sequence[Any]) -> None:
    first = rows[0].id
    if first in (10_001, 24_001):
        raise ValueError(f"price of article {first} is negative")
    if first > SOLD_OUT and (first - 1) % ROWS_OF_PART:
        time.sleep(LONG_S)


prices = BatchJob(
    "import_prices",
    [
        Step(
            "load",
            Table("article"),
            planner=Even(PARTS),
            chunk=load,
            commit_every="100 rows",
            queue="imports",
            max_attempts=1,
            join="best_effort",
        ),
        Step("publish", None, chunk=lambda ctx, rows: None, queue="imports"),
    ],
)
