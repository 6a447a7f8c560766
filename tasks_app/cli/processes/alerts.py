"""``alerts``: what is wrong and who was told, and the process that tells."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from datetime import datetime, timedelta
from types import FrameType

import click

from tasks_app.cli import listing, output
from tasks_app.cli.database import opened, settings, transaction
from tasks_app.pool.alerts import alerts as rows
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.schema import check_version
from tasks_app.runtime.alerts.watcher import EVERY, Watcher


@click.group()
def alerts() -> None:
    """Tell of what goes wrong, without Prometheus."""


@alerts.command("list")
@click.option("--most", type=click.IntRange(1, 1000), default=50, show_default=True, help="Rows.")
@listing.as_wide
@output.as_json
def list_(*, most: int, wide: bool, json_: bool) -> None:
    """List the alerts that are open, then the newest."""
    with transaction() as connection:
        found, now = rows.find(connection, most), instant(connection)
    if json_:
        output.print_json(found)
        return
    if not found:
        click.echo("There has been no alert.")
        return
    columns = ("key", "since", "until", "told")
    lines = [_line(alert, now, wide=wide) for alert in found]
    remarks = [f"{alert.fact}. {alert.advice}" for alert in found]
    listing.echo(columns, lines, remarks, remark="fact and advice", wide=wide)


@alerts.command()
@click.option(
    "--every",
    type=click.FloatRange(1, 3600),
    default=EVERY.total_seconds(),
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once and end.")
@output.as_json
def watch(*, every: float, once: bool, json_: bool) -> None:
    """Look again and again, and tell what begins and ends.

    It tells TASKS_APP_ALERT_WEBHOOK and TASKS_APP_ALERT_MAIL, and logs.

    Several may run, best on other machines than beat; each message is sent by one of them. With
    one of these settings, or TASKS_APP_ALERT_LOG, whoever scans watches, too.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    holder = f"alerts watch {socket.gethostname()}:{os.getpid()}"
    with opened() as database:
        with database.begin() as connection:
            check_version(connection)
        watcher = Watcher(settings(), database, holder, every=timedelta(seconds=every))
        if once:
            sent = watcher.watch_once()
            output.answer(f"Sent: {sent}.", {"sent": sent}, json_=json_)
            return
        watcher.run(_stopped())


def _line(alert: rows.AlertRow, now: datetime, *, wide: bool) -> list[str]:
    since = listing.at(alert.opened_at, now, wide=wide)
    until = listing.at(alert.closed_at, now, wide=wide)
    told = listing.at(alert.opened_sent_at, now, wide=wide) or "not told"
    return [alert.key, since, "" if alert.event else until or "open", told]


def _stopped() -> threading.Event:
    """Return an event that a signal sets."""
    over = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return over
