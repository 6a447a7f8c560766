"""PGQueuer: asyncpg, uvloop, one dequeue statement per batch, outcomes flushed in batches."""

from __future__ import annotations

from dev.benchmarks.environments import Virtual
from dev.benchmarks.systems.system import System

ENVIRONMENT = Virtual("pgqueuer", ("pgqueuer", "asyncpg", "uvloop"))

PGQUEUER = System(
    name="pgqueuer",
    title="PGQueuer, 2 processes, batch 500",
    environment=ENVIRONMENT,
    services=(ENVIRONMENT.play("work", '{"batch": 500, "pool": 10}'),) * 2,
    parties=2,
    unfinished="pgqueuer WHERE id > {after}",
    finished="SELECT status::text, count(*), count(DISTINCT job_id) FROM pgqueuer_log"
    " WHERE status = 'successful' AND job_id > {after} GROUP BY 1",
    fills={
        "finished": (
            (
                "INSERT INTO pgqueuer_log (job_id, status, entrypoint, priority)"
                " SELECT g, s, 'noop', 0 FROM generate_series(1, {rows}) AS g,"
                " unnest(CAST(ARRAY['queued', 'picked', 'successful'] AS pgqueuer_status[])) AS s"
            ),
            "SELECT setval(pg_get_serial_sequence('pgqueuer', 'id'), {rows})",
        ),
        "future": (
            (
                "INSERT INTO pgqueuer (priority, entrypoint, payload, status, execute_after)"
                """ SELECT 0, 'noop', '{{"i": 0}}', 'queued', due"""
                " FROM generate_series(1, {rows}) AS g,"
                " LATERAL (SELECT now() + interval '1 day' + g * interval '1 s' AS due) AS d"
            ),
        ),
    },
)
