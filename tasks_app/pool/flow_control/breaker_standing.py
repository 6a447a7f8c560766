"""How a breaker stands: its row and its calls within its window, read as one record."""

from __future__ import annotations

from typing import Any

from tasks_app.domain.flow_control.circuit_breaker import (
    Breaker,
    BreakerMode,
    BreakerStanding,
    BreakerState,
)
from tasks_app.pool.tables import BREAKER, CALLS, NOW

STANDING = f"""
    SELECT b.*, {NOW} AS at, coalesce(c.good, 0) AS good, coalesce(c.bad, 0) AS bad
    FROM {BREAKER} b LEFT JOIN LATERAL (
        SELECT sum(c.good) AS good, sum(c.bad) AS bad FROM {CALLS} c
        WHERE c.dependency = b.dependency AND c.at > {NOW} - b."window") AS c ON true
"""


def settings_of(of: Any) -> dict[str, Any]:
    return {name: getattr(of, name) for name in Breaker.__dataclass_fields__}


def standing_of(row: Any, held: int = 0) -> BreakerStanding:
    return BreakerStanding(
        Breaker(**settings_of(row)),
        row.names,
        BreakerState(row.state),
        BreakerMode(row.mode),
        row.since,
        row.at,
        row.look_at,
        int(row.good),
        int(row.bad),
        row.let_through,
        row.let_at,
        row.reason,
        held,
    )
