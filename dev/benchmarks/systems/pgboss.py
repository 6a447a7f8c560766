"""pg-boss: Node, jobs fetched and completed by the batch, workers woken by NOTIFY."""

from __future__ import annotations

from dev.benchmarks.environments import Npm
from dev.benchmarks.systems.system import System

ENVIRONMENT = Npm("pgboss", ("pg-boss", "pg"))
OF_USERS = "name NOT LIKE '\\_\\_pgboss%'"

PGBOSS = System(
    name="pgboss",
    title="pg-boss, 2 processes, batch 2,000, pool 24",
    environment=ENVIRONMENT,
    services=(ENVIRONMENT.play("work", '{"batch": 2000, "pool": 24}'),) * 2,
    parties=2,
    unfinished=f"pgboss.job WHERE state < 'completed' AND {OF_USERS}",
    finished="SELECT state::text, count(*), count(DISTINCT id) FROM pgboss.job"
    f" WHERE {OF_USERS} GROUP BY 1",
)
