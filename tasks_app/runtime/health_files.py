"""The pulse: small files by which probes see that a worker, beat or the database is alive.

A probe may take some milliseconds, so this module imports nothing that costs: no broker and no
settings; the database's driver only where that is asked. A file holds who wrote it, when, how long
that is good for, and what is wrong. Times are of the monotonic
clock, which all processes of a machine share and nobody sets.
"""

from __future__ import annotations

import os
import sys
import time

from tasks_app.runtime.project import key, place

RUN_DIR_VARIABLE = "TASKS_APP_RUN_DIR"
WORKER, BEAT, DB = ROLES = ("worker", "beat", "db")
_PRIVATE = 0o700
WRITES = 10
"""So often is a file written anew within the time that it is good for; more tells nobody more."""


class Liveness:
    """One process's file for one role; a disk that is full or read-only stops nobody.

    Without a name it is the one of the machine: whoever lives may write it, and it outlives them.
    """

    def __init__(self, role: str, name: str = "", *, good_for_s: float) -> None:
        self._folder = project_folder()
        self._path = f"{self._folder}/{_file(role, name)}"
        self._pid = os.getpid() if name else 0
        self._good_for_s = good_for_s
        self._written_at = -good_for_s
        self._trouble = ""

    def beat(self, trouble: str = "") -> None:
        """Show that we live, and what is wrong all the same. It is cheap while nothing changes."""
        now = time.monotonic()
        if trouble == self._trouble and now - self._written_at < self._good_for_s / WRITES:
            return
        self._written_at, self._trouble = now, trouble
        mine = f"{self._path}.{os.getpid()}"
        line = f"{self._pid} {now!r} {self._good_for_s!r} {trouble}\n"
        try:
            for folder in (run_folder(), self._folder):
                os.makedirs(folder, _PRIVATE, exist_ok=True)  # noqa: PTH103  pathlib: 8 ms
                if not _is_ours(folder):
                    return
            with open(mine, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(line)
            os.replace(mine, self._path)  # noqa: PTH105
        except OSError:
            return

    def end(self) -> None:
        """Leave in good order."""
        try:
            os.unlink(self._path)  # noqa: PTH108
        except OSError:
            return


def judge(role: str, name: str | None = None) -> tuple[bool, str]:
    """Tell whether it is healthy, and why. Without a name, all of the role on this machine are.

    Files of processes that were killed are passed over as long as another one of the role lives.
    """
    found = [_read(path) for path in _paths(role, name)]
    living = [file for file in found if file is not None]
    verdicts = [(good, word) for alive, good, word in living if alive]
    verdicts = verdicts or [(False, word) for _, _, word in living]
    if not verdicts:
        who = f"{role} {name}" if name else role
        return False, f"{who}: no sign of life in {project_folder()}{_of_what()}"
    bad = [word for good, word in verdicts if not good]
    return not bad, "; ".join(bad or [word for _, word in verdicts]) + _of_what()


def _of_what() -> str:
    named = place()
    return f" ({named})" if named else ""


def project_folder() -> str:
    """Return the folder of this project's files: users have several, each with its database."""
    return f"{run_folder()}/{key()}".rstrip("/")


def run_folder() -> str:
    """Return the folder of all: TASKS_APP_RUN_DIR, or one of this user's own."""
    given = os.environ.get(RUN_DIR_VARIABLE)
    return given or f"{os.environ.get('TMPDIR') or '/tmp'}/tasks_app-{os.getuid()}"  # noqa: S108


def _is_ours(folder: str) -> bool:
    """Whether nobody else made it, in a place that is open to all; a chosen one is trusted."""
    return bool(os.environ.get(RUN_DIR_VARIABLE)) or os.lstat(folder).st_uid == os.getuid()


def _file(role: str, name: str) -> str:
    return f"{role}-{name.replace('/', '_')}" if name else role


def _paths(role: str, name: str | None) -> list[str]:
    """Return the files of this project; who does not know which one it is sees those of all."""
    found = []
    for folder in _folders():
        try:
            if not _is_ours(folder):
                continue
            names = sorted(os.listdir(folder))  # noqa: PTH208
        except OSError:
            continue
        wanted = [_file(role, name)] if name else [f for f in names if f.partition("-")[0] == role]
        found += [f"{folder}/{file}" for file in wanted]
    return found


def _folders() -> list[str]:
    if key():
        return [project_folder()]
    folder = run_folder()
    try:
        if not _is_ours(folder):
            return []
        return [folder, *(f"{folder}/{name}" for name in sorted(os.listdir(folder)))]  # noqa: PTH208
    except OSError:
        return []


def _read(path: str) -> tuple[bool, bool, str] | None:
    """Return whether the writer is there, whether it is well, and a word; None: no such file."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            pid, at, good_for_s, trouble = file.read().rstrip("\n").split(" ", 3)
        ago, most = time.monotonic() - float(at), float(good_for_s)
        there = pid == "0" or _exists(int(pid))
    except (OSError, ValueError):
        return None
    who = path.rpartition("/")[2].replace("-", " ", 1)
    if not there:
        return False, False, f"{who}: its process is gone"
    if not 0 <= ago <= most:  # the future: it was written before the machine started anew
        return True, False, f"{who}: no sign of life for {ago:.1f} s (allowed are {most:g} s)"
    return True, not trouble, f"{who}: {trouble or f'alive {ago:.1f} s ago'}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def probe(role: str, name: str | None = None) -> int:
    """Print the verdict in one line; return the exit code.

    The database is asked itself, where the environment says which one it is.
    """
    if role == DB and place():
        from tasks_app.runtime.probe import ask  # noqa: PLC0415  it brings psycopg

        good, word = ask()
    else:
        good, word = judge(role, name)
    sys.stdout.write(f"{word}\n")
    return 0 if good else 1
