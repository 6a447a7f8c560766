"""Import: the tasks of a file into this database, each once, however often it is tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy import Engine

from tasks_app.domain.portable_task import PortableTask
from tasks_app.domain.portable_task import task_of
from tasks_app.domain.encryption.envelope import token_in
from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tasks.transfer import ArrivedTask, bring_in, here
from tasks_app.runtime.api.bulk import transaction_of
from tasks_app.runtime.large_values import large_values
from tasks_app.runtime.payload_limit import creation_limit
from tasks_app.runtime.transfer.private_file import written_privately

AT_ONCE, MOST_CHARACTERS = 200, 16 * 1024 * 1024


@dataclass(slots=True)
class Imported:
    """What came of it."""

    tasks: int = 0
    """Of the file, that are or were here: now, or by an earlier import."""
    left_out: list[int] = field(default_factory=list)
    """By their ids in the file: another task has their name and unique_key here."""


def import_tasks(engine: Engine, path: Path, receipt: Path, *, by: str = "") -> Imported:
    """Create the tasks of a file, and write which of them are here into a receipt.

    The whole file is checked before the first one is created. They keep their idempotency keys.
    The receipt is there when all is done.

    Raises:
        InvalidSelectionError: a line is none of an export, the tasks are of this very database, or
            there is such a receipt.
    """
    limit, done = creation_limit(), Imported()
    with written_privately(receipt) as written:
        for some in _parts(_tasks(path, limit)):
            with transaction_of(engine) as connection:
                own = here(connection, some)
            if own:
                raise InvalidSelectionError(
                    f"Task {own[0]} waits in this database: it was exported from here. "
                    "Set TASKS_APP_DATABASE_URL to the one that the tasks shall go to."
                )
        for some in _parts(_tasks(path, limit)):
            with transaction_of(engine) as connection:
                became = bring_in(connection, _outside_of(some))
                ids = sorted(became.values())
                note(connection, "import", {"file": path.name}, who=by, ids=ids)
            for task in some:
                if task.idempotency_key in became:
                    done.tasks += 1
                    moved = ArrivedTask(task.id, task.idempotency_key, became[task.idempotency_key])
                    written.write(json.dumps(moved._asdict(), default=str) + "\n")
                else:
                    done.left_out.append(task.id)
    return done


def _parts(tasks: Iterator[PortableTask]) -> Iterator[list[PortableTask]]:
    """Yield some at a time: few where payloads are large, since they are all in memory."""
    some: list[PortableTask] = []
    length = 0
    for task in tasks:
        some.append(task)
        length += len(task.row.payload)
        if len(some) >= AT_ONCE or length >= MOST_CHARACTERS:
            yield some
            some, length = [], 0
    if some:
        yield some


def _outside_of(tasks: list[PortableTask]) -> list[PortableTask]:
    """Return the tasks with large payloads outside of their rows."""
    values = large_values()
    large = {i for i, task in enumerate(tasks) if values.has_large_payload(task.row.payload)}
    if not large:
        return tasks
    encrypted = {i for i in large if token_in(tasks[i].row.payload)}
    rows = values.outside_of([task.row for task in tasks], large, encrypted)
    return [replace(task, row=row) for task, row in zip(tasks, rows, strict=True)]


def _tasks(path: Path, limit: int) -> Iterator[PortableTask]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield task_of(line, number, limit)
    except OSError as error:
        raise InvalidSelectionError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidSelectionError(f"{path} is no text. Nothing was imported.") from None
