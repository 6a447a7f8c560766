"""Procrastinate: one job per fetch, every change of state an event row."""

from __future__ import annotations

from dev.benchmarks.environments import Virtual
from dev.benchmarks.systems.system import System

ENVIRONMENT = Virtual("procrastinate", ("procrastinate", "psycopg", "uvloop"))

PROCRASTINATE = System(
    name="procrastinate",
    title="Procrastinate, 2 processes, concurrency 10",
    environment=ENVIRONMENT,
    services=(ENVIRONMENT.play("work", '{"concurrency": 10}'),) * 2,
    parties=2,
    unfinished="procrastinate_jobs"
    " WHERE id > {after} AND status NOT IN ('succeeded', 'failed', 'cancelled')",
    finished="SELECT status::text, count(*), count(DISTINCT id) FROM procrastinate_jobs"
    " WHERE id > {after} GROUP BY 1",
)
