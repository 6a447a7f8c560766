"""What it costs a producer to create tasks; no worker runs."""

from __future__ import annotations

from typing import Any

from dev.benchmarks.audit import AuditError
from dev.benchmarks.environments import MissingError
from dev.benchmarks.stage import Run, Stage
from dev.benchmarks.systems.system import System

WARM = 50  # as in peers/verbs.py


def create(stage: Stage, system: System, n: int, verb: str, **arguments: Any) -> dict[str, Any]:
    """Measure a verb that creates n tasks and answers with the seconds that this took."""
    with stage.run(system, n) as run:
        run.servers.settle_down(run.database)
        seconds = run.play(verb, n=n, **arguments)
        if isinstance(seconds, dict):
            raise MissingError(seconds["missing"])
        return {"seconds": seconds, "rate": n / seconds, "audit": _created(run, n + WARM)}


def against_bare(stage: Stage, system: System, n: int) -> dict[str, Any]:
    """Measure ``create_task`` and the bare INSERT of the same row, each with its commit, by turns.

    Both on a Session, in one process, one after the other: what disturbs one disturbs the other.
    """
    with stage.run(system, n) as run:
        run.servers.settle_down(run.database)
        result: dict[str, Any] = run.play("against_bare", n=n)
        return result | {"audit": _created(run, result.pop("created"))}


def _created(run: Run, expected: int) -> dict[str, int]:
    rows = run.unfinished()
    if rows != expected:
        raise AuditError(f"{run.system.name}: {rows} rows instead of {expected}")
    return {"rows": rows}
