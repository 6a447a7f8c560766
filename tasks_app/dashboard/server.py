"""tasks-app dashboard: the application on uvicorn."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress

import uvicorn

from tasks_app.dashboard.app import dashboard_app
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import is_local
from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime.alerts.watcher import Watcher
from tasks_app.runtime.db.database import Database


def listen(settings: Settings, host: str, port: int) -> list[socket.socket]:
    """Listen on each address of the host that this machine has."""
    check_address(settings, host)
    sockets, refused = list[socket.socket](), None
    try:
        kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
        for family, *_, at in socket.getaddrinfo(host or None, port, type=kind, flags=flags):
            try:
                sockets.append(socket.create_server(at[:2], family=family))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                refused = error  # as ::1 of localhost where IPv6 is off
        if refused and not sockets:
            raise refused
    except OSError as error:
        for each in sockets:
            each.close()
        why = str(error.strerror).partition(" (")[0]
        raise ConfigurationError(
            f"Cannot listen on {host}, port {port}: {why}. Use another --host or --port."
        ) from None
    return sockets


def serve(settings: Settings, sockets: list[socket.socket]) -> None:
    database = Database(settings.database, prepare=settings.prepare)
    watcher = Watcher(settings, database, f"dashboard {socket.gethostname()}:{os.getpid()}")
    watcher.start()
    # The peer's address decides who is local, so proxy headers are not trusted.
    config = uvicorn.Config(
        dashboard_app(settings),
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        lifespan="off",
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=sockets)
    watcher.stop()


def check_address(settings: Settings, host: str) -> None:
    """Refuse an address that other machines could reach without a password."""
    if settings.dashboard_auth is None and not is_local(host):
        raise ConfigurationError(
            f"The dashboard has no password, and {host} is an address that others can reach. "
            "Set TASKS_APP_DASHBOARD_AUTH=name:password, or leave out --host."
        )
