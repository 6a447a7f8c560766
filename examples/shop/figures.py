"""What the pools say of today's tasks, by plain SQL: the same that you would ask at a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from shop.diary import Diary

TODAY = """
    WITH
    task AS (SELECT * FROM task_all WHERE id > :since AND name = ANY(:names)),
    attempt AS (SELECT a.* FROM task_attempt a JOIN task t ON t.id = a.task_id)
"""
_BY_NAME = """
    SELECT name,
        count(*) FILTER (WHERE state = 'PENDING' AND due_at > now()) AS later,
        count(*) FILTER (WHERE state = 'PENDING' AND due_at <= now()) AS due,
        count(*) FILTER (WHERE state = 'RUNNING') AS running,
        count(*) FILTER (WHERE state = 'SUCCEEDED') AS done,
        sum(failures) - count(*) FILTER (WHERE state = 'FAILED') AS retried,
        count(*) FILTER (WHERE state IN ('SKIPPED', 'EXPIRED')) AS skipped,
        count(*) FILTER (WHERE state = 'CANCELLED') AS cancelled,
        count(*) FILTER (WHERE state = 'FAILED') AS failed
    FROM task GROUP BY name ORDER BY min(id)
"""
_SPANS = """
    SELECT name,
        percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (
            ORDER BY extract(epoch FROM started_at - due_at) * 1000) AS waited_ms,
        percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY run_ms) AS ran_ms
    FROM task WHERE finished_at IS NOT NULL AND started_at >= due_at GROUP BY name
"""
_FIRST = "SELECT extract(epoch FROM now() - min(finished_at)) FROM task WHERE run_ms >= 0"
_WORKERS = """
    SELECT count(*) FROM task_worker
    WHERE seen_at > now() - interval '2 s' AND 'points.grant' = ANY(handlers)
"""
_EARLIER = "SELECT count(*), max(id) FROM task_all"
_ANOTHER = "SELECT min(name) FROM task_all WHERE name <> ALL(:names)"


@dataclass(frozen=True, slots=True)
class Line:
    """Today's tasks of one name: how many are where."""

    name: str
    later: int
    due: int
    running: int
    done: int
    retried: int
    skipped: int
    cancelled: int
    failed: int

    @property
    def unfinished(self) -> int:
        """How many are still in the pending pool."""
        return self.later + self.due + self.running


@dataclass(frozen=True, slots=True)
class Spans:
    """Median and 95th percentile, in milliseconds: from due to started, and of the run."""

    waited_ms: Sequence[float] | None
    ran_ms: Sequence[float] | None


def lines(connection: Connection, diary: Diary) -> list[Line]:
    """Count today's tasks by name, in the order in which the names appeared."""
    return [Line(*row) for row in ask(connection, diary, _BY_NAME)]


def earlier(connection: Connection) -> tuple[int, int | None]:
    """Return how many tasks the pools hold, and the newest id; before the day begins."""
    number, newest = connection.execute(text(_EARLIER)).one()
    return number, newest


def another_task(connection: Connection, names: Sequence[str]) -> str | None:
    """Return a name that is not among these. None: there is no other, or no pool."""
    if connection.execute(text("SELECT to_regclass('task_all')")).scalar_one() is None:
        return None
    name: str | None = connection.execute(text(_ANOTHER), {"names": list(names)}).scalar_one()
    return name


def total(of: Sequence[Line]) -> Line:
    """Add lines up."""
    sums = [sum(column) for column in zip(*(_numbers(line) for line in of), strict=True)]
    return Line("all", *(sums or [0] * 8))


def spans(connection: Connection, diary: Diary) -> dict[str, Spans]:
    """Return how long the last runs of finished tasks waited and took, by name."""
    rows = ask(connection, diary, _SPANS)
    return {row.name: Spans(row.waited_ms, row.ran_ms) for row in rows}


def first_done_s_ago(connection: Connection, diary: Diary) -> float | None:
    """Return how many seconds ago today's first task succeeded, or None: none has yet."""
    [row] = ask(connection, diary, _FIRST)
    return None if row[0] is None else float(row[0])


def live_workers(connection: Connection) -> int:
    """Return how many worker children, just now, have shown that they know our handlers."""
    return int(connection.execute(text(_WORKERS)).scalar_one())


def ask(connection: Connection, diary: Diary, sql: str, **values: object) -> list[Any]:
    """Run a query, which may name today's ``task`` and ``attempt``."""
    bound = {"since": diary.since, "names": list(diary.names), **values}
    return list(connection.execute(text(TODAY + sql), bound))


def _numbers(line: Line) -> list[int]:
    return [getattr(line, name) for name in Line.__dataclass_fields__ if name != "name"]
