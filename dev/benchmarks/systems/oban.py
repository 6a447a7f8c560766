"""Oban for Python: asyncio, jobs fetched by the batch, each acknowledged by a statement."""

from __future__ import annotations

from dev.benchmarks.environments import Virtual
from dev.benchmarks.systems.system import System

ENVIRONMENT = Virtual("oban", ("oban", "psycopg", "uvloop"), least=(3, 12))

OBAN = System(
    name="oban",
    title="Oban for Python, 2 processes, limit 1,000",
    environment=ENVIRONMENT,
    services=(ENVIRONMENT.play("work", '{"limit": 1000}'),) * 2,
    parties=2,
    unfinished="oban_jobs"
    " WHERE id > {after} AND state NOT IN ('completed', 'cancelled', 'discarded')",
    finished="SELECT state::text, count(*), count(DISTINCT id) FROM oban_jobs"
    " WHERE id > {after} GROUP BY 1",
)
