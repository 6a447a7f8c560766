"""Explain: reads what bears on one task, in a few statements of bounded cost. Never locks."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from tasks_app.domain.explain.facts import StoredRow, TaskFacts
from tasks_app.domain.explain.surroundings import (
    Denial,
    LastAttempt,
    ReportedProgress,
    Scan,
    Service,
    Shut,
    Stop,
    Turn,
)
from tasks_app.domain.tasks.states import State
from tasks_app.pool.flow_control import order_and_limits
from tasks_app.pool.flow_control.capacity import rooms_of
from tasks_app.pool.operations.audit import last_hold
from tasks_app.pool.operations.connection_limits import connection_limits
from tasks_app.pool.operations.explain_statements import AHEAD, AROUND, NAMES, ROW, TURN
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.statistics.unkept import unkept


def read_facts(
    connection: Connection,
    task_id: int,
    *,
    lease: timedelta,
    late_after: timedelta,
    beats_every: timedelta = timedelta(seconds=10),
    now: datetime | None = None,
) -> TaskFacts:
    """Return what is known of the task; ``lease`` is how long a silent child counts as living."""
    found = dict(connection.execute(ROW, {"id": task_id, "now": now}).one()._mapping)  # noqa: SLF001
    at = found.pop("now")
    if found["id"] is None:
        return TaskFacts(task_id, at, None, unkept(connection, now=now), late_after=late_after)
    row = StoredRow(**{**found, "state": State(found["state"])})
    values = {
        **{name: getattr(row, name) for name in ("id", "queue", "name", "owner", "scan_at")},
        "started_at": row.started_at,
        "lease": lease,
        "now": at,
    }
    around = connection.execute(AROUND, values).one()
    stranger = row.state is State.PENDING and not around.knowing
    names = connection.execute(NAMES, values).one() if stranger else None
    facts = TaskFacts(
        task_id,
        at,
        row,
        last=_last(around),
        stop=_stop(around),
        denial=_denial(around),
        hold=last_hold(connection, task_id) if row.held else None,
        service=Service(
            *(around.children, around.knowing, around.busy),
            names=tuple(names.names) if names else (),
            elsewhere=tuple(names.elsewhere) if names else (),
            last_seen=around.last_seen,
            heard_at=around.any_heard_at,
            scanning=around.scanning,
        ),
        run_by=heartbeats.run_by(connection, lease, now=at),
        scan=_scan(around),
        progress=_progress(around),
        heard_at=around.seen_at if row.state is State.RUNNING else None,
        late_after=late_after,
        beats_every=beats_every,
    )
    if facts.due is None:
        return facts
    facts = _behind_gates(connection, facts, row)
    facts = replace(facts, connections=tuple(connection_limits(connection)))
    if row.scan_at is None or row.scan_at > at:
        return facts
    return replace(facts, ahead=_ahead(connection, row, at))


def _behind_gates(connection: Connection, facts: TaskFacts, row: StoredRow) -> TaskFacts:
    """Look what stands before it, and how that stands."""
    limits = order_and_limits.limits_of(connection)
    keys = row.order_key, row.limit_key, row.more_limit_keys
    before = limits.gates_of(row.queue, row.name, *keys)
    if not before:
        return facts
    rooms = rooms_of(connection, before, limits, now=facts.now)
    shut = [
        Shut(limit, gate.key, room.running)
        for gate, room in rooms.items()
        if room.free < 1 and (limit := limits.of(gate)) is not None
    ]
    turn = None
    if row.order_key is not None:
        head = rooms[before[0]].head
        values = {"key": row.order_key, "id": row.id}
        running, failed = connection.execute(TURN, values).one()
        turn = Turn(running, None if head == row.id else head, failed)
    return replace(facts, turn=turn, shut=tuple(shut))


def _ahead(connection: Connection, row: StoredRow, now: datetime) -> int:
    values = {
        **{name: getattr(row, name) for name in ("queue", "priority", "scan_at", "id")},
        "now": now,
    }
    return int(connection.execute(AHEAD, values).scalar_one())


def _last(around: Any) -> LastAttempt | None:
    if around.event is None:
        return None
    return LastAttempt(around.attempt, around.event, around.kind, around.message, around.ended_at)


def _denial(around: Any) -> Denial | None:
    if around.denied_at is None:
        return None
    of = around.resource, around.blocked_by, around.times
    return Denial(*of, around.asked_at, around.denied_at, around.held)


def _stop(around: Any) -> Stop | None:
    if around.stopped is None:
        return None
    return Stop(around.stopped, around.since, around.reason, around.resume_at)


def _scan(around: Any) -> Scan | None:
    if around.holder is None:
        return None
    refused = around.refused_since, around.refused_because
    return Scan(
        *(around.holder, around.done_at, *refused),
        held_until=around.held_until,
        messages=around.messages,
    )


def _progress(around: Any) -> ReportedProgress | None:
    if around.said is None:
        return None
    said = json.loads(around.said)
    limit = said.get("hard_timeout")
    left = None if limit is None else timedelta(seconds=limit - said["seconds"])
    killed_at = None if left is None else around.seen_at + left
    return ReportedProgress(around.node, said.get("fraction"), said.get("note"), killed_at)
