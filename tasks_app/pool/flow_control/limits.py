"""Limits: how many tasks of a queue, a name or a key may run at a time, or start in a period.

A change holds from the next claim on. What already runs goes on, and a claim that is under way
keeps to the old limit.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit
from tasks_app.pool.tables import GATE, LIMIT, NOW

_SET = text(f"""
    INSERT INTO {LIMIT} (kind, target, most, rate, period, burst, changed_at)
    VALUES (:kind, :target, :most, :rate, :period, :burst, {NOW})
    ON CONFLICT (kind, target) DO UPDATE SET
        most = EXCLUDED.most, rate = EXCLUDED.rate, period = EXCLUDED.period,
        burst = EXCLUDED.burst, changed_by = current_user, changed_at = EXCLUDED.changed_at
""")
_DROP = text(f"DELETE FROM {LIMIT} WHERE kind = :kind AND target = :target")
_LIST = text(f"""
    SELECT kind, target, most, rate, period, burst FROM {LIMIT} ORDER BY kind, target
""")
_LOOK = text(f"""
    UPDATE {GATE} t SET look_at = {NOW}
    WHERE starts_with(t.gate, :prefix) AND t.look_at IS NOT NULL
""")


def set_limit(connection: Connection, limit: Limit, *, now: datetime | None = None) -> None:
    """Set or change a limit; the leader looks at once at the tasks that wait for it."""
    values = {
        "kind": str(limit.kind),
        "target": limit.target,
        "most": limit.most,
        "rate": limit.rate,
        "period": limit.period,
        "burst": limit.burst,
    }
    connection.execute(_SET, {**values, "now": now})
    _look(connection, limit.kind, limit.target, now)


def drop_limit(
    connection: Connection, kind: GateKind, target: str, *, now: datetime | None = None
) -> bool:
    """Take a limit away; False: there was none."""
    dropped = connection.execute(_DROP, {"kind": str(kind), "target": target}).rowcount == 1
    _look(connection, kind, target, now)
    return dropped


def all_limits(connection: Connection) -> list[Limit]:
    return [Limit(GateKind(kind), *rest) for kind, *rest in connection.execute(_LIST)]


def _look(connection: Connection, kind: GateKind, target: str, now: datetime | None) -> None:
    prefix = str(Gate(kind, target.removesuffix("*") if kind is GateKind.KEY else target))
    connection.execute(_LOOK, {"prefix": prefix, "now": now})
