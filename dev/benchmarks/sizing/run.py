"""A measurement from the outside: its schema, its process, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from dev.benchmarks.sizing.measured import DrainMeasured, Measured
from dev.benchmarks.sizing.schema import drop, guard, left_behind, make
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.config.urls import PREFIX
from tasks_app.domain.errors import TasksError
from tasks_app.pool.schema import be_patient
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.startup import DJANGO_VARIABLE

_TRIES = 3
_START_S = 60
"""What the process may take beside the seconds of the measurement."""
_FAREWELL_S = 5.0


def measure(settings: Settings, schema: str, seconds: float) -> Measured:
    """Measure in a new schema of this name, and drop it, whatever happens.

    Raises:
        TasksError: the process that measures failed; with its last words.
    """
    database = Database(settings.database, prepare=settings.prepare)
    engine = database.migration_engine()
    try:
        with (
            _stoppable(),
            _schema(engine, schema),
            tempfile.TemporaryDirectory(prefix="tasks_app-") as folder,
        ):
            found = _process(_environment(settings, schema, folder), seconds)
    finally:
        engine.dispose()
        database.dispose()
    groups, inserts = (DrainMeasured(**found.pop(name)) for name in ("groups", "inserts"))
    return Measured(groups=groups, inserts=inserts, **found)


def tidy(database: Database) -> list[str]:
    """Drop the schemas of measurements that were killed; return their names."""
    engine = database.migration_engine()
    try:
        with engine.connect() as connection:
            be_patient(connection)
            names = left_behind(connection)
            for name in names:
                _drop(engine, name)
            return names
    finally:
        engine.dispose()


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM end it as Ctrl-C does: with the schema dropped."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _schema(engine: Engine, name: str) -> Iterator[None]:
    with engine.connect() as guarding:
        be_patient(guarding)
        guard(guarding, name)
        with engine.begin() as connection:
            make(connection, name)
        try:
            yield
        finally:
            _drop(engine, name)


def _drop(engine: Engine, name: str) -> None:
    """Drop it; what a process that was just killed still does there, ends by itself."""
    for left in reversed(range(_TRIES)):
        try:
            with engine.begin() as connection:
                drop(connection, name)
            return
        except DBAPIError:
            if not left:
                raise
            time.sleep(1)


def _environment(settings: Settings, schema: str, folder: str) -> Mapping[str, str]:
    """Return one in which nothing of the user's own is configured but the database."""
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) and name != DJANGO_VARIABLE
    }
    ours = {
        "DATABASE_URL": settings.database,
        "SCHEMA": schema,
        "PREPARE": "on" if settings.prepare else "off",
        "HINTS": "off",
        "RUN_DIR": folder,
    }
    return {**others, **{PREFIX + name: value for name, value in ours.items()}}


def _process(environment: Mapping[str, str], seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "dev.benchmarks.sizing", "--alone", f"--seconds={seconds:g}"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said, errors = process.communicate(timeout=3 * seconds + _START_S)
        except subprocess.TimeoutExpired:
            raise TasksError(
                f"The measurement did not end within {3 * seconds + _START_S:.0f} s. "
                "The database is busy or slow: try again, or give more --seconds."
            ) from None
        finally:
            _end(process)
    if process.returncode:
        lines = errors.strip().splitlines() or ["it said nothing"]
        raise TasksError(f"The measurement failed: {lines[-1]:.300}")
    found: dict[str, Any] = json.loads(said)
    return found


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_FAREWELL_S)
        process.kill()
