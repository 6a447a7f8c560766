"""``metrics``: the state of the pools for Prometheus, once or over HTTP."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from types import FrameType

import click

from tasks_app.cli.database import opened, settings
from tasks_app.domain.errors import AWAY, ConfigurationError
from tasks_app.monitor.metrics.catalogue import UP
from tasks_app.monitor.metrics.reader import MetricsReader
from tasks_app.monitor.metrics.server import PATH, MetricsServer
from tasks_app.runtime.alerts.watcher import Watcher

PORT = 9464
"""Nobody else's among Prometheus' ports of exporters that run beside a database."""


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
    """Show the pools to Prometheus: one process for all workers.

    It only reads, at most every two seconds however many ask. On another address than this
    machine's it wants TASKS_APP_METRICS_AUTH=name:password. With TASKS_APP_ALERT_WEBHOOK, _MAIL or
    _LOG it watches for alerts, too, which it writes down.
    """
    given = settings()
    with opened() as database:
        reader = MetricsReader(database, given)
        if once:
            text = reader.read()
            click.echo(text, nl=False)
            sys.exit(0 if f"\n{UP.name} 1\n" in text else AWAY)
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
        _serve(server)
        watcher.stop()


def _serve(server: MetricsServer) -> None:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        threading.Thread(target=server.shutdown).start()  # it waits for the loop that runs here

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    host, port = server.server_address[:2]
    click.echo(f"Metrics on http://{host!s}:{port}{PATH}", err=True)
    with server:
        server.serve_forever()
