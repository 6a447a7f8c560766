"""What tasks that say nothing have of their queue: read once a statement, mostly of no row."""

from __future__ import annotations

from tasks_app.pool.tables import QUEUE

_DEFAULTS = {
    "retry": "text",
    "max_attempts": "smallint",
    "timeout_ms": "integer",
    "hard_timeout_ms": "integer",
}
_SAID = ", ".join(f"g.{column}" for column in _DEFAULTS)
_SAYS_ANYTHING = f"num_nonnulls({_SAID}) > 0"
QUEUE_SAYS = f"""says AS MATERIALIZED (
    SELECT jsonb_object_agg(g.queue, jsonb_build_array({_SAID})) AS defaults
    FROM {QUEUE} g WHERE {_SAYS_ANYTHING})"""
"""A CTE that the expressions below read."""
NO_QUEUE_SAYS = f"NOT EXISTS (SELECT FROM {QUEUE} g WHERE {_SAYS_ANYTHING})"
"""The condition that every row has what it says itself."""


def of_queue(column: str) -> str:
    """Return the value that the row ``p`` has, or else its queue."""
    place = list(_DEFAULTS).index(column)
    said = f"(SELECT defaults FROM says) -> p.queue ->> {place}"
    return f"coalesce(p.{column}, CAST({said} AS {_DEFAULTS[column]}))"
