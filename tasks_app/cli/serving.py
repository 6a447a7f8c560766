"""``dashboard``, ``metrics``, ``alerts``: processes that show and report."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import click

from tasks_app.cli import output
from tasks_app.cli.database import open_database, settings, transaction
from tasks_app.domain.errors import EXIT_UNREACHABLE, ConfigurationError
from tasks_app.monitor.metric_catalogue import UP
from tasks_app.monitor.metrics import PATH, MetricsReader, MetricsServer
from tasks_app.pool import alerts as rows
from tasks_app.pool.schema import check_version
from tasks_app.pool.tables import database_now
from tasks_app.runtime.alerts.watcher import EVERY, Watcher


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=5580, show_default=True, help="Its port."
)
def dashboard(host: str, port: int) -> None:
    """Serve the dashboard until Ctrl-C. It needs no broker.

    Without TASKS_APP_DASHBOARD_AUTH=name:password it answers this machine only.
    """
    try:
        from tasks_app.dashboard.server import listen, serve  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"The dashboard needs {error.name}. Run: pip install 'tasks_app[dashboard]'"
        ) from error
    given = settings()
    _ = given.database
    sockets = listen(given, host, port)
    click.echo(f"Dashboard: http://{host}:{port}/")
    serve(given, sockets)


PORT = 9464  # no exporter that runs beside a database has it on Prometheus' list


@click.command()
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="0: any that is free.",
)
@click.option("--once", is_flag=True, help="Print them and end.")
def metrics(*, address: str, port: int, once: bool) -> None:
    """Serve metrics of the pools to Prometheus.

    One process is enough for all workers. It only reads, at most every two seconds for any number
    of clients. On another address than this machine's it needs
    TASKS_APP_METRICS_AUTH=name:password. With TASKS_APP_ALERT_WEBHOOK, _MAIL or _LOG it watches
    for alerts, too, and records them.
    """
    given = settings()
    with open_database() as database:
        reader = MetricsReader(database, given)
        if once:
            text = reader.read()
            click.echo(text, nl=False)
            sys.exit(0 if f"\n{UP.name} 1\n" in text else EXIT_UNREACHABLE)
        auth = given.metrics_auth.get_secret_value() if given.metrics_auth else ""
        try:
            server = MetricsServer(address, port, reader, auth)
        except OSError as error:
            raise ConfigurationError(
                f"Cannot listen on {address}, port {port}: {error.strerror}. "
                "Use another --address or --port."
            ) from None
        watcher = Watcher(given, database, f"metrics {socket.gethostname()}:{os.getpid()}")
        watcher.start()
        # shutdown() waits for the loop that runs here, so it needs a thread
        _on_signal(lambda: threading.Thread(target=server.shutdown).start())
        host, port = server.server_address[:2]
        click.echo(f"Metrics on http://{host!s}:{port}{PATH}", err=True)
        with server:
            server.serve_forever()
        watcher.stop()


@click.group()
def alerts() -> None:
    """Report problems, without Prometheus."""


@alerts.command("list")
@output.most_option(50, "Rows.")
@output.wide_option
@output.json_option
def list_(*, most: int, wide: bool, json_: bool) -> None:
    """List the alerts that are open, then the newest."""
    with transaction() as connection:
        found, now = rows.find_alerts(connection, most), database_now(connection)
    if json_:
        output.print_json(found)
        return
    if not found:
        click.echo("There has been no alert.")
        return
    columns = ("key", "since", "until", "sent")
    lines = [_line(alert, now, wide=wide) for alert in found]
    remarks = [f"{alert.fact}. {alert.advice}" for alert in found]
    output.print_rows(columns, lines, remarks, remark="fact and advice", wide=wide)


@alerts.command()
@click.option(
    "--every",
    type=click.FloatRange(1, 3600),
    default=EVERY.total_seconds(),
    show_default=True,
    help="Seconds between two checks.",
)
@click.option("--once", is_flag=True, help="Check once and end.")
@output.json_option
def watch(*, every: float, once: bool, json_: bool) -> None:
    """Check again and again, and report problems that begin and end.

    It reports to TASKS_APP_ALERT_WEBHOOK and TASKS_APP_ALERT_MAIL, and logs.

    Several may run, best on other machines than beat; one of them sends each message. With one of
    these settings, or TASKS_APP_ALERT_LOG, the process that scans watches, too.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    holder = f"alerts watch {socket.gethostname()}:{os.getpid()}"
    with open_database() as database:
        with database.begin() as connection:
            check_version(connection)
        watcher = Watcher(settings(), database, holder, every=timedelta(seconds=every))
        if once:
            sent = watcher.watch_once()
            output.print_answer(f"Sent: {sent}.", {"sent": sent}, json_=json_)
            return
        stop = threading.Event()
        _on_signal(stop.set)
        watcher.run(stop)


def _line(alert: rows.AlertRow, now: datetime, *, wide: bool) -> list[str]:
    since = output.format_instant(alert.opened_at, now, wide=wide)
    until = output.format_instant(alert.closed_at, now, wide=wide)
    sent = output.format_instant(alert.opened_sent_at, now, wide=wide) or "not sent"
    return [alert.key, since, "" if alert.event else until or "open", sent]


def _on_signal(act: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: act())
