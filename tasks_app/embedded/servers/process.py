"""One server process: started without root's rights, stopped in good order or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tasks_app.embedded.servers.orphans import wait_ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tasks_app.embedded.account import Account

LAUNCHER = Path(__file__).with_name("launch.py")
KILL_PATIENCE_S = 10
LOG_LIMIT_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start a server, and the signal that asks it to stop in good order."""

    command: Sequence[str]
    folder: Path
    log: Path
    farewell: signal.Signals


class ServerProcess:
    """A running server and the processes it made."""

    def __init__(self, recipe: Recipe, account: Account | None) -> None:
        self._recipe = recipe
        _limit(recipe.log)
        self._log_start = recipe.log.stat().st_size if recipe.log.exists() else 0
        with recipe.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own launcher, no shell
                [*_launcher(recipe, account), *recipe.command],
                cwd=recipe.folder,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we stop the servers in order
            )

    @property
    def pid(self) -> int:
        """The server's process id, kept across the launcher's ``exec``."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def said(self) -> str:
        """Return what the server logged since this start."""
        with self._recipe.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode("utf-8", errors="replace")

    def last_word(self) -> str:
        """Return the log line that explains best why it ended."""
        lines = self.said().strip().splitlines()
        grave = [line for line in lines if "FATAL" in line or "PANIC" in line]
        return (grave or lines or ["it said nothing"])[-1].rstrip(".")

    def stop(self, patience_s: float) -> None:
        """Ask it to end; kill it if it does not."""
        if self.is_alive:
            self._process.send_signal(self._recipe.farewell)
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL the server, then its children, and wait until none is left."""
        children = self._children()
        self._process.kill()
        self._process.wait(KILL_PATIENCE_S)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        wait_ended(children, KILL_PATIENCE_S)

    def _children(self) -> list[psutil.Process]:
        if not self.is_alive:
            return []
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def clean_environment() -> dict[str, str]:
    """Return our environment without variables that change a server's behaviour."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}


def _launcher(recipe: Recipe, account: Account | None) -> list[str]:
    uid, gid = (os.geteuid(), os.getegid()) if account is None else (account.uid, account.gid)
    # The kernel sends it at the death of the *thread* that started the child, so only the main
    # thread, which lives as long as the process, may ask for it (prctl(2), PDEATHSIG).
    in_main_thread = threading.current_thread() is threading.main_thread()
    death_signal = int(recipe.farewell) if in_main_thread else 0
    numbers = (os.getpid(), uid, gid, death_signal)
    return [sys.executable, "-I", "-S", str(LAUNCHER), *map(str, numbers)]


def _limit(log: Path) -> None:
    """Rotate a long log; one old log is kept."""
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".old.log"))
