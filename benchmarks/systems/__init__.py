"""How each system is installed, fed, run and audited: one room each, data only."""

from __future__ import annotations

from benchmarks.systems.brokers import CELERY, DRAMATIQ
from benchmarks.systems.dbos import DBOS
from benchmarks.systems.graphile import GRAPHILE, GRAPHILE_2
from benchmarks.systems.oban import OBAN
from benchmarks.systems.ours import OURS
from benchmarks.systems.pgboss import PGBOSS
from benchmarks.systems.pgqueuer import PGQUEUER
from benchmarks.systems.procrastinate import PROCRASTINATE
from benchmarks.systems.river import RIVER
from benchmarks.systems.system import System

_ON_A_DATABASE = (PGQUEUER, GRAPHILE, GRAPHILE_2, PROCRASTINATE, PGBOSS, DBOS, RIVER, OBAN)
SYSTEMS: dict[str, System] = {
    system.name: system for system in (*OURS, *_ON_A_DATABASE, CELERY, DRAMATIQ)
}
