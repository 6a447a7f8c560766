"""Whether every task ran once, and in which pool it is: by the handlers' marks and by the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dev.benchmarks.stage import Run

Audit = dict[str, Any]


class AuditError(Exception):
    """The system lost a task, or ran one twice."""


def audit(run: Run, marks: Sequence[tuple[int, int, int]], *, effects: bool = False) -> Audit:
    """Count, and return what was counted.

    Raises:
        AuditError: something is missing or doubled; with the counts.
    """
    found: Audit = {"runs": len(marks), "tasks_run": len({index for index, _, _ in marks})}
    wrong = [name for name in ("runs", "tasks_run") if found[name] != run.n]
    if run.system.unfinished is not None:
        found["unfinished"] = run.unfinished()
        wrong += ["unfinished"] * (found["unfinished"] > 0)
    if run.system.finished is not None:
        found["pools"] = {pool: [rows, tasks] for pool, rows, tasks in run.ask(run.system.finished)}
        rows = [[run.n, run.n]] if run.system.keeps_rows else []
        wrong += ["pools"] * (list(found["pools"].values()) != rows)
    if effects:
        found["effects"] = list(run.ask("SELECT count(*), count(DISTINCT i) FROM effect")[0])
        wrong += ["effects"] * (found["effects"] != [run.n, run.n])
    if wrong:
        raise AuditError(f"{run.system.name}: wrong {', '.join(wrong)} of {run.n}: {found}")
    return found
