"""An HTTP server in a thread, which answers as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import NamedTuple


class Asked(NamedTuple):
    """One request."""

    headers: Message
    body: bytes


class Answer(NamedTuple):
    """What it is answered."""

    status: int
    headers: Mapping[str, str] = MappingProxyType({})


class Web(ThreadingHTTPServer):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Answer] = lambda _: Answer(204)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Web

    def do_POST(self) -> None:
        """Note the request, and answer."""
        asked = Asked(self.headers, self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        status, headers = self.server.answer(asked)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[Web]:
    """Serve in a thread."""
    with Web() as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield web
        web.shutdown()
        thread.join()
