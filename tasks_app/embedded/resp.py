"""Just enough of the Redis protocol to ask a server how it is."""

from __future__ import annotations

import socket

from tasks_app.embedded.ports import HOST

PATIENCE_S = 2.0


def ask(port: int, password: str, *command: str) -> str | None:
    """Return the reply to one command, or None when none comes or it is an error.

    A server that still loads its data answers with an error, hence with None.
    """
    try:
        with socket.create_connection((HOST, port), PATIENCE_S) as connection:
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
