"""Row by row: what the database refuses for the sake of one row must not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.config.unreachable import OF_ONE_ROW
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.pool.connection.execute import commits_itself
from tasks_app.pool.tables import LEASE, NOW

log = quiet_logger(__name__)
Row = TypeVar("Row")
Done = TypeVar("Done")

MOST_NAMED = 5
ROUNDS = 10
NOTE_OF_REFUSAL = "refused: "
# Who finds the note locked leaves it: the other has something to tell, too.
TELL = (
    text(f"""
    INSERT INTO {LEASE} (name, holder, token, rank) SELECT :name, '', gen_random_uuid(), 0
    WHERE NOT EXISTS (SELECT FROM {LEASE} WHERE name = :name) ON CONFLICT DO NOTHING"""),
    text(f"""
    UPDATE {LEASE} SET done_at = {NOW}, notes = jsonb_build_object('rows', CAST(:rows AS text),
        'why', CAST(:why AS text))
    WHERE name = (SELECT name FROM {LEASE} WHERE name = :name FOR UPDATE SKIP LOCKED)"""),
)
_MAY_TELL = text(f"SELECT has_table_privilege('{LEASE}', 'INSERT')")
_TOLD = text(f"""
    SELECT substr(name, {len(NOTE_OF_REFUSAL) + 1}), notes ->> 'rows', notes ->> 'why', done_at
    FROM {LEASE} WHERE starts_with(name, '{NOTE_OF_REFUSAL}')
      AND done_at > {NOW} - interval '70 min' ORDER BY done_at DESC""")


class Refusal(NamedTuple):
    """Rows that a duty left as they are, since the database refuses what is to be done to them."""

    what: str
    rows: str
    why: str
    at: datetime


def is_of_one_row(error: DBAPIError) -> bool:
    """Whether the database refused a statement for what some row of it holds."""
    return _sqlstate(error).startswith(OF_ONE_ROW)


def row_by_row(
    connection: Connection,
    rows: Iterable[Row],
    do: Callable[[Sequence[Row]], Done],
    what: str,
    *,
    left: set[Any] | None = None,
    now: datetime | None = None,
) -> list[Done]:
    """Do it for all rows at once; what is refused is halved, down to the row that is the cause.

    That one stays as it is; its name is added to ``left``. The log names it, and so does
    ``doctor``. Returns what each part gave.
    """
    refused: list[tuple[Row, DBAPIError]] = []
    done = list(_parts(connection, list(rows), do, refused))
    if refused:
        names = [_name(row) for row, _ in refused]
        tell(connection, what, names, refused[0][1], now=now)
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
    now: datetime | None = None,
) -> dict[int, Done]:
    """Do :func:`row_by_row`; return what became of each task."""
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
    """Do it for up to ``most`` of what ``find`` yields.

    Those in front may all be such as are refused: then it looks behind them.
    """
    for skipped in range(0, ROUNDS * most, most):
        found = connection.execute(find, {**values, "most": most, "skipped": skipped}).scalars()
        ids = found.all()
        done = task_by_task(connection, ids, do, what, now=values["now"])
        if done or len(ids) < most:
            return done
    return {}


def tell(
    connection: Connection,
    what: str,
    names: Sequence[object],
    error: DBAPIError,
    *,
    now: datetime | None = None,
) -> None:
    """Log which rows were refused, and note it for ``doctor`` if this role may."""
    rows = ", ".join(map(str, names[:MOST_NAMED]))
    if len(names) > MOST_NAMED:
        rows += f" and {len(names) - MOST_NAMED} more"
    why = _why(error)
    log.error("%s is refused by the database: %s (%s)", what, rows, why)
    if not connection.execute(_MAY_TELL).scalar():
        return
    for statement in TELL:
        note = {"name": NOTE_OF_REFUSAL + what, "rows": rows, "why": why, "now": now}
        connection.execute(statement, note)


def refusals(connection: Connection, *, now: datetime | None = None) -> list[Refusal]:
    """Return what was refused in the last hour, the newest first."""
    return [Refusal(*row) for row in connection.execute(_TOLD, {"now": now})]


def _name(row: Any) -> Any:
    """Return the task's id of a settlement, of a claim's fence or of a row; or what it is."""
    return getattr(getattr(row, "fence", row), "task_id", row)


def _sqlstate(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", None) or "")


def _why(error: DBAPIError) -> str:
    """Return what is wrong, without the values that PostgreSQL puts into its texts."""
    constraint = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    return f"{type(error.orig).__name__} {_sqlstate(error)} {constraint or ''}".rstrip()


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
