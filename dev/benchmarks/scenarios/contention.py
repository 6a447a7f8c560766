"""Many want one lock, hold it for no time, and ask again. How often does it change hands?"""

from __future__ import annotations

from typing import Any

from dev.benchmarks.environments import PROJECT
from dev.benchmarks.locks import SHAPES, measure
from dev.benchmarks.stage import Stage
from dev.benchmarks.systems.system import System
from tasks_app.runtime.db.database import Database

LONGEST_S = 5


def contention(stage: Stage, system: System, n: int, shape: str) -> dict[str, Any]:
    """Measure for ``n`` seconds; each grant is checked: nobody else inside, and the fence rose."""
    with stage.run(system, 1) as run:
        url = run.servers.url(run.database)
        database = Database(url.replace("postgresql:", "postgresql+psycopg:"))
        try:
            found = measure(database, str(PROJECT), SHAPES[shape], min(n, LONGEST_S))
        finally:
            database.dispose()
    grants_per_s, cpu_ms = found
    return {"grants_per_s": grants_per_s, "cpu_ms_per_grant": cpu_ms, "audit": {"faults": 0}}
