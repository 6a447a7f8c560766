"""``tasks-app dashboard``: the application on uvicorn."""

from __future__ import annotations

import os
import socket

import uvicorn

from tasks_app.dashboard.app import dashboard_app
from tasks_app.domain.config.addresses import is_local
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime.alerts.watcher import Watcher
from tasks_app.runtime.db.database import Database


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until a signal.

    Raises:
        ConfigurationError: others could reach it, and it has no password.
    """
    check_address(settings, host)
    database = Database(settings.database, prepare=settings.prepare)
    watcher = Watcher(settings, database, f"dashboard {socket.gethostname()}:{os.getpid()}")
    watcher.start()
    # The address of the peer decides who is local, so nobody's word for it is taken.
    uvicorn.run(
        dashboard_app(settings),
        host=host,
        port=port,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        lifespan="off",
    )
    watcher.stop()


def check_address(settings: Settings, host: str) -> None:
    """Pass if there is a password, or only this machine reaches it.

    Raises:
        ConfigurationError: anybody could see payloads and requeue tasks.
    """
    if settings.dashboard_auth is None and not is_local(host):
        raise ConfigurationError(
            f"The dashboard has no password, and {host} is an address that others can reach. "
            "Set TASKS_APP_DASHBOARD_AUTH=name:password, or leave out --host."
        )
