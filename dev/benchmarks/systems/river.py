"""River: Go, jobs fetched by the batch, outcomes flushed in batches, woken by NOTIFY."""

from __future__ import annotations

from dev.benchmarks.compiled import Go
from dev.benchmarks.systems.system import System

ENVIRONMENT = Go("river", ("github.com/riverqueue/river", "github.com/jackc/pgx/v5"))

RIVER = System(
    name="river",
    title="River, 2 processes, 2,000 workers, a fetch every 2 ms, pool 24",
    environment=ENVIRONMENT,
    services=(ENVIRONMENT.play("work", '{"workers": 2000, "pool": 24}'),) * 2,
    parties=2,
    unfinished="river_job"
    " WHERE id > {after} AND state NOT IN ('completed', 'cancelled', 'discarded')",
    finished="SELECT state::text, count(*), count(DISTINCT id) FROM river_job"
    " WHERE id > {after} GROUP BY 1",
)
