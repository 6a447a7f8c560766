"""A TCP proxy that can lose the reply of one statement: the server did it, the client never hears.

It can also be a black hole, in which everything stays open and nothing gets through.

One thread per direction; no server code of ours is replaced.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

CHUNK = 65_536


class FaultProxy:
    """Forwards to ``upstream`` until a fault is set."""

    def __init__(self, upstream: tuple[str, int], *, only: bytes | None = None) -> None:
        """With ``only``, what is to be lost is lost on a connection that has carried that."""
        self._upstream = upstream
        self._only = only
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: set[socket.socket] = set()
        self._mutex = threading.Lock()
        self._needle: bytes | None = None
        self._pass_on = True
        self._swallowed: set[socket.socket] = set()
        self._open = threading.Event()
        self._open.set()
        self.refusing = False
        self.lost = 0
        """How many replies were swallowed."""
        self.refused = 0
        """How many connections were turned away."""

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def lose_reply_to(self, needle: bytes) -> None:
        """Pass the next request that holds ``needle`` on, and cut the client off from its reply."""
        self._needle = needle

    def lose_request(self, needle: bytes) -> None:
        """Cut the client off instead of passing its next request that holds ``needle`` on."""
        self._pass_on = False
        self._needle = needle

    def swallow(self) -> None:
        """Leave every live connection open, and pass nothing on any more."""
        with self._mutex:
            self._swallowed |= self._sockets

    def black_out(self) -> None:
        """Let nothing through in either direction, and refuse nobody."""
        self._open.clear()

    def let_through(self) -> None:
        """Go on, with what was held back."""
        self._open.set()

    def cut(self) -> None:
        """End every live connection."""
        with self._mutex:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def stop_listening(self) -> None:
        """Refuse new connections as a machine without the server does; live ones go on."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_listening()
        self._open.set()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                self.refused += 1
                client.close()
                continue
            try:
                server = socket.create_connection(self._upstream)
            except OSError:
                client.close()
                continue
            with self._mutex:
                self._sockets |= {client, server}
            deaf = threading.Event()
            for source, target in ((client, server), (server, client)):
                forth = source is client
                threading.Thread(
                    target=self._pump, args=(source, target, deaf, forth), daemon=True
                ).start()

    def _pump(
        self, source: socket.socket, target: socket.socket, deaf: threading.Event, forth: bool
    ) -> None:
        meant = self._only is None
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if source in self._swallowed:
                    continue
                meant = meant or (self._only is not None and self._only in data)
                if forth and meant and self._needle is not None and self._needle in data:
                    self._needle = None
                    deaf.set()
                    if not self._pass_on:
                        self.lost += 1
                        break
                if not forth and deaf.is_set():  # the server has answered, so it has acted
                    self.lost += 1
                    break
                self._open.wait()
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
