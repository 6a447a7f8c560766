"""Heartbeats: one row per child process, with its queues, handlers and running tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.explain.facts import RunBy
from tasks_app.domain.tasks.error_text import storable_text
from tasks_app.pool.tables import LEASE, NOW, WORKER, Clock

LONGEST_TEXT = 300
DETAILS = "details"  # of a run: may be a secret, so no page has it


@dataclass(frozen=True, slots=True)
class Worker:
    owner: str
    node: str
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    threads: int
    running: Any  # a list of ``{"id", "name", "seconds"}``, some with ``fraction`` and ``note``
    started_at: datetime
    seen_at: datetime

    @property
    def of_celery(self) -> bool:
        return "@" in self.node  # ``celery@host``; of ``tasks-app work``, the host


_BEAT = text(f"""
    INSERT INTO {WORKER} (owner, node, queues, handlers, threads, running, started_at, seen_at)
    VALUES (:owner, :node, CAST(:queues AS text[]), CAST(:handlers AS text[]), :threads,
        CAST(:running AS jsonb), {NOW}, {NOW})
    ON CONFLICT (owner) DO UPDATE
    SET queues = EXCLUDED.queues, running = EXCLUDED.running, seen_at = EXCLUDED.seen_at""")
_LIVE = text(f"""
    SELECT owner, node, queues, handlers, threads, running::text AS running, started_at, seen_at
    FROM {WORKER} WHERE seen_at > {NOW} - CAST(:within AS interval) ORDER BY owner""")
OF_WORK = "position('@' IN w.node) = 0"  # the condition that ``tasks-app work`` started the child
_SHOWN = text(f"""
    SELECT r.run FROM {WORKER} w CROSS JOIN LATERAL jsonb_array_elements(w.running) AS r(run)
    WHERE w.owner = :owner AND r.run @> CAST(:run AS jsonb)""")
# A killed child leaves its row, one that was stopped none: then the last scan decides.
_RUN_BY = text(f"""
    SELECT bool_or(NOT {OF_WORK}) AS celery, bool_or({OF_WORK}) AS work, s.rank,
        coalesce(s.rank > 0 AND s.held_until > {NOW}, false) AS led
    FROM (SELECT) AS one LEFT JOIN {LEASE} s ON s.name = 'scan'
    LEFT JOIN {WORKER} w
        ON w.seen_at > (SELECT max(seen_at) FROM {WORKER}) - CAST(:within AS interval)
    GROUP BY s.rank, s.held_until""")
_PRUNE = text(f"DELETE FROM {WORKER} WHERE seen_at < {NOW} - CAST(:older AS interval)")


@dataclass(frozen=True, slots=True)
class Stacks:
    """What a child did when somebody asked; None: it has not answered, or nobody has asked."""

    owner: str
    node: str
    stacks: str | None
    stacks_at: datetime | None


# One that has ended a while ago is not asked; a lease, after which it is gone, may be that long.
_OF_WORKER = f"""
    CAST(:worker AS text) IN ('', node, owner) AND seen_at > {NOW} - interval '5 minutes'"""
_ASK_STACKS = text(f"""
    UPDATE {WORKER} SET asks = true, stacks = NULL, stacks_at = NULL
    WHERE {_OF_WORKER} RETURNING owner""")
_TAKE_STACKS_ASKED = text(f"""
    UPDATE {WORKER} SET asks = false WHERE owner = ANY(:owners) AND asks RETURNING owner""")
_WRITE_STACKS = text(f"""
    UPDATE {WORKER} SET stacks = :stacks, stacks_at = {NOW} WHERE owner = :owner""")
_STACKS = text(f"""
    SELECT owner, node, stacks, stacks_at FROM {WORKER} WHERE {_OF_WORKER} ORDER BY owner""")


def ask_stacks(connection: Connection, worker: str, *, now: Clock = None) -> list[str]:
    """Ask a worker, one of its children or, without a name, all; return the owners asked."""
    values = {"worker": worker, "now": now}
    return sorted(connection.execute(_ASK_STACKS, values).scalars())


def take_stacks_asked(connection: Connection, owners: Sequence[str]) -> bool:
    """Tell whether somebody has asked one of these children, and clear the request."""
    found = connection.execute(_TAKE_STACKS_ASKED, {"owners": list(owners)})
    return found.first() is not None


def write_stacks(connection: Connection, owner: str, stacks: str, *, now: Clock = None) -> None:
    values = {"owner": owner, "stacks": storable_text(stacks, len(stacks)), "now": now}
    connection.execute(_WRITE_STACKS, values)


def read_stacks(connection: Connection, worker: str, *, now: Clock = None) -> list[Stacks]:
    values = {"worker": worker, "now": now}
    return [Stacks(*row) for row in connection.execute(_STACKS, values)]


def write_heartbeat(
    connection: Connection,
    *,
    owner: str,
    node: str,
    queues: Sequence[str],
    handlers: Sequence[str],
    threads: int = 1,
    running: Sequence[dict[str, Any]] = (),
    now: Clock = None,
) -> None:
    """Write the heartbeat; a child without queues is about to end."""
    runs = [
        # cleaned, as no text of a handler may stop the heartbeat
        {k: storable_text(v, LONGEST_TEXT) if isinstance(v, str) else v for k, v in run.items()}
        for run in running
    ]
    values = {"owner": owner, "node": node, "threads": threads, "running": json.dumps(runs)}
    values |= {"queues": list(queues), "handlers": list(handlers), "now": now}
    connection.execute(_BEAT, values)


def live_workers(connection: Connection, within: timedelta, *, now: Clock = None) -> list[Worker]:
    """Return the children whose last heartbeat is no older than that."""
    return [
        Worker(owner, node, tuple(queues), tuple(handlers), threads, _public(running), *times)
        for owner, node, queues, handlers, threads, running, *times in connection.execute(
            _LIVE, {"within": within, "now": now}
        )
    ]


def _public(running: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in run.items() if k != DETAILS} for run in json.loads(running)]


def state_of_run(
    connection: Connection, owner: str, task_id: int, attempt: int
) -> tuple[str, Any] | None:
    """Return the state and its details that a run reported to its child's last heartbeat."""
    values = {"owner": owner, "run": json.dumps({"id": task_id, "attempt": attempt})}
    run = connection.execute(_SHOWN, values).scalar()
    return None if run is None else (run["state"], run[DETAILS])


def handlers_by_queue(connection: Connection, within: timedelta) -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    for worker in live_workers(connection, within):
        for queue in worker.queues:
            known.setdefault(queue, set()).update(worker.handlers)
    return known


def started_by(connection: Connection, within: timedelta, *, now: Clock = None) -> RunBy:
    """Return what started the living children, or the last ones; without any, the last scanner."""
    found = connection.execute(_RUN_BY, {"within": within, "now": now}).one()
    if found.celery is None:
        celery, work = bool(found.rank), found.rank == 0
    else:
        celery, work = found.celery or found.led, found.work
    if celery == work:
        return RunBy.EITHER
    return RunBy.CELERY if celery else RunBy.WORK


def remove_heartbeat(connection: Connection, owner: str) -> None:
    connection.execute(text(f"DELETE FROM {WORKER} WHERE owner = :owner"), {"owner": owner})


def prune(connection: Connection, older: timedelta, *, now: Clock = None) -> None:
    connection.execute(_PRUNE, {"older": older, "now": now})
