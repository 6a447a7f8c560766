"""What holds tasks back, as pages show it: limits, breakers, logical locks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from tasks_app.domain.flow_control.circuit_breaker import BreakerMode, BreakerStanding
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit, Limits
from tasks_app.pool.flow_control import breaker, capacity
from tasks_app.pool.locks import report
from tasks_app.pool.metrics import control
from tasks_app.pool.pages import queues as rows

MOST_LIMITS = 100
MOST_HELD = 10_000
"""Tasks that are counted behind one breaker."""
MOST_LOCKS = 100


@dataclass(frozen=True, slots=True)
class LimitLine:
    """A limit, and how much of it is used."""

    kind: str
    target: str
    """A limit key may end with ``*``: each key that begins so is limited by itself."""
    key: str
    """Whose use is shown; empty: of the fullest one."""
    most: int | None
    rate: str
    """Starts in a period, such as ``100/1m``."""
    burst: int | None
    running: int | None
    """None: it was not counted, because it limits only starts."""
    starts_left: int | None
    """How many may start at once now; None: it has no rate, or of several keys."""
    held: int
    held_more: bool
    """There are more than ``held``."""


@dataclass(frozen=True, slots=True)
class BreakerLine:
    """A circuit breaker."""

    dependency: str
    state: str
    by_operator: bool
    """An operator keeps it so, whatever the outcomes are."""
    since: datetime
    reason: str
    good: int
    bad: int
    window_s: float
    open_for_s: float
    names: tuple[str, ...]
    """Handlers that depend on it."""
    held: int
    held_more: bool


@dataclass(frozen=True, slots=True)
class LockLine:
    """A resource that is held, or waited for."""

    resource: str
    mode: str
    waits: bool
    who: str
    task_id: int | None
    since: datetime
    over: bool
    """Its task does not run any more, or its lease is over: the next to ask has it."""
    blocked_by: str | None
    """Who is in the way."""
    token: str


def all_limits(connection: Connection, limits: Sequence[Limit]) -> tuple[LimitLine, ...]:
    """Return the first limits with what runs under them, those that hold tasks first."""
    shown = limits[:MOST_LIMITS]
    used = {(each.kind, each.target): each.running for each in control.limits(connection)}
    held = rows.held(connection, shown)
    lines = [limit_line(x, "", used.get((x.kind, x.target)), None, held) for x in shown]
    return tuple(sorted(lines, key=lambda each: (-each.held, -(each.running or 0))))


def limits_of(
    connection: Connection, limits: Sequence[Limit], queue: str, names: Sequence[str]
) -> tuple[LimitLine, ...]:
    """Return the limits that bear on a queue: its own, of its names, of keys in use there."""
    known = Limits(limits)
    gates = [
        Gate(GateKind.QUEUE, queue),
        *(Gate(GateKind.NAME, name) for name in names),
        *(Gate(GateKind.KEY, key) for key in rows.limit_keys(connection, queue)),
    ]
    bearing = [(gate, limit) for gate in gates if (limit := known.of(gate)) is not None]
    bearing = bearing[:MOST_LIMITS]
    rooms = capacity.rooms_of(connection, [gate for gate, _ in bearing], known)
    targets = [Limit(gate.kind, gate.key) for gate, _ in bearing]
    held = rows.held(connection, targets)
    return tuple(
        limit_line(
            limit,
            gate.key,
            rooms[gate].running,
            None if limit.burst is None else max(0, int(rooms[gate].tokens)),
            held,
        )
        for gate, limit in bearing
    )


def limit_line(
    limit: Limit,
    key: str,
    running: int | None,
    starts_left: int | None,
    held: dict[tuple[str, str], int],
) -> LimitLine:
    number = held.get((limit.kind, key or limit.target), 0)
    return LimitLine(
        kind=str(limit.kind),
        target=limit.target,
        key=key,
        most=limit.most,
        rate="" if limit.rate is None else f"{limit.rate}/{limit.span}",
        burst=limit.burst,
        running=running,
        starts_left=starts_left,
        held=min(number, rows.MOST_HELD),
        held_more=number > rows.MOST_HELD,
    )


def breakers(connection: Connection) -> tuple[BreakerLine, ...]:
    return tuple(_breaker(each) for each in breaker.find(connection, most=MOST_HELD + 1))


def locks(connection: Connection, at: datetime) -> tuple[LockLine, ...]:
    """Return the first locks that are held or waited for, those who hold before who waits."""
    return tuple(
        LockLine(
            resource=each.resource,
            mode=each.mode,
            waits=each.state == "waiting",
            who=each.who,
            task_id=each.task_id,
            since=at - each.age,
            over=each.state == "held" and (bool(each.over) or each.beyond > timedelta(0)),
            blocked_by=each.blocked_by,
            token=str(each.token),
        )
        for each in report.find(connection, most=MOST_LOCKS)
    )


def _breaker(found: BreakerStanding) -> BreakerLine:
    return BreakerLine(
        dependency=found.breaker.dependency,
        state=str(found.state),
        by_operator=found.mode is not BreakerMode.AUTO,
        since=found.since,
        reason=found.reason,
        good=found.good,
        bad=found.bad,
        window_s=found.breaker.window.total_seconds(),
        open_for_s=found.breaker.open_for.total_seconds(),
        names=tuple(found.names),
        held=min(found.held, MOST_HELD),
        held_more=found.held > MOST_HELD,
    )
