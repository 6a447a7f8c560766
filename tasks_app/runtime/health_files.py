"""Health files: small files by which probes see that a worker or beat is alive."""

from __future__ import annotations

import os
import sys
import time

from tasks_app.runtime.project import DATABASE_VARIABLE, project_key, project_place

RUN_DIR_VARIABLE = "TASKS_APP_RUN_DIR"
WORKER, BEAT, DB = ROLES = ("worker", "beat", "db")
_PRIVATE = 0o700
_CONNECT_S = 3
WRITES = 10
"""A file is written anew so often within the time that it is good for."""


class Liveness:
    """One process's file for one role; a disk that is full or read-only stops no process.

    Without a name it is the machine's: any process of the role writes it, and it outlives them.
    """

    def __init__(self, role: str, name: str = "", *, good_for_s: float) -> None:
        self._folder = project_folder()
        self._path = f"{self._folder}/{_file(role, name)}"
        self._pid = os.getpid() if name else 0
        self._good_for_s = good_for_s
        self._written_at = -good_for_s
        self._said = ("", "")
        self._born = own_birth() if name else 0.0

    def beat(self, trouble: str = "", note: str = "") -> None:
        """Show that the process lives, and what is wrong with it; cheap while nothing changes.

        A ``note`` makes nobody unhealthy: a restart would not help.
        """
        now = time.monotonic()
        if (trouble, note) == self._said and now - self._written_at < self._good_for_s / WRITES:
            return
        self._written_at, self._said = now, (trouble, note)
        mine = f"{self._path}.{os.getpid()}"
        line = f"{self._pid} {now!r} {self._good_for_s!r} {trouble}\n{self._born!r} {note}\n"
        try:
            for folder in (run_folder(), self._folder):
                os.makedirs(folder, _PRIVATE, exist_ok=True)  # noqa: PTH103  pathlib: 8 ms
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
    """Tell whether it is healthy, and why; without a name, whether all of the role here are.

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
    named = project_place()
    return f" ({named})" if named else ""


def project_folder() -> str:
    """Return the folder of this project's files: a user may have several databases."""
    return f"{run_folder()}/{project_key()}".rstrip("/")


def run_folder() -> str:
    """Return the folder of all projects: TASKS_APP_RUN_DIR, or one of this user's own."""
    given = os.environ.get(RUN_DIR_VARIABLE)
    return given or f"{os.environ.get('TMPDIR') or '/tmp'}/tasks_app-{os.getuid()}"  # noqa: S108


def is_ours(folder: str) -> bool:
    """Whether nobody else made it, in a place that is open to all; a configured one is trusted."""
    return bool(os.environ.get(RUN_DIR_VARIABLE)) or os.lstat(folder).st_uid == os.getuid()


def _file(role: str, name: str) -> str:
    return f"{role}-{name.replace('/', '_')}" if name else role


def _paths(role: str, name: str | None) -> list[str]:
    """Return the files of this project, or of all where the environment names no database."""
    found = []
    for folder in _folders():
        try:
            if not is_ours(folder):
                continue
            names = sorted(os.listdir(folder))  # noqa: PTH208
        except OSError:
            continue
        wanted = [_file(role, name)] if name else [f for f in names if f.partition("-")[0] == role]
        found += [f"{folder}/{file}" for file in wanted]
    return found


def _folders() -> list[str]:
    if project_key():
        return [project_folder()]
    folder = run_folder()
    try:
        if not is_ours(folder):
            return []
        return [folder, *(f"{folder}/{name}" for name in sorted(os.listdir(folder)))]  # noqa: PTH208
    except OSError:
        return []


def _read(path: str) -> tuple[bool, bool, str] | None:
    """Return whether the writer is there, whether it is well, and a word; None: no such file."""
    sign = read_sign(path)
    if sign is None:
        return None
    there, ago_s, most, trouble, note = sign
    who, note = path.rpartition("/")[2].replace("-", " ", 1), note and f"; {note}"
    if not there:
        return False, False, f"{who}: its process is gone"
    if not 0 <= ago_s <= most:  # the future: it was written before the machine started anew
        return (
            True,
            False,
            f"{who}: no sign of life for {ago_s:.1f} s (allowed are {most:g} s){note}",
        )
    return True, not trouble, f"{who}: {trouble or f'alive {ago_s:.1f} s ago'}{note}"


def read_sign(path: str) -> tuple[bool, float, float, str, str] | None:
    """Return what the file says; None: it cannot be read.

    That is: whether its writer lives or it is nobody's, how old it is and may be, in seconds, what
    is wrong, and the note.
    """
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            first, _, second = file.read().partition("\n")
        pid, at, good_for_s, trouble = first.split(" ", 3)
        ago_s, most = time.monotonic() - float(at), float(good_for_s)
        born, _, note = second.rstrip("\n").partition(" ")
        there = pid == "0" or (_exists(int(pid)) and (0 <= ago_s <= most or _is(int(pid), born)))
    except (OSError, ValueError):
        return None
    return there, ago_s, most, trouble, note


def _is(pid: int, born: str) -> bool:
    """Whether the process is the one that started then; versions before wrote no start."""
    return not born or born_at(pid) == float(born)


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

    Of the role ``db`` the database itself is asked, if the environment names one.
    """
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
    """Return whether the database that the environment names answers, and a word on it."""
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


_STATE, _START = 0, 19
"""Places in ``/proc/PID/stat`` behind the name, as proc(5) counts them from its third."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


if sys.platform != "linux":
    import psutil

    def _process(pid: int) -> psutil.Process | None:
        try:
            return psutil.Process(pid)
        except psutil.NoSuchProcess:
            return None


def born_at(pid: int) -> float | None:
    """Return when a process started, on a clock that nobody sets; None: there is none.

    Linux counts from the boot. Counted from the epoch, by a clock that may be set, every live child
    would look dead after a correction of the time.
    """
    if sys.platform != "linux":
        process = _process(pid)
        return None if process is None else process.create_time()
    facts = _stat(pid)
    return None if facts is None else round(int(facts[_START]) / _TICKS_PER_S, 2)


def own_birth() -> float:
    born = born_at(os.getpid())
    if born is None:
        raise RuntimeError("The system tells nothing of this process. Mount /proc.")
    return born


def is_zombie(pid: int) -> bool:
    """Tell whether a process has ended, and nobody has asked how."""
    if sys.platform != "linux":
        process = _process(pid)
        return process is not None and process.status() == "zombie"
    facts = _stat(pid)
    return facts is not None and facts[_STATE] in {b"Z", b"X"}


def _stat(pid: int) -> list[bytes] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  pathlib: 8 ms
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return line.rpartition(b") ")[2].split()  # its name may hold anything
