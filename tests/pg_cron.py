"""pg_cron as tests drive it, and cron's own way of reading an expression."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import psycopg
import pytest

from tests.clock import until

NO_PG_CRON = "There is no pg_cron: install a server's package, such as postgresql-15-cron"
SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{folder}'
shared_preload_libraries = 'pg_cron'
cron.database_name = 'postgres'
cron.host = '{folder}'
cron.timezone = 'GMT'
fsync = off
"""


def _binaries() -> Path | None:
    """Return the folder of a distribution's server that has pg_cron."""
    for found in sorted(Path("/usr/lib/postgresql").glob("*/lib/pg_cron.so"), reverse=True):
        if (found.parents[1] / "bin" / "initdb").exists():
            return found.parents[1] / "bin"
    return None


def _is_over(pid: int | str) -> bool:
    """Tell whether it is gone, or a zombie, which holds no memory."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


class CronServer:
    """Its databases are reached by a socket; ``owner`` is a role that is no superuser."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder, self._binaries = folder, binaries
        self._data = folder / "data"
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        self._run("initdb", "-D", str(self._data), "--auth=trust", "-U", "postgres", "-N")
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS.format(folder=folder))

    def start(self) -> None:
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-w", "-t", "60", "start")

    def kill(self) -> None:
        """Kill postmaster and backends, as a crash of the machine would."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            os.kill(each, signal.SIGKILL)
        until(lambda: all(map(_is_over, (pid, *children))))
        # Where nobody reaps orphans, the zombie's pid would be taken for a running server.
        for lock in (self._data / "postmaster.pid", *self._folder.glob(".s.PGSQL.*")):
            lock.unlink()

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "stop", check=False)

    def url(self, database: str, role: str = "owner") -> str:
        return f"postgresql://{role}@/{database}?host={self._folder}"

    def execute(self, database: str, *statements: str, role: str = "postgres") -> list[tuple]:
        """Execute statements one by one; return the rows of the last."""
        with psycopg.connect(self.url(database, role), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        command = [str(self._binaries / program), *arguments]
        user = "postgres" if os.getuid() == 0 else None
        subprocess.run(
            command, check=check, user=user, group=user, extra_groups=[] if user else None,
            cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120,
        )  # fmt: skip


@contextmanager
def cron_server(folder: Path) -> Iterator[CronServer]:
    """Start one in this folder; skip loudly where there is no pg_cron."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip(NO_PG_CRON)
    server = CronServer(folder, binaries)
    server.start()
    try:
        server.execute(
            "postgres",
            *("CREATE EXTENSION pg_cron", "CREATE ROLE owner LOGIN"),
            *("CREATE DATABASE tasks OWNER owner", "GRANT USAGE ON SCHEMA cron TO owner"),
            "GRANT EXECUTE ON FUNCTION cron.schedule_in_database TO owner",
        )
        yield server
    finally:
        server.stop()


MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun"]
FIELDS = ((0, 59, []), (0, 23, []), (1, 31, []), (1, 12, MONTHS), (0, 7, DAYS))


class UnreadError(Exception):
    """cron.schedule refuses it."""


class Vixie:
    """An expression as pg_cron has it."""

    def __init__(self, expression: str) -> None:
        fields = expression.split()
        if len(fields) != len(FIELDS):
            raise UnreadError
        found = [_list(text, *field) for text, field in zip(fields, FIELDS, strict=True)]
        self._minutes, self._hours, self._days, self._months, weekdays = found
        self._weekdays = weekdays | ({0, 7} if weekdays & {0, 7} else set())
        self._both = fields[2][0] == "*" or fields[4][0] == "*"

    def starts(self, hands: datetime) -> bool:
        day, weekday = hands.day in self._days, hands.isoweekday() % 7 in self._weekdays
        return (
            hands.minute in self._minutes
            and hands.hour in self._hours
            and hands.month in self._months
            and ((day and weekday) if self._both else (day or weekday))
        )


def _list(text: str, low: int, high: int, names: list[str]) -> set[int]:
    """What is behind the last term that can be read is skipped, up to the next blank."""
    found: set[int] = set()
    more = True
    while more:
        numbers, text = _range(text, low, high, names)
        found |= numbers
        more, text = text.startswith(","), text[1:]
    return found


def _range(text: str, low: int, high: int, names: list[str]) -> tuple[set[int], str]:
    if text.startswith("*"):
        first, last, text = low, high, text[1:]
    else:
        first, text = _number(text, low, names)
        if not text.startswith("-"):
            if text.startswith("/") or not low <= first <= high:
                raise UnreadError
            return {first}, text
        last, text = _number(text[1:], low, names)
    step = 1
    if text.startswith("/"):
        step, text = _number(text[1:], 0, [])
    if not (low <= first <= high and low <= last <= high and 0 < step <= high):
        raise UnreadError
    return set(range(first, last + 1, step)), text


def _number(text: str, low: int, names: list[str]) -> tuple[int, str]:
    word = re.match("[0-9A-Za-z]*", text)[0]  # type: ignore[index]  it matches anything
    rest = text[len(word) :]
    if word.lower() in names:
        return names.index(word.lower()) + low, rest
    if not word.isdigit():
        raise UnreadError
    return int(word), rest
