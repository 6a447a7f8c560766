"""A webhook that keeps what it got, and a database as a watcher has it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sqlalchemy import Engine

from tasks_app.runtime.db.database import Database


@pytest.fixture
def hook() -> Iterator[Hook]:
    with listening() as server:
        yield server


@pytest.fixture
def database(engine: Engine, database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.dispose()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Hook(ThreadingHTTPServer):
    """``status`` is its answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.got: list[dict] = []
        self.at: list[float] = []
        """When each came, by ``time.monotonic``."""
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/token"

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(each["status"], each["key"]) for each in self.got]


class _Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.at.append(time.monotonic())
        self.server.got.append(message)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@contextmanager
def listening() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
