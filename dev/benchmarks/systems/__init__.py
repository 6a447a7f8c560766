"""How each system is installed, fed, run and audited: one room each, data only."""

from __future__ import annotations

from dev.benchmarks.systems.brokers import CELERY, DRAMATIQ
from dev.benchmarks.systems.dbos import DBOS
from dev.benchmarks.systems.graphile import GRAPHILE, GRAPHILE_2
from dev.benchmarks.systems.oban import OBAN
from dev.benchmarks.systems.ours import OURS
from dev.benchmarks.systems.pgboss import PGBOSS
from dev.benchmarks.systems.pgqueuer import PGQUEUER
from dev.benchmarks.systems.procrastinate import PROCRASTINATE
from dev.benchmarks.systems.river import RIVER
from dev.benchmarks.systems.system import System

_ON_A_DATABASE = (PGQUEUER, GRAPHILE, GRAPHILE_2, PROCRASTINATE, PGBOSS, DBOS, RIVER, OBAN)
SYSTEMS: dict[str, System] = {
    system.name: system for system in (*OURS, *_ON_A_DATABASE, CELERY, DRAMATIQ)
}
