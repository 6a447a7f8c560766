"""Workers: one heartbeat row per child: what it serves, which handlers it knows, what it runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.explain.facts import RunBy
from tasks_app.domain.tasks.error_text import clean
from tasks_app.pool.tables import LEASE, NOW, WORKER

LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Worker:
    """A child as the database sees it."""

    owner: str
    node: str
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    threads: int  # how many messages it works off at a time
    running: Any
    """A list of ``{"id", "name", "seconds"}``, with ``fraction`` and ``note`` where told."""
    started_at: datetime
    seen_at: datetime

    @property
    def of_celery(self) -> bool:
        """Its nodes are called ``celery@host``; those of ``tasks-app work`` as the host."""
        return "@" in self.node


_BEAT = text(f"""
    INSERT INTO {WORKER} (owner, node, queues, handlers, threads, running, started_at, seen_at)
    VALUES (:owner, :node, CAST(:queues AS text[]), CAST(:handlers AS text[]), :threads,
        CAST(:running AS jsonb), {NOW}, {NOW})
    ON CONFLICT (owner) DO UPDATE
    SET queues = EXCLUDED.queues, running = EXCLUDED.running, seen_at = EXCLUDED.seen_at""")
_LIVE = text(f"""
    SELECT owner, node, queues, handlers, threads, running::text AS running, started_at, seen_at
    FROM {WORKER} WHERE seen_at > {NOW} - CAST(:within AS interval) ORDER BY owner""")
OF_WORK = "position('@' IN w.node) = 0"  # the condition that a child is one of ``tasks-app work``
# Who was killed leaves its row, who ended in order none: then the last scan tells.
_RUN_BY = text(f"""
    SELECT bool_or(NOT {OF_WORK}) AS celery, bool_or({OF_WORK}) AS work, s.rank,
        coalesce(s.rank > 0 AND s.held_until > {NOW}, false) AS led
    FROM (SELECT) AS one LEFT JOIN {LEASE} s ON s.name = 'scan'
    LEFT JOIN {WORKER} w
        ON w.seen_at > (SELECT max(seen_at) FROM {WORKER}) - CAST(:within AS interval)
    GROUP BY s.rank, s.held_until""")
_LEAVE = text(f"DELETE FROM {WORKER} WHERE owner = :owner")
_PRUNE = text(f"DELETE FROM {WORKER} WHERE seen_at < {NOW} - CAST(:older AS interval)")


def beat(
    connection: Connection,
    *,
    owner: str,
    node: str,
    queues: Sequence[str],
    handlers: Sequence[str],
    threads: int = 1,
    running: Sequence[dict[str, Any]] = (),
    now: datetime | None = None,
) -> None:
    """Say that this child lives; one that serves no queue any more is about to end."""
    connection.execute(
        _BEAT,
        {
            "owner": owner,
            "node": node,
            "queues": list(queues),
            "handlers": list(handlers),
            "threads": threads,
            "running": json.dumps([_storable(run) for run in running]),
            "now": now,
        },
    )


def live(connection: Connection, within: timedelta, *, now: datetime | None = None) -> list[Worker]:
    """Return the children that were heard of within that time."""
    return [
        Worker(
            row.owner,
            row.node,
            tuple(row.queues),
            tuple(row.handlers),
            row.threads,
            json.loads(row.running),
            row.started_at,
            row.seen_at,
        )
        for row in connection.execute(_LIVE, {"within": within, "now": now})
    ]


def known_names(connection: Connection, within: timedelta) -> dict[str, set[str]]:
    """Return by queue the handlers of the living children that serve it."""
    known: dict[str, set[str]] = {}
    for worker in live(connection, within):
        for queue in worker.queues:
            known.setdefault(queue, set()).update(worker.handlers)
    return known


def run_by(connection: Connection, within: timedelta, *, now: datetime | None = None) -> RunBy:
    """Return what the children are of that live, or lived last; without any, who scanned last."""
    found = connection.execute(_RUN_BY, {"within": within, "now": now}).one()
    if found.celery is None:
        celery, work = bool(found.rank), found.rank == 0
    else:
        celery, work = found.celery or found.led, found.work
    if celery == work:
        return RunBy.EITHER
    return RunBy.CELERY if celery else RunBy.WORK


def leave(connection: Connection, owner: str) -> None:
    """Take the child off the list: it ends, or it was reaped."""
    connection.execute(_LEAVE, {"owner": owner})


def prune(connection: Connection, older: timedelta, *, now: datetime | None = None) -> None:
    """Forget children whose last heartbeat is this old."""
    connection.execute(_PRUNE, {"older": older, "now": now})


def _storable(run: dict[str, Any]) -> dict[str, Any]:
    """Clean what handlers said of themselves: no word of theirs may stop the heartbeat."""
    return {k: clean(v, LONGEST_TEXT) if isinstance(v, str) else v for k, v in run.items()}
