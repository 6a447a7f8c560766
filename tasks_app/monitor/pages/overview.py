"""The whole pool: overview, search, workers, and the audit of operators' actions."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, text

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.finding import Finding, Level
from tasks_app.domain.queues import Pause
from tasks_app.domain.statistics import Unkept
from tasks_app.monitor.checks import flow_control, work
from tasks_app.monitor.checks.checkup import run_checks
from tasks_app.monitor.checks.work import what_runs
from tasks_app.monitor.pages.errors import causes
from tasks_app.monitor.pages.queues import FAILED_WITHIN, MOST, NameLine, name_lines
from tasks_app.pool.error_groups import ErrorGroup
from tasks_app.pool.flow_control.queue_settings import find_pauses
from tasks_app.pool.fragments.conditions import QUEUES
from tasks_app.pool.operations.audit import AuditLine, find_among_newest
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.heartbeats import Stacks, Worker
from tasks_app.pool.statistics.read import unkept
from tasks_app.pool.tables import (
    ALL,
    BATCH,
    COUNT,
    GROUP,
    PAUSE,
    QUEUE,
    SCHEDULE,
    WORKER,
    database_now,
)

MOST_CAUSES = 6


@dataclass(frozen=True, slots=True)
class Figure:
    """A number; ``more``: there are more than that."""

    number: int
    more: bool = False


@dataclass(frozen=True, slots=True)
class Overview:
    at: datetime
    pending: Figure
    due: Figure
    barred: Figure  # due, but held by a pause, window or breaker, or known to no worker
    running: Figure
    failed: Figure  # within the last day
    oldest_due_at: datetime | None  # of those that could run
    children: int
    nodes: tuple[str, ...]
    start: str  # how to start a worker
    lines: tuple[NameLine, ...]
    crowded: tuple[str, ...]  # queues of which only the first tasks were counted
    causes: tuple[ErrorGroup, ...]  # of the last day, with most tasks; known ones last
    more_causes: bool
    pauses: tuple[Pause, ...]


def overview(connection: Connection, settings: Settings) -> Overview:
    lines = name_lines(connection)
    workers = heartbeats.live_workers(connection, settings.lease)
    waiting: Counter[str] = Counter()
    for line in lines:
        waiting[line.queue] += line.pending
    crowded = tuple(queue for queue, number in waiting.items() if number > MOST)
    failed = sum(line.failed for line in lines)
    runs = what_runs(connection, settings)
    free = [line for line in lines if runs(line.queue, line.name)]
    due = sum(line.due for line in lines)
    at = database_now(connection)
    found = causes(connection, since=at - FAILED_WITHIN, most=MOST_CAUSES + 1, now=at)
    shown = sorted(found[:MOST_CAUSES], key=lambda each: each.known_by is not None)
    return Overview(
        at=at,
        pending=Figure(sum(line.pending for line in lines), bool(crowded)),
        due=Figure(due, bool(crowded)),
        barred=Figure(due - sum(line.due for line in free), bool(crowded)),
        running=Figure(sum(line.running for line in lines)),
        failed=Figure(min(failed, MOST), failed > MOST),
        oldest_due_at=min((x.oldest_due_at for x in free if x.oldest_due_at), default=None),
        children=len(workers),
        nodes=tuple(sorted({worker.node for worker in workers})),
        start=heartbeats.started_by(connection, settings.lease).start_worker(),
        lines=tuple(lines),
        crowded=crowded,
        causes=tuple(shown),
        more_causes=len(found) > MOST_CAUSES,
        pauses=tuple(find_pauses(connection)),
    )


def findings(engine: Engine, settings: Settings) -> tuple[Finding, ...]:
    """Return what doctor would find wrong, the worst first."""
    checks = (*work.CHECKS, *flow_control.CHECKS, flow_control.held)
    found = [each for each in run_checks(checks, engine, settings) if each.level is not Level.OK]
    return tuple(sorted(found, key=lambda each: each.level is not Level.FAIL))


_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
MOST_HITS = 20  # of each kind


@dataclass(frozen=True, slots=True)
class Hit:
    """Something whose id, key or name is the text, or contains it."""

    kind: str  # task, group, batch, error, biz_key, name, queue, schedule or job
    key: str  # its id or name
    about: str
    exact: bool


@dataclass(frozen=True, slots=True)
class Hits:
    """What has the text as its id, key or name; then names that contain it."""

    at: datetime
    text: str
    hits: tuple[Hit, ...]
    unkept: Unkept | None = None  # successes that left no row; read if nothing is called so

    @property
    def only(self) -> Hit | None:
        """The one that is meant: nothing else is called so, or contains the text."""
        exact = [hit for hit in self.hits if hit.exact]
        if len(exact) == 1:
            return exact[0]
        return self.hits[0] if len(self.hits) == 1 else None


_ID = text(f"""
    SELECT 'task' AS kind, CAST(t.id AS text) AS key, t.name || ', ' || t.state AS about,
        true AS exact
    FROM {ALL} t WHERE t.id = :id
    UNION ALL SELECT 'group', CAST(g.id AS text), coalesce(g.outcome, 'open'), true
    FROM {GROUP} g WHERE g.id = :id
    UNION ALL SELECT 'batch', CAST(b.id AS text), b.job || ', ' || b.status, true
    FROM {BATCH} b WHERE b.id = :id
""")
_KEY = text(f"""
    SELECT 'biz_key' AS kind, :text AS key, string_agg(DISTINCT t.name, ', ') AS about,
        true AS exact
    FROM (SELECT name FROM {ALL} WHERE biz_key = :text LIMIT 100) AS t HAVING count(*) > 0
""")
# Names: what workers can run, what the counters have seen of late, what schedules make.
_NAMED = text(f"""
    SELECT f.kind, f.key, '' AS about, f.key = :text AS exact FROM (
        SELECT n.*, row_number() OVER (PARTITION BY n.kind ORDER BY n.key <> :text, n.key) AS number
        FROM (
            SELECT 'name' AS kind, handler AS key FROM {WORKER} w, unnest(w.handlers) AS handler
            UNION SELECT 'name', c.name FROM {COUNT} c
                WHERE c.span = 60 AND c.at > statement_timestamp() - interval '1 day'
            UNION SELECT 'name', s.task FROM {SCHEDULE} s
            UNION SELECT 'schedule', s.name FROM {SCHEDULE} s
            UNION SELECT 'queue', q.queue FROM ({QUEUES}) AS q
            UNION SELECT 'queue', served FROM {WORKER} w, unnest(w.queues) AS served
            UNION SELECT 'queue', q.queue FROM {QUEUE} q
            UNION SELECT 'queue', q.queue FROM {PAUSE} q WHERE q.queue <> '*'
            UNION SELECT 'job', b.job FROM {BATCH} b) AS n
        WHERE strpos(lower(n.key), lower(:text)) > 0) AS f
    WHERE f.number <= :most ORDER BY f.key <> :text, f.kind, f.key
""")


def find(connection: Connection, words: str) -> Hits:
    def found(statement: TextClause, **values: Any) -> list[Hit]:
        return [Hit(*row) for row in connection.execute(statement, values)]

    hits: list[Hit] = []
    if words.isascii() and words.isdigit() and int(words) < 2**63:
        hits += found(_ID, id=int(words))
    if _FINGERPRINT.fullmatch(words):
        same = causes(connection, fingerprint=words)
        hits += [Hit("error", each.fingerprint, each.error, exact=True) for each in same]
    if words:
        hits += [*found(_KEY, text=words), *found(_NAMED, text=words, most=MOST_HITS)]
    gone = unkept(connection) if words and not hits else None
    return Hits(database_now(connection), words, tuple(hits), gone)


SHOWN_FOR = timedelta(hours=1)  # for which a silent child is shown, unless its row is pruned
PAGE = 50  # lines of the audit


@dataclass(frozen=True, slots=True)
class ChildLine:
    worker: Worker
    silent: bool  # its lease is over: others take its tasks


@dataclass(frozen=True, slots=True)
class Node:
    """The children of one machine, or of one worker's name."""

    name: str
    children: tuple[ChildLine, ...]

    @property
    def running(self) -> int:
        return sum(len(each.worker.running) for each in self.children if not each.silent)


@dataclass(frozen=True, slots=True)
class Workers:
    at: datetime
    lease_s: float
    nodes: tuple[Node, ...]
    unserved: tuple[str, ...]  # queues with tasks that no living child serves
    start: str  # how to start a worker, of those queues if there are any

    @property
    def living(self) -> int:
        return sum(not child.silent for node in self.nodes for child in node.children)


def workers(connection: Connection, settings: Settings) -> Workers:
    at = database_now(connection)
    nodes: dict[str, list[ChildLine]] = {}
    served: set[str] = set()
    for worker in heartbeats.live_workers(connection, max(SHOWN_FOR, settings.lease), now=at):
        silent = at - worker.seen_at > settings.lease
        nodes.setdefault(worker.node, []).append(ChildLine(worker, silent))
        if not silent:
            served.update(worker.queues)
    unserved = tuple(sorted(set(connection.execute(text(QUEUES)).scalars()) - served))
    return Workers(
        at=at,
        lease_s=settings.lease.total_seconds(),
        nodes=tuple(Node(name, tuple(children)) for name, children in sorted(nodes.items())),
        unserved=unserved,
        start=heartbeats.started_by(connection, settings.lease).start_worker(",".join(unserved)),
    )


@dataclass(frozen=True, slots=True)
class StacksPage:
    at: datetime
    worker: str  # whose; empty: of all
    children: tuple[Stacks, ...]


def stacks_page(connection: Connection, worker: str) -> StacksPage:
    found = heartbeats.read_stacks(connection, worker)
    return StacksPage(database_now(connection), worker, tuple(found))


@dataclass(frozen=True, slots=True)
class Audit:
    at: datetime
    filters: dict[str, str]
    lines: tuple[AuditLine, ...]
    older: int | None  # the id to go on below; None: this is the last page


def audit(connection: Connection, filters: dict[str, str], *, before: int | None = None) -> Audit:
    found = find_among_newest(
        connection,
        who=filters.get("who"),
        task_id=int(filters["task"]) if "task" in filters else None,
        action=filters.get("action"),
        before=before,
        most=PAGE + 1,
    )
    older = found[PAGE - 1].id if len(found) > PAGE else None
    return Audit(database_now(connection), filters, tuple(found[:PAGE]), older)
