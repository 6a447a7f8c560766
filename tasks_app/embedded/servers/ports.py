"""Free ports on the loopback."""

from __future__ import annotations

import random
import socket

from tasks_app.embedded.errors import EmbeddedError

HOST = "127.0.0.1"
# Below every common ephemeral range: while a server is down no outgoing connection can take its
# port, so it comes back at the same address. No default port of a service that is likely to run
# beside us is in it.
RANGE = range(20_000, 30_000)
TRIES = 200


def is_free(port: int) -> bool:
    """Say whether a server could listen on ``port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: connections in TIME_WAIT do not matter, listeners do.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose_port(last: int | None) -> int:
    """Return the last port if it is still free, else another one."""
    if last is not None and is_free(last):
        return last
    for port in random.sample(RANGE, TRIES):
        if is_free(port):
            return port
    raise EmbeddedError(
        f"None of {TRIES} ports tried on {HOST} is free. "
        "Look with `ss -ltn` for what takes them and stop it."
    )
