"""A RabbitMQ node of our own, which may be stopped and killed; from what is installed here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Self

_INSTALLED = Path("/usr/lib/rabbitmq/bin")
"""Debian's wrappers in /usr/sbin change user and folder."""
START_S = 120


def rabbitmq_program(name: str) -> str | None:
    """Return where it is; None: RabbitMQ is not installed here."""
    return shutil.which(name, path=str(_INSTALLED)) or shutil.which(name)


class Node:
    """One node in a folder of its own; its messages survive a restart."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tasks_app-rabbit-"))
        self._name = f"tasks_app-{uuid.uuid4().hex[:8]}@localhost"
        self.port, distribution = _free_port(), _free_port()
        base = str(self._folder)
        self._environment = {
            **os.environ,
            "HOME": base,
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": f"{base}/mnesia",
            "RABBITMQ_LOG_BASE": f"{base}/log",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{base}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{base}/rabbitmq",
            "RABBITMQ_PID_FILE": f"{base}/pid",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def url_of(self, _number: int) -> str:
        return self.url

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self) -> None:
        server = rabbitmq_program("rabbitmq-server") or "rabbitmq-server"
        with (self._folder / "out").open("ab") as out:
            self._process = subprocess.Popen(
                [server],
                env=self._environment,
                cwd=self._folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "out").read_text()[-2000:])
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL the node; what it had confirmed is on its disk."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def wipe(self) -> None:
        """Forget all queues and messages; it must be down."""
        shutil.rmtree(self._folder / "mnesia", ignore_errors=True)

    def signal(self, number: signal.Signals) -> None:
        """Signal all its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def control(self, *arguments: str) -> str:
        program = rabbitmq_program("rabbitmqctl") or "rabbitmqctl"
        return subprocess.run(
            [program, "-q", "-n", self._name, *arguments],
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
