"""Processes that end when we do, and free ports for them."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

User = tuple[int, int]
"""Ids of a user and a group."""
HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Below every common ephemeral range: while a server is down no outgoing connection can take its
port, so it comes back at the same address."""
PATIENCE_S = 20
WATCHER = """
read _  # it ends when nobody can write any more
kill -{signal} {pid}
while kill -0 {pid} && [ $((n += 1)) -le 100 ]; do sleep 0.1; done  # or it stays as a zombie
"""


class Companion(subprocess.Popen[bytes]):
    """A process with a log. It gets the signal ``farewell`` from us, or when we die."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        farewell: signal.Signals,
        *,
        cwd: Path,
        told: str = "",
        user: User | None = None,
        keep: Sequence[int] = (),
    ) -> None:
        """Start it; it reads what it is ``told``. What to ``keep`` stays open until its end."""
        self._farewell = farewell
        if log.exists():
            log.replace(log.with_suffix(".old.log"))
        with log.open("wb") as output, tempfile.TemporaryFile() as words:
            words.write(told.encode())
            words.seek(0)
            super().__init__(
                command,
                cwd=cwd,
                stdin=words,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us; we stop the servers in order
                **surroundings(user),
            )
        self._watcher = subprocess.Popen(  # noqa: S603  no word of it is a user's
            ["/bin/sh", "-c", WATCHER.format(signal=int(farewell), pid=self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=keep,
            start_new_session=True,
        )

    def stop(self) -> None:
        """Ask it to end; kill it if it does not."""
        if self.poll() is None:
            self.send_signal(self._farewell)
            with suppress(subprocess.TimeoutExpired):
                self.wait(PATIENCE_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL it, then its children, and wait until none is left."""
        family = psutil.Process(self.pid).children(recursive=True) if self.poll() is None else []
        with self._watcher:
            self._watcher.kill()
        super().kill()
        self.wait()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, PATIENCE_S)


def last_word(log: Path) -> str:
    """Return the line that explains best why a process ended."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    grave = [line for line in lines if "FATAL" in line or "PANIC" in line]
    return (grave or lines or ["it said nothing"])[-1].rstrip(".")


def surroundings(user: User | None) -> dict[str, Any]:
    """Return how to start a program: as a user, without variables that change what it does."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    who = {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}
    return {"env": kept | {"LC_ALL": "C"}, "umask": 0o077, **who}


def choose_port(last: int = 0) -> int:
    """Return the last port if it is free, else another one."""
    port = last or secrets.choice(PORTS)
    while not _is_free(port):
        port = secrets.choice(PORTS)
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections in TIME_WAIT do not matter, listeners do.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True
