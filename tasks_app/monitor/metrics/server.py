"""``/metrics`` over HTTP: for this machine alone, unless there is a password."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import logging
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tasks_app.domain.errors import ConfigurationError
from tasks_app.monitor.metrics.exposition import CONTENT_TYPE
from tasks_app.monitor.metrics.reader import MetricsReader

PATH, ALIVE = "/metrics", "/healthz"
SLOW_CLIENT_S = 10
logger = logging.getLogger(__name__)


def check_address(address: str, auth: str) -> None:
    """Pass if there is a password, or an address of this machine.

    Raises:
        ConfigurationError: others could read it.
    """
    if auth and not all(auth.partition(":")):
        raise ConfigurationError("TASKS_APP_METRICS_AUTH is wrong: write it as name:password.")
    if not auth and not _is_local(address):
        raise ConfigurationError(
            f"Metrics have no password, and {address} is an address that others can reach. "
            "Set TASKS_APP_METRICS_AUTH=name:password, or use --address 127.0.0.1."
        )


class MetricsServer(ThreadingHTTPServer):
    """Answers ``/metrics`` from one reader; ``/healthz`` without a look at the database."""

    daemon_threads = True

    def __init__(self, address: str, port: int, reader: MetricsReader, auth: str = "") -> None:
        check_address(address, auth)
        self.reader = reader
        self.wanted = f"Basic {base64.b64encode(auth.encode()).decode()}" if auth else ""
        if ":" in address:
            self.address_family = socket.AF_INET6
        super().__init__((address, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version, sys_version = "tasks-app", ""
    timeout = SLOW_CLIENT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == ALIVE:
            self._answer(HTTPStatus.OK, "alive\n")
        elif not self._may():
            self._answer(HTTPStatus.UNAUTHORIZED, "Name and password, please.\n")
        elif path == PATH:
            self._answer(HTTPStatus.OK, self.server.reader.read())
        else:
            self._answer(HTTPStatus.NOT_FOUND, f"There is {PATH} only.\n")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
        logger.debug(format, *args)

    def _may(self) -> bool:
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode(), self.server.wanted.encode()) or not (
            self.server.wanted
        )

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="tasks_app"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
