"""What holds tasks back, as pages show it: limits, breakers, logical locks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.circuit_breaker import BreakerMode
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit, Limits, WaitingKind
from tasks_app.domain.tasks.states import State
from tasks_app.pool import metrics
from tasks_app.pool.flow_control import capacity, circuit_breakers
from tasks_app.pool.locks import holders
from tasks_app.pool.tables import PENDING

MOST_LIMITS, MOST_LOCKS, MOST_KEYS = 100, 100, 100
MOST_HELD = 10_000  # tasks that are counted behind one breaker
MOST_LIMITED = 1_000  # tasks that are counted behind one limit
MOST_PARKED = 10_000


@dataclass(frozen=True, slots=True)
class LimitLine:
    """A limit, and how much of it is used."""

    kind: str
    target: str  # A limit key may end with ``*``: each key that begins so is limited by itself
    key: str  # whose use is shown; empty: of the fullest one
    most: int | None
    rate: str  # starts in a period, such as ``100/1m``
    burst: int | None
    running: int | None  # None: it was not counted, because it limits only starts
    starts_left: int | None  # how many may start now; None: it has no rate, or several keys
    held: int
    held_more: bool  # there are more than ``held``


@dataclass(frozen=True, slots=True)
class BreakerLine:
    dependency: str
    state: str
    by_operator: bool  # an operator keeps it so, regardless of outcomes
    since: datetime
    reason: str
    good: int
    bad: int
    window_s: float
    open_for_s: float
    names: tuple[str, ...]  # handlers that depend on it
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
    over: bool  # its task does not run any more, or its lease is over: the next to ask has it
    blocked_by: str | None  # who is in the way
    token: str


def all_limits(connection: Connection, limits: Sequence[Limit]) -> tuple[LimitLine, ...]:
    """Return the first limits with what runs under them, those that hold tasks first."""
    shown = limits[:MOST_LIMITS]
    used = {(each.kind, each.target): each.running for each in metrics.limits_in_use(connection)}
    held = _held(connection, shown)
    lines = [_limit_line(x, "", used.get((x.kind, x.target)), None, held) for x in shown]
    return tuple(sorted(lines, key=lambda each: (-each.held, -(each.running or 0))))


_KEYS = text(f"""
    (SELECT DISTINCT k.key FROM {PENDING} p
     CROSS JOIN unnest(p.limit_key || coalesce(p.more_limit_keys, '{{}}')) AS k(key)
     WHERE p.state = '{State.RUNNING}' AND p.limit_key IS NOT NULL AND p.queue = :queue
     LIMIT {MOST_KEYS})
    UNION
    (SELECT DISTINCT p.parked_for FROM (
        SELECT p.parked_for, p.queue FROM {PENDING} p
        WHERE p.state = '{State.PENDING}' AND p.parked_kind = '{WaitingKind.KEY}'
        LIMIT {MOST_PARKED}) AS p
     WHERE p.queue = :queue LIMIT {MOST_KEYS})
    ORDER BY key
""")


def limits_of(
    connection: Connection, limits: Sequence[Limit], queue: str, names: Sequence[str]
) -> tuple[LimitLine, ...]:
    """Return the limits that apply to a queue: its own, of its names, of keys in use there."""
    known = Limits(limits)
    gates = [
        Gate(GateKind.QUEUE, queue),
        *(Gate(GateKind.NAME, name) for name in names),
        *(Gate(GateKind.KEY, key) for key in connection.execute(_KEYS, {"queue": queue}).scalars()),
    ]
    applying = [(gate, limit) for gate in gates if (limit := known.of(gate)) is not None]
    applying = applying[:MOST_LIMITS]
    rooms = capacity.capacities_of(connection, [gate for gate, _ in applying], known)
    targets = [Limit(gate.kind, gate.key) for gate, _ in applying]
    held = _held(connection, targets)
    return tuple(
        _limit_line(
            limit,
            gate.key,
            rooms[gate].running,
            None if limit.burst is None else max(0, int(rooms[gate].tokens)),
            held,
        )
        for gate, limit in applying
    )


def _limit_line(
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
        held=min(number, MOST_LIMITED),
        held_more=number > MOST_LIMITED,
    )


_PARKED = f"SELECT FROM {PENDING} p WHERE p.state = '{State.PENDING}' AND p.parked_kind = l.kind"
_HELD = text(f"""
    SELECT l.kind, l.target, CASE WHEN l.kind = '{WaitingKind.KEY}' AND right(l.target, 1) = '*'
        THEN (SELECT count(*) FROM ({_PARKED}
            AND starts_with(p.parked_for, rtrim(l.target, '*')) LIMIT {MOST_LIMITED + 1}) AS p)
        ELSE (SELECT count(*) FROM ({_PARKED}
            AND p.parked_for = l.target LIMIT {MOST_LIMITED + 1}) AS p) END AS number
    FROM unnest(CAST(:kinds AS text[]), CAST(:targets AS text[])) AS l(kind, target)
""")


def _held(connection: Connection, limits: Sequence[Limit]) -> dict[tuple[str, str], int]:
    """Return how many tasks each limit holds back, up to one more than MOST_LIMITED."""
    values = {"kinds": [str(x.kind) for x in limits], "targets": [x.target for x in limits]}
    return {(row.kind, row.target): row.number for row in connection.execute(_HELD, values)}


def breakers(connection: Connection) -> tuple[BreakerLine, ...]:
    return tuple(
        BreakerLine(
            dependency=each.breaker.dependency,
            state=str(each.state),
            by_operator=each.mode is not BreakerMode.AUTO,
            since=each.since,
            reason=each.reason,
            good=each.good,
            bad=each.bad,
            window_s=each.breaker.window.total_seconds(),
            open_for_s=each.breaker.open_for.total_seconds(),
            names=tuple(each.names),
            held=min(each.held, MOST_HELD),
            held_more=each.held > MOST_HELD,
        )
        for each in circuit_breakers.find_breakers(connection, most=MOST_HELD + 1)
    )


def locks(connection: Connection, at: datetime) -> tuple[LockLine, ...]:
    """Return the first locks that are held or waited for, holders before waiters."""
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
        for each in holders.find_holders(connection, most=MOST_LOCKS)
    )
