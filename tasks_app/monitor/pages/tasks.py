"""Tasks: a page of them by filters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, text

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.queues import queue_status
from tasks_app.domain.statistics import Unkept
from tasks_app.domain.tasks.states import Pool, State, pool_of
from tasks_app.pool.flow_control import queue_settings
from tasks_app.pool.fragments.conditions import OPEN_NEEDS, is_held, own_date
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.statistics.read import unkept
from tasks_app.pool.tables import ALL, EVERY_QUEUE, FIRE, GROUP_IDS, SCHEDULE, database_now
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api.tasks import masked_errors, masked_texts

PAGE, EXPORTED = 50, 1_000
MOST_EXPORTED = 100_000
SINCE = ("1h", "24h", "7d", "30d")  # how long ago a task was created at most
# Filters that a bulk knows, too, and what it calls them.
SELECTIONS = {name: name for name in ("pool", "state", "name", "queue", "biz_key")}
SELECTIONS["error"] = "error_text"
UNSERVED = "no live worker serves its queue"
UNKNOWN = "no live worker of its queue knows its name"
_NEVER_UNKEPT = frozenset({"error", "fingerprint", "group", "held"})
MOST = 10_000  # tasks that are counted; the page shows if there are more


@dataclass(frozen=True, slots=True)
class TaskLine:
    id: int
    pool: str
    state: State
    name: str
    queue: str
    biz_key: str | None
    attempt: int
    failures: int
    max_attempts: int | None
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    run_ms: int | None
    parked: str | None
    error: str | None
    held: bool
    waits_for: int | None
    sub_status: str | None


@dataclass(frozen=True, slots=True)
class Tasks:
    at: datetime
    filters: dict[str, str]
    rows: tuple[TaskLine, ...]
    remarks: dict[int, str]  # its sub-status, and the error or why it waits, by id
    number: int  # all that match, or ``most``
    more: bool  # there may be more than ``number``: not all tasks were looked at
    unkept: Unkept | None  # successes that may fit, too, and left no row
    older: int | None  # the id to go on below; None: this is the last page

    @property
    def selection(self) -> dict[str, str]:
        """The filters of a bulk; empty: it lacks one of these, or they select everything."""
        if self.filters.keys() - SELECTIONS or not self.filters.keys() - {"pool", "state"}:
            return {}
        return {SELECTIONS[name]: value for name, value in self.filters.items()}


def tasks(
    connection: Connection,
    filters: dict[str, str],
    settings: Settings,
    *,
    before: int | None = None,
) -> Tasks:
    filters = _narrowed(filters)
    found = find_tasks(connection, filters, before=before, most=PAGE)
    shown = tuple(masked_errors(connection, found.rows))
    going = [row.id for row in shown if row.attempt and row.finished_at is None]
    causes = masked_texts(connection, browse.last_causes(connection, going))
    at = database_now(connection)
    waits = _waits(connection, [row for row in shown if row.state is State.PENDING], at, settings)
    remarks = {}
    for row in shown:
        why = row.error or row.parked or waits.get(row.id) or causes.get(row.id)
        remarks[row.id] = "; ".join(each for each in (row.sub_status, why) if each)
    return Tasks(
        at=at,
        filters=filters,
        rows=shown,
        remarks=remarks,
        number=min(found.number, MOST),
        more=found.number > MOST or not found.whole,
        unkept=unkept_of(connection, filters),
        older=found.below,
    )


def unkept_of(connection: Connection, filters: Mapping[str, Any]) -> Unkept | None:
    """Return successes that left no row, if the filters include successes.

    The counters know their names and queues; any of them may fit the other filters.
    """
    given = {"pool": Pool.COMPLETED, "state": State.SUCCEEDED}
    given |= {key: value for key, value in filters.items() if value}
    places = given["pool"], given["state"].upper()
    if places != (Pool.COMPLETED, State.SUCCEEDED) or given.keys() & _NEVER_UNKEPT:
        return None
    return unkept(connection, name=given.get("name"), queue=given.get("queue"))


def _narrowed(filters: dict[str, str]) -> dict[str, str]:
    """Search errors in the error pool only: millions of completed tasks have none."""
    if "error" in filters and "state" not in filters:
        return {**filters, "pool": filters.get("pool", Pool.ERROR)}
    return filters


def _waits(
    connection: Connection, rows: list[TaskLine], at: datetime, settings: Settings
) -> dict[int, str]:
    """Return why rows could not run now, if that is due to their queue or their name."""
    if not rows:
        return {}
    found = {each.queue: each for each in queue_settings.find_queues(connection) if not each.runs}

    def standing(queue: str) -> str:  # of a pause its reason, not its times
        each = found[queue]
        if each.paused_since is None:
            return queue_status(each)
        return f"paused: {each.reason}" if each.reason else "paused"

    if EVERY_QUEUE in found:
        return {row.id: f"every queue is {standing(EVERY_QUEUE)}" for row in rows}
    known = heartbeats.handlers_by_queue(connection, settings.lease)
    waits = {}
    for row in rows:
        if row.queue in found:
            waits[row.id] = f"its queue is {standing(row.queue)}"
        elif row.due_at <= at and not row.waits_for and row.name not in known.get(row.queue, ()):
            waits[row.id] = UNKNOWN if row.queue in known else UNSERVED
    return waits


def page_by_page(engine: Engine, filters: dict[str, str]) -> Iterator[list[TaskLine]]:
    """Yield at most MOST_EXPORTED that match, the newest first; each page is a short read."""
    filters = _narrowed(filters)
    before, left, more = None, MOST_EXPORTED, True
    while left > 0 and more:
        with engine.connect() as connection:
            found = find_tasks(connection, filters, before=before, most=min(EXPORTED, left))
            shown = masked_errors(connection, found.rows)
        if shown:
            yield shown
        before, left, more = found.below, left - len(found.rows), found.below is not None


LOOKED_AT, LOOKED_INTO = 400_000, 150_000  # rows of one search, by a column and by a text
MOST_FIRES = 1_000

_SINCE = "statement_timestamp() - CAST(:since AS interval)"
# Where an index, or the pool, leaves few rows.
_NARROW = {
    "pool": "t.pool = :pool",
    "biz_key": "t.biz_key = :biz_key",
    "group": f"t.id IN (SELECT unnest(g.ids) FROM {GROUP_IDS} g WHERE g.group_id = :group)",
    "schedule": f"""t.id = ANY(ARRAY(
        SELECT f.task_id FROM {SCHEDULE} s JOIN {FIRE} f ON f.schedule_id = s.id
        WHERE s.name = :schedule AND f.task_id IS NOT NULL
        ORDER BY f.fire_at DESC LIMIT {MOST_FIRES}))""",
    "since": f"t.created_at > {_SINCE} AND (t.finished_at IS NULL OR t.finished_at > {_SINCE})",
}
_TEXTS = {
    "error": "strpos(lower(t.error), lower(:error)) > 0",
    "payload": "strpos(lower(CAST(t.payload AS text)), lower(:payload)) > 0",
}
# Row by row, the newest first: an index of each would cost every task more than this costs.
_WALKED = {
    "state": "t.state = :state",
    "name": "t.name = :name",
    "queue": "t.queue = :queue",
    "sub_status": "t.sub_status = :sub_status",
    **_TEXTS,
}
_STORED = {"due_at": own_date("t"), "held": is_held("t"), "waits_for": OPEN_NEEDS}
_COLUMNS = ", ".join(
    f"{_STORED.get(name, f't.{name}')} AS {name}" for name in TaskLine.__dataclass_fields__
)
_ROWS = text(f"SELECT {_COLUMNS} FROM {ALL} t WHERE t.id = ANY(:ids) ORDER BY t.id DESC")


@dataclass(frozen=True, slots=True)
class Found:
    rows: tuple[TaskLine, ...]  # the newest id first
    number: int  # how many fit among those that were looked at; MOST + 1: more
    whole: bool  # all rows were looked at
    below: int | None  # the id to go on below; None: there are no more rows


@lru_cache(256)
def _statement(narrow: tuple[str, ...], walked: tuple[str, ...], *, behind: bool) -> TextClause:
    inner = " AND ".join(["true", *(_NARROW[each] for each in narrow)])
    outer = " AND ".join(["true", *(_WALKED[each] for each in walked)])
    further = "AND t.id < :before" if behind else ""
    return text(f"""
        SELECT (array_agg(t.id ORDER BY t.id DESC) FILTER (WHERE {outer}))[1 : {MOST + 1}] AS ids,
            count(*) AS looked, min(t.id) AS lowest
        FROM (SELECT * FROM {ALL} t WHERE {inner} {further} ORDER BY t.id DESC LIMIT :window) AS t
    """)


def find_tasks(
    connection: Connection, filters: dict[str, str], *, before: int | None, most: int
) -> Found:
    """Search from the newest id down, or below ``before``.

    Where no index helps, it reads as many rows as take 0.1 s.
    """
    given = dict(filters)
    if "state" in given:
        given.setdefault("pool", pool_of(State(given["state"])))
    narrow = tuple(name for name in _NARROW if name in given)
    walked = tuple(name for name in _WALKED if name in given)
    most_rows = LOOKED_INTO if given.keys() & _TEXTS else LOOKED_AT
    window = most_rows if walked else MOST + 1
    values: dict[str, object] = {**given, "window": window}
    if before is not None:
        values["before"] = before
    found = connection.execute(_statement(narrow, walked, behind=before is not None), values).one()
    ids = found.ids or []
    rows = connection.execute(_ROWS, {"ids": ids[:most]}).all() if ids else []
    whole = found.looked < window
    below = ids[most - 1] if len(ids) > most else None if whole else found.lowest
    shown = tuple(TaskLine(row.id, row.pool, State(row.state), *row[3:]) for row in rows)
    return Found(shown, len(ids), whole, below)
