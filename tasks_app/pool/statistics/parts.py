"""Parts: what one process, or one statement, has counted of a minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.statistics import outcome_of
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.statistics.sums import KEY, SUMS
from tasks_app.pool.tables import COUNT_PART, NOW


class CountPart(NamedTuple):
    """The running total of a minute, since the process began to count it."""

    minute: int
    """Minutes since 1970."""
    name: str
    queue: str
    outcome: int
    number: int
    wait_ms: int
    run_ms: int
    waits: Sequence[int]
    runs: Sequence[int]


# Sorted, so that nobody deadlocks; totals, so that writing them twice changes nothing.
_WRITE = text(f"""
    INSERT INTO {COUNT_PART} AS c (slot, {KEY}, {SUMS}, written_at)
    SELECT :slot, to_timestamp(t.minute * 60), t.name, t.queue, t.outcome, t.number, t.wait_ms,
        t.run_ms, CAST(t.waits AS bigint[]), CAST(t.runs AS bigint[]), {NOW}
    FROM unnest(
        CAST(:minutes AS bigint[]), CAST(:names AS text[]), CAST(:queues AS text[]),
        CAST(:outcomes AS smallint[]), CAST(:numbers AS bigint[]), CAST(:wait_ms AS bigint[]),
        CAST(:run_ms AS bigint[]), CAST(:waits AS text[]), CAST(:runs AS text[]))
        AS t(minute, name, queue, outcome, number, wait_ms, run_ms, waits, runs)
    ORDER BY t.minute, t.name, t.queue, t.outcome
    ON CONFLICT (at, slot, name, queue, outcome) DO UPDATE SET
        number = EXCLUDED.number, wait_ms = EXCLUDED.wait_ms, run_ms = EXCLUDED.run_ms,
        waits = EXCLUDED.waits, runs = EXCLUDED.runs, written_at = EXCLUDED.written_at
""")
NOTE = text(f"""
    INSERT INTO {COUNT_PART} (slot, {KEY}, {SUMS}, written_at)
    SELECT CAST(gen_random_uuid() AS text), date_trunc('minute', {NOW}), t.name, t.queue, t.outcome,
        t.number, 0, 0, '{{}}', '{{}}', {NOW}
    FROM unnest(
        CAST(:names AS text[]), CAST(:queues AS text[]), CAST(:outcomes AS smallint[]),
        CAST(:numbers AS bigint[])) AS t(name, queue, outcome, number)
""")


def write(
    connection: Connection, slot: str, parts: Sequence[CountPart], *, now: datetime | None = None
) -> None:
    """Write running totals, over those that the slot wrote before."""
    if not parts:
        return
    columns: list[list[Any]] = [list(column) for column in zip(*parts, strict=True)]
    minutes, names, queues, outcomes, numbers, wait_ms, run_ms, waits, runs = columns
    connection.execute(
        _WRITE,
        {
            "slot": slot,
            "minutes": minutes,
            "names": names,
            "queues": queues,
            "outcomes": outcomes,
            "numbers": numbers,
            "wait_ms": wait_ms,
            "run_ms": run_ms,
            "waits": _arrays(waits),
            "runs": _arrays(runs),
            "now": now,
        },
    )


def note(
    connection: Connection,
    moved: Iterable[tuple[str, str, CountedOutcome]],
    *,
    now: datetime | None = None,
) -> None:
    """Count tasks, by name and queue, that this transaction moves and no process runs.

    They are counted if it commits, once.
    """
    counted = Counter(moved)
    if counted:
        columns = [list(column) for column in zip(*counted, strict=True)]
        values = dict(zip(("names", "queues", "outcomes"), columns, strict=True))
        numbers = list(counted.values())
        connection.execute(NOTE, {**values, "numbers": numbers, "now": now})


def note_moved(
    connection: Connection,
    moved: Iterable[Any],
    event: Event | None = None,
    *,
    now: datetime | None = None,
) -> dict[int, State]:
    """Count the rows that a statement has moved, and return where each went.

    They have id, goes_to, name and queue; ``event`` says why some are pending again.
    """
    rows = list(moved)
    note(
        connection,
        [(r.name, r.queue, outcome_of(State(r.goes_to), event or Event.RELEASE)) for r in rows],
        now=now,
    )
    return {row.id: State(row.goes_to) for row in rows}


def _arrays(histograms: Sequence[Sequence[int]]) -> list[str]:
    return ["{" + ",".join(map(str, histogram)) + "}" for histogram in histograms]
