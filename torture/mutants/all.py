"""All mutants of the product."""

from __future__ import annotations

from torture.mutants.of_the_batches import BATCHES
from torture.mutants.of_the_broker import BROKER
from torture.mutants.of_the_connections import CONNECTIONS
from torture.mutants.of_the_db_scheduler import DB_SCHEDULER
from torture.mutants.of_the_ends import ENDS_OF_RUNS
from torture.mutants.of_the_gates import GATES
from torture.mutants.of_the_groups import GROUPS_AND_PROGRESS
from torture.mutants.of_the_keys import KEYS
from torture.mutants.of_the_large_values import LARGE_VALUES
from torture.mutants.of_the_locks import LOCKS
from torture.mutants.of_the_notices import NOTICES
from torture.mutants.of_the_operators import OPERATORS
from torture.mutants.of_the_partitions import PARTITIONS
from torture.mutants.of_the_pool import POOL
from torture.mutants.of_the_runs import RUNS
from torture.mutants.of_the_runtime import RUNTIME
from torture.mutants.of_the_secrets import SECRETS
from torture.mutants.of_the_sql_tasks import SQL_TASKS
from torture.mutants.of_the_steps import STEPS
from torture.mutants.of_the_trail import TRAIL
from torture.mutants.of_the_waiting import WAITING

ALL = (
    *POOL,
    *RUNTIME,
    *RUNS,
    *SQL_TASKS,
    *ENDS_OF_RUNS,
    *CONNECTIONS,
    *LOCKS,
    *GATES,
    *GROUPS_AND_PROGRESS,
    *BATCHES,
    *STEPS,
    *PARTITIONS,
    *BROKER,
    *KEYS,
    *OPERATORS,
    *WAITING,
    *NOTICES,
    *TRAIL,
    *SECRETS,
    *LARGE_VALUES,
    *DB_SCHEDULER,
)
