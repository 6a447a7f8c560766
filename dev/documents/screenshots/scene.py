"""A shop at eight past twelve: much goes well, one release declines cards, a carrier is down."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, Engine, text

from dev.documents.screenshots import history
from tasks_app import (
    NewTask,
    change_queue,
    create_group,
    create_schedule,
    create_tasks,
    disable_schedule,
    mark_error_known,
    pause_queue,
    run_bulk,
    run_schedule,
    set_limit,
    start_bulk,
    start_job,
)
from tasks_app.runtime.api.limits import share_queue
from tasks_app.runtime.schedules.preview import backfill_schedule

EARLIER = datetime(2026, 1, 1, tzinfo=UTC)
MIRA, TOM = "mira (dashboard)", "tom@ops-1"
BRANDS = ("visa", "mastercard")
CITIES = ("berlin", "lyon")
LEFT = """
    SELECT count(*) FROM task_pending WHERE due_at <= now() AND state = 'PENDING' AND parked IS NULL
        AND queue NOT IN ('mail', 'exports', 'imports')
"""
KNOWN = "SELECT encode(fingerprint, 'hex') FROM task_error WHERE name = 'stock.sync' LIMIT 1"
SOME_INVOICES = "SELECT id FROM task_error WHERE name = 'orders.invoice' ORDER BY id LIMIT 4"
PARTS_DONE = "SELECT count(*) FROM task_completed WHERE name = 'import_prices:load'"


def set_up(connection: Connection) -> None:
    """Do what operators and code did before the workers start."""
    history.count_a_week(connection)
    history.add_articles(connection)
    _schedules(connection)
    _queues(connection)
    _tasks(connection)
    start_job(connection, "import_prices", {"day": "2026-11-23"})


def is_played(connection: Connection) -> bool:
    """Whether the workers have done what they can."""
    left: int = connection.execute(text(LEFT)).scalar_one()
    parts: int = connection.execute(text(PARTS_DONE)).scalar_one()
    return left == 0 and parts >= history.PARTS * 0.7  # the others wait for the end of a sleep


def go_on(connection: Connection) -> None:
    """Create what heads the list of tasks, the newest first."""
    create_tasks(
        connection, [task for pair in zip(_newest(), _orders(), strict=False) for task in pair]
    )


def finish(engine: Engine) -> None:
    """Move what happened into the past, and let people act on it."""
    with engine.begin() as connection:
        history.lead(connection)
        history.fire_in_time(connection)
        history.spread_errors(connection)
        history.age_what_waits(connection, "mail", "exports")
        fingerprint = connection.execute(text(KNOWN)).scalar_one()
        note = "the warehouse is closed, ticket 4711"
        mark_error_known(connection, fingerprint, note=note, by="mira")
        zips = list(connection.execute(text(SOME_INVOICES)).scalars())
    run_bulk(engine, start_bulk(engine, "requeue", ids=zips, by=MIRA), first=2, by=MIRA)
    with engine.begin() as connection:
        history.age_audit(connection)


def _schedules(connection: Connection) -> None:
    for name, task, options in (
        ("reports.nightly", "reports.monthly", {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}),
        ("stock.sync", "stock.sync", {"every": "15m", "starts_at": EARLIER}),
        (
            "search.refresh",
            "search.index",
            {"every": "20m", "overlap": "skip", "starts_at": EARLIER},
        ),
        ("orders.close_day", "orders.invoice", {"cron": "0 18 * * mon-fri"}),
        ("prices.import", "import_prices:plan", {"cron": "0 6 * * *"}),
    ):
        queue = {"reports.nightly": "reports", "search.refresh": "search"}.get(name, "default")
        payload = {"customer": {"zip": "10115"}, "number": 1} if task == "orders.invoice" else {}
        create_schedule(connection, name, task, payload, queue=queue, by=TOM, **options)
    disable_schedule(connection, "prices.import", by=MIRA)
    end = datetime.now(UTC)
    for name in ("stock.sync", "search.refresh"):
        backfill_schedule(connection, name, end - timedelta(hours=3), end, by=TOM)
    run_schedule(connection, "stock.sync", by=MIRA)


def _queues(connection: Connection) -> None:
    later = datetime.now(UTC) + timedelta(hours=3)
    set_limit(connection, "queue", "payments", most=8, rate="6000/1m", by=TOM)
    set_limit(connection, "name", "stock.sync", most=2, by=TOM)
    set_limit(connection, "key", "tenant:*", most=1, by=TOM)
    share_queue(connection, "search", {"tenant:large": 3.0}, by=TOM)
    change_queue(
        connection,
        "reports",
        windows=[f"mon-sun {later:%H}:00-{later + timedelta(hours=6):%H}:00 UTC"],
        by=TOM,
    )
    pause_queue(connection, "exports", "the partner's FTP server moves", resume_in="2h", by=MIRA)


def _tasks(connection: Connection) -> None:
    create_tasks(connection, list(_orders()))
    create_tasks(connection, list(_others()))
    create_group(
        connection,
        [
            *(_order(n, BRANDS[n % 2], biz_key="basket:9001") for n in range(9_001, 9_010)),
            _order(9_010, "amex", biz_key="basket:9001"),
            NewTask("mail.receipt", {"order": 9_001}, queue="mail"),
        ],
        then=NewTask("orders.invoice", _customer(9_001)),
    )


def _order(number: int, brand: str, biz_key: str | None = None) -> NewTask:
    card = {"brand": brand, "token": f"tok_{number}", "last": "0005"}
    payload = {"order": f"order:{number}", "total": "129.90", "currency": "EUR", "card": card}
    key = biz_key or f"order:{number}"
    return NewTask("orders.charge_card", payload, queue="payments", biz_key=key)


def _customer(number: int, code: str = "80331") -> dict[str, object]:
    return {"number": number, "customer": {"id": number % 977, "zip": code, "password": "-"}}


def _orders() -> Iterator[NewTask]:
    for number in range(1, 181):
        yield _order(number, "amex" if number % 3 == 0 else BRANDS[number % 2])
    for number in range(1, 121):
        code = "SW1A 1AA" if number % 9 == 0 else "80331"
        yield NewTask("orders.invoice", _customer(number, code), biz_key=f"order:{number}")


def _newest() -> Iterator[NewTask]:
    for number in range(8):
        yield NewTask(
            "search.index", {"article": number}, queue="search", biz_key=f"article:{number}"
        )
        yield NewTask("orders.invoice", _customer(number), biz_key=f"order:{number}")
        yield NewTask("mail.receipt", {"order": number}, queue="mail", biz_key=f"order:{number}")


def _others() -> Iterator[NewTask]:
    for number in range(140):
        yield NewTask("mail.receipt", {"order": number}, queue="mail")
        yield NewTask(
            "search.index",
            {"article": number},
            queue="search",
            fair_key=f"tenant:{number % 5}",
        )
    for number in range(30):
        yield NewTask(
            "shipping.label", {"order": number}, queue="shipping", biz_key=f"order:{number}"
        )
        yield NewTask("exports.send", {"file": f"{number}.csv"}, queue="exports")
    for number in range(24):
        yield NewTask("orders.invoice", _customer(number), delay=f"{number + 1}h")
    for _ in range(4):
        yield NewTask("stock.sync", {"warehouse": "hamburg"}, max_attempts=1)
    for city in (*CITIES, CITIES[0]):
        yield NewTask("stock.count", {"warehouse": city}, biz_key=f"warehouse:{city}")
    yield NewTask("search.index", {"work": 3_600.0}, queue="search", limit_key="tenant:7")
    yield NewTask("search.index", {"work": 3_600.0}, queue="search", limit_key="tenant:7")
    yield NewTask("reports.monthly", {"month": "2026-10"}, queue="default")
