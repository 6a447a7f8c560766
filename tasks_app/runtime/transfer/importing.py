"""Import: the tasks of a file into this database, each once, however often it is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from sqlalchemy import Engine

from tasks_app.domain.creation.portable_task import PortableTask, task_of
from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tasks.transfer import bring_in, here
from tasks_app.runtime.api.bulk import transaction_of
from tasks_app.runtime.payload_limit import payload_limit

AT_ONCE = 200


@dataclass(slots=True)
class Imported:
    """What came of it."""

    tasks: int = 0
    """Of the file, that are or were here: now, or by an earlier import."""
    left_out: list[int] = field(default_factory=list)
    """By their ids in the file: another task has their name and unique_key here."""


def import_tasks(
    engine: Engine,
    path: Path,
    told: Callable[[PortableTask, int], object] = lambda _task, _became: None,
    *,
    by: str = "",
) -> Imported:
    """Create the tasks of a file; ``told`` is called for each that is here, after its commit.

    The whole file is checked before the first one is created. They keep their idempotency keys.

    Raises:
        InvalidSelectionError: a line is none of an export, or the tasks are of this very database.
    """
    limit, done = payload_limit(), Imported()
    for some in _parts(_tasks(path, limit)):
        with transaction_of(engine) as connection:
            own = here(connection, {task.id: task.idempotency_key for task in some})
        if own:
            raise InvalidSelectionError(
                f"Task {own[0]} waits in this database: it was exported from here. "
                "Set TASKS_APP_DATABASE_URL to the one that the tasks shall go to."
            )
    for some in _parts(_tasks(path, limit)):
        with transaction_of(engine) as connection:
            became = bring_in(connection, some)
            note(connection, "import", {"file": path.name}, who=by, ids=sorted(became.values()))
        for task in some:
            if task.idempotency_key in became:
                done.tasks += 1
                told(task, became[task.idempotency_key])
            else:
                done.left_out.append(task.id)
    return done


def _parts(tasks: Iterator[PortableTask]) -> Iterator[list[PortableTask]]:
    while some := list(islice(tasks, AT_ONCE)):
        yield some


def _tasks(path: Path, limit: int) -> Iterator[PortableTask]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield task_of(line, number, limit)
    except OSError as error:
        raise InvalidSelectionError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidSelectionError(f"{path} is no text. Nothing was imported.") from None
