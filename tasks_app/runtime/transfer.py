"""Moves waiting tasks to another database in a file; no task is lost or created twice."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

from sqlalchemy import Engine

from tasks_app.domain.encryption import token_in
from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.large_values.store import PAYLOAD, reference_in
from tasks_app.domain.operations import BulkAction, parse_selection
from tasks_app.domain.portable_task import IDS, WRONG_JSON, PortableTask, read_line, write_line
from tasks_app.domain.tasks.states import State
from tasks_app.pool.operations.audit import note
from tasks_app.pool.operations.selection import ROWS_PER_PAGE, limits_of_now, read_page
from tasks_app.pool.tasks.transfer import (
    ArrivedTask,
    already_in_pool,
    export_rows,
    insert_imported_tasks,
    still_held_tasks,
)
from tasks_app.runtime.api.bulk import run_bulk, start_bulk, transaction_of
from tasks_app.runtime.large_values import large_values

EXPORTED_AT_ONCE = 1_000


@dataclass(slots=True)
class Exported:
    tasks: int = 0
    members: list[int] = field(default_factory=list)  # left out, as their group stays here


def export_tasks(engine: Engine, path: Path, *, by: str = "", **selection: Any) -> Exported:
    """Write the selected tasks that wait into a file with mode 0600. They stay as they are.

    Each transaction reads a thousand, so tasks that are not held may start meanwhile. The file
    appears when it is complete.
    Raises InvalidSelectionError: it would select everything, or there is such a file;
    LargeStoreError: a large payload is in an object store that does not answer;
    LargeValueLostError: a task with one started meanwhile and is over and removed.
    """
    chosen = parse_selection(BulkAction.CANCEL, {**selection, "state": State.PENDING})
    done = Exported()
    with written_privately(path) as file:
        with transaction_of(engine) as connection:
            end = limits_of_now(connection)
        after: int | None = 0
        while after is not None:
            with transaction_of(engine) as connection:
                found, after = read_page(connection, chosen, end, after, ROWS_PER_PAGE)
                rows = export_rows(connection, [one.id for one in found])
            for row in rows:
                if row.batch_id is not None:
                    done.members.append(row.id)
                    continue
                payload = str(row.payload)  # as it is stored, perhaps encrypted
                if (reference := reference_in(payload)) is not None:
                    begin = partial(transaction_of, engine)
                    payload = large_values().load(begin, row.id, reference, PAYLOAD)
                file.write(write_line(row, payload) + "\n")
                done.tasks += 1
        with transaction_of(engine) as connection:
            note(connection, "export", chosen.plain(), who=by, number=done.tasks)
    return done


@dataclass(slots=True)
class MoveEnded:
    """What became of moved tasks in the database that they left."""

    cancelled: int = 0
    left: list[int] = field(default_factory=list)  # not held, or gone from the pool


def cancel_moved(engine: Engine, receipt: Path, *, by: str = "") -> MoveEnded:
    """Cancel the held tasks of an import's receipt: others may have run here, too."""
    done = MoveEnded()
    moved = list(_receipt(receipt))  # all of it is read first
    for start in range(0, len(moved), EXPORTED_AT_ONCE):
        some = moved[start : start + EXPORTED_AT_ONCE]
        with transaction_of(engine) as connection:
            ids = still_held_tasks(connection, some)
        done.left += sorted({task.id for task in some} - set(ids))
        if ids:
            token = start_bulk(engine, BulkAction.CANCEL, ids=ids, held=True, by=by)
            ended = run_bulk(engine, token, by=by)
            done.cancelled += ended.answers.total() if ended else 0
    return done


def _receipt(path: Path) -> Iterator[ArrivedTask]:
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            given = json.loads(line)
            key = UUID(given["idempotency_key"])
            task = ArrivedTask(int(given["id"]), key, int(given["became"]))
            if task.id not in IDS or task.became not in IDS:
                raise ValueError
            yield task
    except OSError as error:
        raise InvalidSelectionError(f"{path} cannot be read: {error.strerror}.") from None
    except WRONG_JSON:
        raise InvalidSelectionError(
            f"{path} isn't a receipt of an import. tasks-app import writes one."
        ) from None


IMPORTED_AT_ONCE, MOST_CHARACTERS = 200, 16 * 1024 * 1024


@dataclass(slots=True)
class Imported:
    tasks: int = 0  # imported now or earlier, so they are or were here
    left_out: list[int] = field(default_factory=list)  # another task has the name and unique_key


def import_tasks(engine: Engine, path: Path, receipt: Path, *, by: str = "") -> Imported:
    """Create the tasks of a file, and write into a receipt which of them are here.

    The whole file is checked before the first one is created. They keep their idempotency keys.
    The receipt appears when all is done.
    Raises InvalidSelectionError: a line is not of an export, the tasks wait in this database, or
    there is such a receipt.
    """
    limit, done = large_values().payload_limit, Imported()
    with written_privately(receipt) as written:
        for some in _parts(_tasks(path, limit)):
            with transaction_of(engine) as connection:
                own = already_in_pool(connection, some)
            if own:
                raise InvalidSelectionError(
                    f"Task {own[0]} waits in this database: it was exported from here. "
                    "Set TASKS_APP_DATABASE_URL to the database that gets the tasks."
                )
        for some in _parts(_tasks(path, limit)):
            with transaction_of(engine) as connection:
                became = insert_imported_tasks(connection, _outside_of(some))
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
    """Yield some at a time: few where payloads are large, to save memory."""
    some: list[PortableTask] = []
    length = 0
    for task in tasks:
        some.append(task)
        length += len(task.row.payload)
        if len(some) >= IMPORTED_AT_ONCE or length >= MOST_CHARACTERS:
            yield some
            some, length = [], 0
    if some:
        yield some


def _outside_of(tasks: list[PortableTask]) -> list[PortableTask]:
    """Store large payloads outside of their rows."""
    values = large_values()
    return [
        replace(task, row=values.outside(task.row, encrypted=bool(token_in(task.row.payload))))
        if values.has_large_payload(task.row.payload)
        else task
        for task in tasks
    ]


def _tasks(path: Path, limit: int) -> Iterator[PortableTask]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield read_line(line, number, limit)
    except OSError as error:
        raise InvalidSelectionError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidSelectionError(f"{path} isn't text. Nothing was imported.") from None


PART = ".part"


@contextmanager
def written_privately(path: Path) -> Iterator[TextIO]:
    """Yield a file to write; if the block raises, nothing is at ``path``."""
    part = path.with_name(path.name + PART)
    try:
        with os.fdopen(_open_alone(path, part), "w", encoding="utf-8") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.link(part, path)  # fails if it exists meanwhile
            finally:
                with suppress(FileNotFoundError):
                    part.unlink()
    except FileExistsError:
        raise _there(path) from None
    except OSError as error:
        raise InvalidSelectionError(
            f"{path} cannot be written: {error.strerror}. Choose another folder."
        ) from None


def _open_alone(path: Path, part: Path) -> int:
    """Return an empty file, locked for this process; what a killed export left is overwritten."""
    while True:
        if path.exists():
            raise _there(path)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        opened = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, 0o600)
            if os.fstat(descriptor).st_nlink:  # else its writer has just removed it
                os.ftruncate(descriptor, 0)
                opened = True
                return descriptor
        except BlockingIOError:
            raise InvalidSelectionError(
                f"Another process is writing {path}. Wait for it, or choose another name."
            ) from None
        finally:
            if not opened:
                os.close(descriptor)


def _there(path: Path) -> InvalidSelectionError:
    return InvalidSelectionError(f"{path} exists already. Choose another name, or remove it.")
