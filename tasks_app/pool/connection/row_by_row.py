"""Row by row: a row that the database refuses must not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.config.unreachable import ROW_ERRORS
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.pool.connection.execute import commits_itself
from tasks_app.pool.tables import LEASE, NOW, Clock

log = quiet_logger(__name__)
Row = TypeVar("Row")
Done = TypeVar("Done")
ROUNDS = 10


def row_by_row(
    connection: Connection,
    rows: Iterable[Row],
    do: Callable[[Sequence[Row]], Done],
    what: str,
    *,
    left: set[Any] | None = None,
    now: Clock = None,
) -> list[Done]:
    """Call ``do`` for all rows at once; halve a refused part, down to the row that is the cause."""
    # Refused rows stay as they are; their names are added to ``left``. The log and ``doctor``
    # name them. Returns the result of each part.
    refused: list[tuple[Row, DBAPIError]] = []
    done = list(_parts(connection, list(rows), do, refused))
    if refused:
        # the task's id of a settlement, of a claim's fence or of a row; or the row itself
        names = [getattr(getattr(row, "fence", row), "task_id", row) for row, _ in refused]
        record_refusals(connection, what, names, refused[0][1], now=now)
        if left is not None:
            left.update(names)
    return done


def task_by_task(
    connection: Connection,
    tasks: Iterable[Row],
    do: Callable[[Sequence[Row]], Mapping[int, Done]],
    what: str,
    *,
    left: set[int] | None = None,
    now: Clock = None,
) -> dict[int, Done]:
    """Do :func:`row_by_row`; return the result of each task."""
    parts = row_by_row(connection, tasks, do, what, left=left, now=now)
    return {task_id: done for part in parts for task_id, done in part.items()}


def found_task_by_task(
    connection: Connection,
    find: TextClause,
    values: Mapping[str, Any],
    most: int,
    do: Callable[[Sequence[int]], Mapping[int, Done]],
    what: str,
) -> dict[int, Done]:
    """Do it for up to ``most`` of the ids that ``find`` yields."""
    # The first ones may all be refused: then it skips them.
    for skipped in range(0, ROUNDS * most, most):
        ids = connection.execute(find, {**values, "most": most, "skipped": skipped}).scalars().all()
        done = task_by_task(connection, ids, do, what, now=values["now"])
        if done or len(ids) < most:
            return done
    return {}


def is_of_one_row(error: DBAPIError) -> bool:
    """Whether the database refused a statement because of the content of a row."""
    return _sqlstate(error).startswith(ROW_ERRORS)


def _sqlstate(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", None) or "")


def _parts(
    connection: Connection,
    rows: Sequence[Row],
    do: Callable[[Sequence[Row]], Done],
    refused: list[tuple[Row, DBAPIError]],
) -> Iterator[Done]:
    if not rows:
        return
    place: Any = nullcontext() if commits_itself(connection) else connection.begin_nested()
    try:
        with place:
            done = do(rows)
    except DBAPIError as error:
        if not is_of_one_row(error):
            raise
        if len(rows) == 1:
            refused.append((rows[0], error))
            return
    else:
        yield done
        return
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        yield from _parts(connection, part, do, refused)


class Refusal(NamedTuple):
    what: str
    rows: str
    why: str
    at: datetime


NOTE_OF_REFUSAL = "refused: "
MOST_NAMED = 5
# A locked note is left alone: its locker has refusals to write, too.
RECORD_REFUSALS = (
    text(f"""
    INSERT INTO {LEASE} (name, holder, token, rank) SELECT :name, '', gen_random_uuid(), 0
    WHERE NOT EXISTS (SELECT FROM {LEASE} WHERE name = :name) ON CONFLICT DO NOTHING"""),
    text(f"""
    UPDATE {LEASE} SET done_at = {NOW}, notes = jsonb_build_object('rows', CAST(:rows AS text),
        'why', CAST(:why AS text))
    WHERE name = (SELECT name FROM {LEASE} WHERE name = :name FOR UPDATE SKIP LOCKED)"""),
)


def record_refusals(
    connection: Connection,
    what: str,
    names: Sequence[object],
    error: DBAPIError,
    *,
    now: Clock = None,
) -> None:
    """Log which rows were refused, and note it for ``doctor`` if this role may."""
    rows = ", ".join(map(str, names[:MOST_NAMED]))
    if len(names) > MOST_NAMED:
        rows += f" and {len(names) - MOST_NAMED} more"
    constraint = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    # PostgreSQL's own text would show values
    why = f"{type(error.orig).__name__} {_sqlstate(error)} {constraint or ''}".rstrip()
    log.error("The database refuses %s: %s (%s)", what, rows, why)
    if connection.execute(text(f"SELECT has_table_privilege('{LEASE}', 'INSERT')")).scalar():
        note = {"name": NOTE_OF_REFUSAL + what, "rows": rows, "why": why, "now": now}
        for statement in RECORD_REFUSALS:
            connection.execute(statement, note)


_REFUSALS = text(f"""
    SELECT substr(name, {len(NOTE_OF_REFUSAL) + 1}), notes ->> 'rows', notes ->> 'why', done_at
    FROM {LEASE} WHERE starts_with(name, '{NOTE_OF_REFUSAL}')
      AND done_at > {NOW} - interval '70 min' ORDER BY done_at DESC""")


def refusals(connection: Connection, *, now: Clock = None) -> list[Refusal]:
    """Return the refusals of the last hour, the newest first."""
    return [Refusal(*row) for row in connection.execute(_REFUSALS, {"now": now})]
