"""``alerts``: what is wrong and who was told, and the process that tells."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

import click
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tasks_app.cli import output
from tasks_app.cli.database import connected, settings, transaction
from tasks_app.domain.config.settings import Settings
from tasks_app.monitor.alerts.rules import look
from tasks_app.pool.alerts import alerts as rows
from tasks_app.pool.errors import known
from tasks_app.runtime.alerts.watch import Send, deliver, record, to_log, to_webhook

logger = logging.getLogger(__name__)


@click.group()
def alerts() -> None:
    """Tell of what goes wrong, without Prometheus."""


@alerts.command("list")
@click.option("--most", type=click.IntRange(1, 1000), default=50, show_default=True, help="Rows.")
@output.as_json
def list_(*, most: int, json_: bool) -> None:
    """List the alerts that are open, then the newest."""
    with transaction() as connection:
        found = rows.find(connection, most)
    output.print_list(
        found,
        ("key", "since", "until", "told", "fact", "advice"),
        lambda a: (a.key, a.opened_at, a.closed_at, a.opened_sent_at, a.fact, a.advice),
        json_=json_,
    )


@alerts.command()
@click.option(
    "--every",
    type=click.FloatRange(1, 3600),
    default=15,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once and end.")
@output.as_json
def watch(*, every: float, once: bool, json_: bool) -> None:
    """Look again and again, and tell what begins and ends.

    It posts to TASKS_APP_ALERT_WEBHOOK, or only logs.

    Several may run, best on other machines than beat; each message is sent by one of them.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    given = settings()
    url = given.alert_webhook
    send = to_webhook(url.get_secret_value()) if url else to_log
    with connected() as engine:
        if once:
            sent = glance(engine, given, send)
            output.answer(f"Sent: {sent}.", {"sent": sent}, json_=json_)
            return
        _watch(engine, given, send, every)


def glance(engine: Engine, given: Settings, send: Send) -> int:
    """Look once; return how many messages were taken."""
    found, unread = look(engine, given)
    with engine.begin() as connection:
        rows.tell_news(connection, known.enter(connection))
        record(connection, found, unread)
    return deliver(engine, send)


def _watch(engine: Engine, given: Settings, send: Send, every: float) -> None:
    over = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while not over.is_set():
        try:
            glance(engine, given, send)
        except SQLAlchemyError as error:
            logger.warning("alerts could not be read: %s", type(error).__name__)
        over.wait(every)
