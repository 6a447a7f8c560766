"""Workers, and which queues nobody serves; the audit of what operators did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.operations.audit import AuditLine, find_among_newest
from tasks_app.pool.operations.diagnostics import queues_in_use
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.heartbeats import Worker

SHOWN_FOR = timedelta(hours=1)
"""A child that has fallen silent is shown as long, unless its row was pruned before."""
PAGE = 50
"""Lines of the audit."""


@dataclass(frozen=True, slots=True)
class ChildLine:
    """A process that runs tasks."""

    worker: Worker
    silent: bool
    """Its lease is over: others take its tasks."""


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
    """All nodes by name."""

    at: datetime
    lease_s: float
    nodes: tuple[Node, ...]
    unserved: tuple[str, ...]
    """Queues with tasks that no living child serves."""
    start: str
    """How to start a worker, of those queues if there are any."""

    @property
    def living(self) -> int:
        return sum(not child.silent for node in self.nodes for child in node.children)


def workers(connection: Connection, settings: Settings) -> Workers:
    at = instant(connection)
    nodes: dict[str, list[ChildLine]] = {}
    served: set[str] = set()
    for worker in heartbeats.live(connection, max(SHOWN_FOR, settings.lease), now=at):
        silent = at - worker.seen_at > settings.lease
        nodes.setdefault(worker.node, []).append(ChildLine(worker, silent))
        if not silent:
            served.update(worker.queues)
    unserved = tuple(sorted(queues_in_use(connection) - served))
    return Workers(
        at=at,
        lease_s=settings.lease.total_seconds(),
        nodes=tuple(Node(name, tuple(children)) for name, children in sorted(nodes.items())),
        unserved=unserved,
        start=heartbeats.run_by(connection, settings.lease).start_worker(",".join(unserved)),
    )


@dataclass(frozen=True, slots=True)
class Audit:
    """One page of lines, the newest first."""

    at: datetime
    filters: dict[str, str]
    lines: tuple[AuditLine, ...]
    older: int | None
    """The id to go on below; None: this is the last page."""


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
    return Audit(instant(connection), filters, tuple(found[:PAGE]), older)
