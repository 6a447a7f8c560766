"""All mutants of the product."""

from __future__ import annotations

from dev.torture.mutants.of_the_batches import BATCHES
from dev.torture.mutants.of_the_broker import BROKER
from dev.torture.mutants.of_the_connections import CONNECTIONS
from dev.torture.mutants.of_the_db_scheduler import DB_SCHEDULER
from dev.torture.mutants.of_the_ends import ENDS_OF_RUNS
from dev.torture.mutants.of_the_flows import FLOWS
from dev.torture.mutants.of_the_gates import GATES
from dev.torture.mutants.of_the_groups import GROUPS_AND_PROGRESS
from dev.torture.mutants.of_the_keys import KEYS
from dev.torture.mutants.of_the_large_values import LARGE_VALUES
from dev.torture.mutants.of_the_locks import LOCKS
from dev.torture.mutants.of_the_notices import NOTICES
from dev.torture.mutants.of_the_operators import OPERATORS
from dev.torture.mutants.of_the_partitions import PARTITIONS
from dev.torture.mutants.of_the_pool import POOL
from dev.torture.mutants.of_the_runs import RUNS
from dev.torture.mutants.of_the_runtime import RUNTIME
from dev.torture.mutants.of_the_secrets import SECRETS
from dev.torture.mutants.of_the_sql_tasks import SQL_TASKS
from dev.torture.mutants.of_the_steps import STEPS
from dev.torture.mutants.of_the_trail import TRAIL
from dev.torture.mutants.of_the_waiting import WAITING

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
    *FLOWS,
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
