"""A child that is warmed up and carries out short tasks in a row."""

from __future__ import annotations

from typing import Any

from tasks_app.runtime.handler_db.statements import PROVEN
from tasks_app.runtime.worker.child import Child
from tests.runtime.bench import Bench
from tests.waiting import until


def warm(child: Child, name: str = "t") -> Child:
    """Let it know already that these tasks are short, and claim many at once."""
    for _ in range(30):
        child.executor.run_times.learn(name, 0.0001)
        child.executor.run_times.next_group(500)
    return child


def known_as_writes(*queries: str) -> None:
    """Let this process know already that these texts are writes, as after their first run."""
    PROVEN.update(queries)


def carry_out(bench: Bench, ids: list[int], **options: Any) -> None:
    child = warm(bench.child(**options))
    child.execute(ids)
    until(lambda: child.inflight.empty)
    child.stop()


def run_many(bench: Bench, number: int, **options: Any) -> list[int]:
    """Create so many tasks with the payload ``{"n": …}``, and carry them out."""
    ids = [bench.create(payload={"n": n}) for n in range(number)]
    carry_out(bench, ids, **options)
    return [int(task_id) for task_id in ids]
