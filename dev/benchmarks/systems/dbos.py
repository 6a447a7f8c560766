"""DBOS: each task a workflow, dequeued by polling, every state written by itself."""

from __future__ import annotations

from dev.benchmarks.environments import Virtual
from dev.benchmarks.systems.system import System

ENVIRONMENT = Virtual("dbos", ("dbos", "psycopg", "SQLAlchemy"))

DBOS = System(
    name="dbos",
    title="DBOS, 2 processes, 100 workflows each, polled every 10 ms",
    environment=ENVIRONMENT,
    services=(ENVIRONMENT.play("work", "{}"),) * 2,
    parties=2,
    unfinished="dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING', 'DELAYED')",
    finished="SELECT status, count(*), count(DISTINCT workflow_uuid) FROM dbos.workflow_status"
    " GROUP BY 1",
)
