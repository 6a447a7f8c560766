"""Health files: small files by which probes see that a worker or beat is alive."""

from __future__ import annotations

import os
import sys
import time

from tasks_app.runtime.startup import DATABASE_VARIABLE, project_key, project_place

RUN_DIR_VARIABLE = "TASKS_APP_RUN_DIR"
WORKER, BEAT, DB = ROLES = ("worker", "beat", "db")
_CONNECT_S = 3
WRITES = 10  # a file is written so often within the time that it is good for


class Liveness:
    """One process's file for one role; a full or read-only disk stops no process.

    Without a name it is the machine's: any process of the role writes it, and it outlives them.
    """

    def __init__(self, role: str, name: str = "", *, good_for_s: float) -> None:
        self._folder = project_folder()
        self._path = f"{self._folder}/{_file(role, name)}"
        self._pid = os.getpid() if name else 0
        self._good_for_s = good_for_s
        self._written_at = -good_for_s
        self._written = ("", "")
        self._born = own_birth() if name else 0.0

    def beat(self, trouble: str = "", note: str = "") -> None:
        """Write that the process lives, and what is wrong; a ``note`` is no reason to restart."""
        now = time.monotonic()
        fresh = now - self._written_at < self._good_for_s / WRITES
        if fresh and (trouble, note) == self._written:
            return
        self._written_at, self._written = now, (trouble, note)
        mine = f"{self._path}.{os.getpid()}"
        line = f"{self._pid} {now!r} {self._good_for_s!r} {trouble}\n{self._born!r} {note}\n"
        try:
            for folder in (run_folder(), self._folder):
                os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103  pathlib: 8 ms
                if not is_ours(folder):
                    return
            with open(mine, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(line)
            os.replace(mine, self._path)  # noqa: PTH105
        except OSError:
            return

    def end(self) -> None:
        """Remove the file, at an orderly end."""
        try:
            os.unlink(self._path)  # noqa: PTH108
        except OSError:
            return


def judge(role: str, name: str | None = None) -> tuple[bool, str]:
    """Return if the process, or all of the role, are healthy, and why; killed ones count last."""
    named = project_place()
    of = f" ({named})" if named else ""
    found = [file for path in _paths(role, name) if (file := _read(path)) is not None]
    verdicts = [(good, word) for alive, good, word in found if alive]
    verdicts = verdicts or [(False, word) for _, _, word in found]
    if not verdicts:
        who = f"{role} {name}" if name else role
        return False, f"{who}: no sign of life in {project_folder()}{of}"
    bad = [word for good, word in verdicts if not good]
    return not bad, "; ".join(bad or [word for _, word in verdicts]) + of


def project_folder() -> str:
    """Return the folder of this project's files: a user may have several databases."""
    return f"{run_folder()}/{project_key()}".rstrip("/")


def run_folder() -> str:
    """Return the folder of all projects: TASKS_APP_RUN_DIR, or one of this user's own."""
    given = os.environ.get(RUN_DIR_VARIABLE)
    return given or f"{os.environ.get('TMPDIR') or '/tmp'}/tasks_app-{os.getuid()}"  # noqa: S108


def is_ours(folder: str) -> bool:
    """Whether this user made it, in a place that is open to all; a configured one is trusted."""
    return bool(os.environ.get(RUN_DIR_VARIABLE)) or os.lstat(folder).st_uid == os.getuid()


def _file(role: str, name: str) -> str:
    return f"{role}-{name.replace('/', '_')}" if name else role


def _names_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder)) if is_ours(folder) else []  # noqa: PTH208
    except OSError:
        return []


def _paths(role: str, name: str | None) -> list[str]:
    """Return the files of this project, or of all where the environment names no database."""
    folder = run_folder()
    folders = [folder, *(f"{folder}/{each}" for each in _names_in(folder))]
    return [
        f"{folder}/{file}"
        for folder in ([project_folder()] if project_key() else folders)
        for file in _names_in(folder)
        if (file == _file(role, name) if name else file.partition("-")[0] == role)
    ]


def _read(path: str) -> tuple[bool, bool, str] | None:
    """Return whether the writer is there, whether it is well, and why; None: no such file."""
    sign = read_sign(path)
    if sign is None:
        return None
    there, ago_s, most, trouble, note = sign
    who, note = path.rpartition("/")[2].replace("-", " ", 1), note and f"; {note}"
    if not there:
        return False, False, f"{who}: its process is gone"
    if not 0 <= ago_s <= most:  # the future: it was written before the machine restarted
        silence = f"no sign of life for {ago_s:.1f} s (allowed are {most:g} s)"
        return True, False, f"{who}: {silence}{note}"
    return True, not trouble, f"{who}: {trouble or f'alive {ago_s:.1f} s ago'}{note}"


def read_sign(path: str) -> tuple[bool, float, float, str, str] | None:
    """Return whether its writer lives, or has no name, age and limit in s, trouble, and note."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            first, _, second = file.read().partition("\n")
        pid, at, good_for_s, trouble = first.split(" ", 3)
        ago_s, most = time.monotonic() - float(at), float(good_for_s)
        born, _, note = second.rstrip("\n").partition(" ")
        fresh = 0 <= ago_s <= most
        # Another process may have got the pid; earlier versions wrote no start.
        same = fresh or not born or born_at(int(pid)) == float(born)
        there = pid == "0" or (_exists(int(pid)) and same)
    except (OSError, ValueError):
        return None
    return there, ago_s, most, trouble, note


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def probe(role: str, name: str | None = None) -> int:
    """Print the verdict in one line, for ``db`` after a connection; return the exit code."""
    if role == DB and project_place():
        good, word = _ask_database()
    else:
        good, word = judge(role, name)
    if not word.isprintable():
        from tasks_app.domain.tasks.error_text import printable  # noqa: PLC0415  it costs

        word = printable(word, keep="")
    sys.stdout.write(f"{word}\n")
    return 0 if good else 1


def _ask_database() -> tuple[bool, str]:
    import psycopg  # noqa: PLC0415  it costs, and other probes need none

    from tasks_app.domain.config.unreachable import why_unreachable  # noqa: PLC0415
    from tasks_app.domain.config.urls import read_database_url  # noqa: PLC0415

    try:
        url = read_database_url(os.environ[DATABASE_VARIABLE])
    except ValueError as error:
        return False, f"db: {DATABASE_VARIABLE} is wrong: {error}"
    driverless = f"postgresql://{url.partition('://')[2]}"
    try:
        with psycopg.connect(driverless, connect_timeout=_CONNECT_S, autocommit=True) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        return False, f"db: the database {why_unreachable(str(error)).fact}"
    return True, f"db: {project_place()} answers"


if sys.platform != "linux":
    import psutil
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def process_facts(pid: int) -> tuple[float, bool] | None:
    """Return when a process started, and whether it is a zombie; None: there is none.

    On Linux by a clock that counts from the boot: by one that may be set, every live child would
    seem dead after a correction of the time.
    """
    if sys.platform != "linux":
        try:
            process = psutil.Process(pid)
            return process.create_time(), process.status() == "zombie"
        except psutil.NoSuchProcess:
            return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  pathlib: 8 ms
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    facts = line.rpartition(b") ")[2].split()  # its name may hold anything
    return round(int(facts[19]) / _TICKS_PER_S, 2), facts[0] in {b"Z", b"X"}


def resident_bytes() -> int:
    """Return how much memory this process has in use."""
    if sys.platform != "linux":
        return int(psutil.Process().memory_info().rss)
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  as above
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def born_at(pid: int) -> float | None:
    facts = process_facts(pid)
    return None if facts is None else facts[0]


def own_birth() -> float:
    born = born_at(os.getpid())
    if born is None:
        raise RuntimeError("The system has no facts about this process. Mount /proc.")
    return born
