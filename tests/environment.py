"""What the machine of a test has, and what a test may not do with it."""

from __future__ import annotations

import os
import select
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from psycopg import AsyncConnection, Connection, generators
from psycopg._connection_base import BaseConnection
from psycopg.pq import ConnStatus, ExecStatus, PGconn, PipelineStatus, TransactionStatus
from sqlalchemy import Engine


@contextmanager
def forbidden(engine: Engine, table: str, which: str) -> Iterator[None]:
    """Let a CHECK refuse rows that fulfil the condition ``which``."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"ALTER TABLE {table} ADD CONSTRAINT forbidden CHECK ({which} IS NOT TRUE) NOT VALID"
        )
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP CONSTRAINT forbidden")


CELERY = tuple(int(number) for number in version("celery").split(".")[:2])
NEWEST_CELERY = CELERY >= (5, 7)


def python_path(*folders: Path) -> str:
    """Return the folders, and behind them what this process was given: a mutant of the product."""
    given = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join([*map(str, folders), *given])


def run_program(command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run it to its end, whatever its status, and keep what it prints."""
    options = {"capture_output": True, "text": True, "check": False, **options}
    return subprocess.run(command, **options)  # noqa: PLW1510  it may be given


PROJECT = Path(__file__).parents[1]


def rename(name: str, *owners: Any, patch: pytest.MonkeyPatch | None = None) -> None:
    """Give it another name in these classes, and in their functions that use it."""
    patch = patch or pytest.MonkeyPatch()
    new = f"{name}_anew"
    for owner in owners:
        for function in _functions(owner):
            patch.setattr(function, "__code__", _using(function.__code__, name, new))
        if name in vars(owner):
            value = vars(owner)[name]
            patch.delattr(owner, name)
            patch.setattr(owner, new, value, raising=False)


def in_all_processes(folder: Path, *lines: str) -> dict[str, str]:
    """Return the environment of processes that carry out these lines before anything else."""
    text = "\n".join(("from tests.environment import rename", *map(textwrap.dedent, lines), ""))
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": f"{folder}:{PROJECT}:{PROJECT / 'tests' / 'broker' / 'house'}"}


def _functions(owner: Any) -> Iterator[FunctionType]:
    for value in list(vars(owner).values()):
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            yield function


def _using(code: CodeType, name: str, new: str) -> CodeType:
    names = tuple(new if each == name else each for each in code.co_names)
    inside = tuple(
        _using(each, name, new) if isinstance(each, CodeType) else each for each in code.co_consts
    )
    return code.replace(co_names=names, co_consts=inside)


MOST = 24
"""Kept at a time, of the hundred that the server allows."""


class Warm:
    """What is kept."""

    def __init__(self) -> None:
        self.on = False
        self._kept: list[tuple[str, PGconn]] = []
        self._lock = threading.Lock()
        self._dead = PGconn.connect_start(b"host=/nowhere")
        self._dead.finish()

    def turn(self, *, on: bool) -> None:
        """Keep connections from now on, or close all that are kept."""
        self.on = on
        if not on:
            self.clear()

    def take(self, words: str) -> PGconn | None:
        """Return one that was made with these words and lives."""
        while self.on:
            with self._lock:
                place = next((n for n, (w, _) in enumerate(self._kept) if w == words), None)
                if place is None:
                    return None
                _, found = self._kept.pop(place)
            if _lives(found):
                return found
            found.finish()
        return None

    def keep(self, connection: Any) -> bool:
        """Take it over from who closes it, if it is one of ours; keep it if it is as new."""
        words = getattr(connection, "_words", None)
        if not self.on or words is None or getattr(connection, "_pool", None):
            return False
        with self._lock:  # two threads may close it
            pgconn, connection.pgconn = connection.pgconn, self._dead
        connection._closed = True
        if not _resets(pgconn):
            pgconn.finish()
            return True
        with self._lock:
            self._kept.append((words, pgconn))
            spilt = self._kept.pop(0)[1] if len(self._kept) > MOST else None
        if spilt is not None:
            spilt.finish()
        return True

    def clear(self) -> None:
        """Close what is kept."""
        with self._lock:
            kept, self._kept = self._kept, []
        for _, pgconn in kept:
            pgconn.finish()


def _lives(pgconn: PGconn) -> bool:
    """Whether the server has said nothing since: it would be that it ends the connection."""
    return not select.select([pgconn.socket], [], [], 0)[0]


def _resets(pgconn: PGconn) -> bool:
    return (
        pgconn.status == ConnStatus.OK
        and pgconn.transaction_status == TransactionStatus.IDLE
        and pgconn.pipeline_status == PipelineStatus.OFF
        and pgconn.exec_(b"DISCARD ALL").status == ExecStatus.COMMAND_OK
    )


WARM = Warm()


def install() -> None:
    """Let connections of this process come from there and return to it, whenever it is on."""
    closed, aclosed = Connection.close, AsyncConnection.close

    def connect(cls: type[Any], conninfo: str = "", **options: Any) -> Iterator[Any]:
        pgconn = WARM.take(conninfo)
        if pgconn is None:
            pgconn = yield from generators.connect(conninfo, **options)  # type: ignore[misc]
        connection = cls(pgconn)
        connection._words = conninfo
        return connection

    def close(self: Connection) -> None:
        if not WARM.keep(self):
            closed(self)

    async def aclose(self: AsyncConnection) -> None:
        if not WARM.keep(self):
            await aclosed(self)

    BaseConnection._connect_gen = classmethod(connect)  # type: ignore[method-assign,assignment]
    Connection.close, AsyncConnection.close = close, aclose  # type: ignore[method-assign]
