"""graphile-worker: Node, jobs fetched 500 at a time into a local queue, completions batched."""

from __future__ import annotations

from dev.benchmarks.environments import Npm
from dev.benchmarks.systems.system import System

ENVIRONMENT = Npm("graphile", ("graphile-worker", "pg"))
WORK = ENVIRONMENT.play("work", '{"concurrency": 24, "local": 500}')
# It deletes what is done, so an empty table is all that the database can say.
UNFINISHED = "graphile_worker._private_jobs WHERE id > {after}"
FILLS = {
    "future": (
        "SELECT graphile_worker.add_job('noop', '{{}}')",  # makes the task known
        (
            "INSERT INTO graphile_worker._private_jobs (task_id, payload, run_at)"
            " SELECT t.id, '{{}}', now() + interval '1 day' + g * interval '1 s'"
            " FROM graphile_worker._private_tasks AS t, generate_series(1, {rows} - 1) AS g"
        ),
        "UPDATE graphile_worker._private_jobs SET run_at = now() + interval '1 day' WHERE id = 1",
    ),
}

GRAPHILE = System(
    name="graphile",
    title="graphile-worker, 1 process, 24 jobs, local queue 500",
    environment=ENVIRONMENT,
    services=(WORK,),
    unfinished=UNFINISHED,
    fills=FILLS,
)
GRAPHILE_2 = System(
    name="graphile-2",
    title="graphile-worker, 2 processes, 24 jobs, local queue 500",
    environment=ENVIRONMENT,
    services=(WORK,) * 2,
    parties=2,
    unfinished=UNFINISHED,
    fills=FILLS,
)
