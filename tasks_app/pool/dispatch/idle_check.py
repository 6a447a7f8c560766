"""Idle check: is there anything to rescue, to publish or to wake up for? One read, of an idle pool.

It may say yes where a look finds nothing to do; it never says no where there is something.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection

from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.execute import ask, in_psycopgs_words
from tasks_app.pool.connection.steps import Statement
from tasks_app.pool.dispatch.set_aside import BARRED
from tasks_app.pool.fragments.conditions import runs
from tasks_app.pool.fragments.queue_probe import HAS_GATE, WAITS
from tasks_app.pool.tables import BREAKER, GATE, NOW, PENDING, QUEUE, SCHEDULE


@dataclass(frozen=True, slots=True)
class IdleCheck:
    """What one cheap read tells of a pool."""

    expired: bool
    """A lease is over."""
    next_due: timedelta | None
    """Until the first row is to be looked at, below zero if it is; None: nothing waits, but in
    queues that stand still."""
    next_fire_s: float | None = None
    """Until the first schedule is to be looked at, in seconds."""
    next_look_s: float | None = None
    """Until the first gate is to be looked at, in seconds."""
    gates: bool = False
    """A queue gives way to others, or may have to."""
    breakers: bool = False
    """A breaker is to be looked at."""
    barred: bool = False
    """A task is to be swept."""

    at_s: float = field(default=0.0, compare=False)
    """When that was, in seconds since 1970."""

    def is_quiet(self, within: timedelta) -> bool:
        """Tell whether no queue has work for this long."""
        near = self.next_due is not None and self.next_due <= within
        return not (self.expired or self.barred or near)


_IDLE_CHECK = in_psycopgs_words(f"""
    WITH RECURSIVE {WAITS}
    SELECT EXISTS (SELECT FROM {PENDING} p
                WHERE p.state = '{State.RUNNING}' AND p.lease_until < {NOW}) AS expired,
        (SELECT min(waits.scan_at) - {NOW} FROM waits WHERE {runs("waits.queue")}) AS next_due,
        CAST(EXTRACT(EPOCH FROM (SELECT min(s.look_at) FROM {SCHEDULE} s WHERE s.enabled) - {NOW})
            AS float) AS next_fire_s,
        CAST(EXTRACT(EPOCH FROM (SELECT min(t.look_at) FROM {GATE} t WHERE t.look_at IS NOT NULL)
            - {NOW}) AS float) AS next_look_s,
        EXISTS (SELECT FROM {QUEUE} g WHERE {HAS_GATE}) AS gates,
        EXISTS (SELECT FROM {BREAKER} b WHERE b.look_at <= {NOW}) AS breakers,
        EXISTS (SELECT FROM {PENDING} p WHERE {BARRED}) AS barred,
        CAST(EXTRACT(EPOCH FROM {NOW}) AS float) AS at_s
""")


def check_idle(connection: Connection, *, now: datetime | None = None) -> IdleCheck:
    (row,) = ask(connection, Statement(_IDLE_CHECK, {"now": now}))
    return IdleCheck(*row)
