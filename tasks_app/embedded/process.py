"""Processes that end when we do, their ports, and the steps that root needs."""

from __future__ import annotations

import logging
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

User = tuple[int, int]  # ids of a user and a group
HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Below every common ephemeral range: while a server is down no outgoing connection can take its
port, so it comes back at the same address."""
PATIENCE_S = 20
WATCHER = """
read _  # it ends when no process can write any more
kill -{signal} {pid}
while kill -0 {pid} && [ $((n += 1)) -le 100 ]; do sleep 0.1; done  # or it stays as a zombie
"""


class Companion(subprocess.Popen[bytes]):
    """A process with a log. It gets ``stop_signal`` from ``stop()``, or when we die."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        stop_signal: signal.Signals,
        *,
        cwd: Path,
        stdin: str = "",
        user: User | None = None,
        keep: Sequence[int] = (),
    ) -> None:
        """Start it; the descriptors to ``keep`` stay open until it has ended."""
        self._stop_signal = stop_signal
        if log.exists():
            log.replace(log.with_suffix(".old.log"))
        with log.open("wb") as output, tempfile.TemporaryFile() as text:
            text.write(stdin.encode())
            text.seek(0)
            super().__init__(
                command,
                cwd=cwd,
                stdin=text,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us; we stop the servers in order
                **popen_options(user),
            )
        self._watcher = subprocess.Popen(  # noqa: S603  no user's input
            ["/bin/sh", "-c", WATCHER.format(signal=int(stop_signal), pid=self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=keep,
            start_new_session=True,
        )

    def stop(self) -> None:
        if self.poll() is None:
            self.send_signal(self._stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self.wait(PATIENCE_S)
        self.kill()

    def kill(self) -> None:
        """Kill it, then its children, and wait until all have ended."""
        family = psutil.Process(self.pid).children(recursive=True) if self.poll() is None else []
        with self._watcher:
            self._watcher.kill()
        super().kill()
        self.wait()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, PATIENCE_S)


def exit_reason(log: Path) -> str:
    """Return the line that explains best why a process ended."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    grave = [line for line in lines if "FATAL" in line or "PANIC" in line]
    return (grave or lines or ["it logged nothing"])[-1].rstrip(".")


def popen_options(user: User | None) -> dict[str, Any]:
    """Return options that run a program as a user, without variables that change what it does."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    who = {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}
    return {"env": kept | {"LC_ALL": "C"}, "umask": 0o077, **who}


def choose_port(last: int = 0) -> int:
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


KEPT_TEMPORARY = "/var/tmp"  # noqa: S108  it survives a reboot; mkdtemp makes what is ours there
logger = logging.getLogger(__name__)


def server_user(folder: Path) -> User | None:
    """Return the user that the servers of a folder run as; None: ours.

    Root's servers run as the folder's owner, so that both can use it in turn, or as ``nobody``.
    """
    if os.geteuid() != 0:
        return None
    owner, nobody = folder.stat(), pwd.getpwnam("nobody")
    return (owner.st_uid, owner.st_gid) if owner.st_uid else (nobody.pw_uid, nobody.pw_gid)


def data_folder(path: Path, user: User | None) -> Path:
    """Return a server's data folder, which exists and belongs to its user.

    Where that user cannot enter the folder around it, ``path`` is a link to one that it can.
    """
    if not path.exists():
        path.unlink(missing_ok=True)  # a dead link
        if _may_enter(path.parent, user):
            path.mkdir(mode=0o700)
        else:
            path.symlink_to(tempfile.mkdtemp(prefix="tasks_app-", dir=KEPT_TEMPORARY))
            logger.warning("Its user cannot enter %s: data is in %s", path.parent, path.resolve())
    set_owner(path.resolve(), user)
    return path.resolve()


def readable_programs(programs: Path, data: Path, user: User | None) -> Path:
    """Return a folder of programs, or its copy in the data folder if its user cannot enter it.

    This happens with a virtual environment below root's home, which stays as closed as it is.
    """
    if _may_enter(programs, user):
        return programs
    copy = data / f"programs-{programs.stat().st_mtime_ns}"  # an upgrade makes a new one
    target = copy / programs.parent.name / programs.name
    if not copy.exists():
        draft = data / "programs"
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(programs, draft / target.relative_to(copy))
        # PostgreSQL's programs look for their libraries there, relative to themselves.
        libraries = programs.parent.with_name(f"{programs.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name)
        for item in (draft, *draft.rglob("*")):
            set_owner(item, user)
        draft.rename(copy)
    return target


def set_owner(path: Path, user: User | None) -> None:
    if user is not None:
        os.chown(path, *user, follow_symlinks=False)


def _may_enter(folder: Path, user: User | None) -> bool:
    """Let the kernel decide: it checks all folders above, and more than mode bits."""
    test = ["/bin/test", "-x", str(folder)]
    return user is None or subprocess.run(test, check=False, **popen_options(user)).returncode == 0  # noqa: S603
