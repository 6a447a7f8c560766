"""PGQueuer: asyncpg, uvloop, one dequeue statement per batch, outcomes flushed in batches."""

from __future__ import annotations

from benchmarks.environments import Virtual
from benchmarks.systems.system import System

ENVIRONMENT = Virtual("pgqueuer", ("pgqueuer", "asyncpg", "uvloop"))

PGQUEUER = System(
    name="pgqueuer",
    title="PGQueuer, 2 processes, batch 500",
    environment=ENVIRONMENT,
    services=(ENVIRONMENT.play("work", '{"batch": 500}'),) * 2,
    parties=2,
    unfinished="SELECT EXISTS (SELECT FROM pgqueuer)",
    finished="SELECT status::text, count(*), count(DISTINCT job_id) FROM pgqueuer_log"
    " WHERE status = 'successful' GROUP BY 1",
)
