"""Export: waiting tasks to a file; and the end of a move, at the database that they came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Engine

from tasks_app.domain.portable_task import IDS
from tasks_app.domain.portable_task import WRONG_JSON
from tasks_app.domain.portable_task import line_of
from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.large_values.reference import PAYLOAD, reference_in
from tasks_app.domain.operations import BulkAction
from tasks_app.domain.operations import select
from tasks_app.domain.tasks.states import State
from tasks_app.pool.operations.audit import note
from tasks_app.pool.operations.selection import LOOKED_AT, cut, look
from tasks_app.pool.tasks.transfer import ArrivedTask, held, leaving
from tasks_app.runtime.api.bulk import run_bulk, start_bulk, transaction_of
from tasks_app.runtime.large_values import large_values
from tasks_app.runtime.transfer.private_file import written_privately

AT_ONCE = 1_000


@dataclass(slots=True)
class Exported:
    """What was written."""

    tasks: int = 0
    members: list[int] = field(default_factory=list)
    """Left out: tasks of groups, which are counted where the group is."""


def export_tasks(engine: Engine, path: Path, *, by: str = "", **selection: Any) -> Exported:
    """Write the selected tasks that wait into a file with mode 0600. They stay as they are.

    A thousand at a time, so that no transaction is open for long: tasks that are not held may
    begin meanwhile. The file is there when all is in it.

    Raises:
        InvalidSelectionError: it would select everything, or there is such a file.
        LargeStoreError: a large payload is in an object store that does not answer.
        LargeValueLostError: a task with one began meanwhile and is over and removed.
    """
    chosen = select(BulkAction.CANCEL, {**selection, "state": State.PENDING})
    done = Exported()
    with written_privately(path) as file:
        with transaction_of(engine) as connection:
            end = cut(connection)
        after: int | None = 0
        while after is not None:
            with transaction_of(engine) as connection:
                found, after = look(connection, chosen, end, after, LOOKED_AT)
                rows = leaving(connection, [one.id for one in found])
            for row in rows:
                if row.batch_id is not None:
                    done.members.append(row.id)
                else:
                    file.write(line_of(row, _payload(engine, row)) + "\n")
                    done.tasks += 1
        with transaction_of(engine) as connection:
            note(connection, "export", chosen.plain(), who=by, number=done.tasks)
    return done


def _payload(engine: Engine, row: Any) -> str:
    """Return a payload in full, as it is stored."""
    reference = reference_in(row.payload)
    if reference is None:
        return str(row.payload)
    return large_values().load(partial(transaction_of, engine), row.id, reference, PAYLOAD)


@dataclass(slots=True)
class MoveEnded:
    """What became of moved tasks where they came from."""

    cancelled: int = 0
    left: list[int] = field(default_factory=list)
    """Not cancelled: they are not held, or gone from the pool."""


def cancel_moved(engine: Engine, receipt: Path, *, by: str = "") -> MoveEnded:
    """Cancel what an import says it has, if it is held here: what is not may have run here, too.

    Raises:
        InvalidSelectionError: it is no receipt of an import.
    """
    done = MoveEnded()
    moved = list(_receipt(receipt))  # all of it is read before anything is done
    for start in range(0, len(moved), AT_ONCE):
        some = moved[start : start + AT_ONCE]
        with transaction_of(engine) as connection:
            ids = held(connection, some)
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
            f"{path} is no receipt of an import. tasks-app import writes one."
        ) from None
