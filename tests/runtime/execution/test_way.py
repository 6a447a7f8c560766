"""The way of a task passes the rooms that docs/architecture.md names, and no others."""

from __future__ import annotations

import re
import sys
from pathlib import PurePath
from types import FrameType
from typing import Any

import pytest

from tasks_app.runtime.handler_db.statements import PROVEN
from tasks_app.runtime.hooks import HOOKS
from tasks_app.runtime.tracing.tracing import API
from tasks_app.runtime.worker.child import Child
from tests.clock import until
from tests.docs.reading import PROJECT
from tests.factory import some
from tests.runtime.bench import Bench

MOST = 12


def promised() -> set[str]:
    """Return the rooms of the page's sentence."""
    page = (PROJECT / "docs/architecture.md").read_text()
    said = some(re.search(r"A task that does nothing passes these (.*?)\n\n", page, re.DOTALL))
    runtime, pool, domain = said[1].split(";")
    return {"runtime"} | {
        f"{floor}/{room}"
        for floor, rooms in (("runtime", runtime), ("pool", pool), ("domain", domain))
        for room in re.findall(r"`(\w+)`", rooms)
    }


def test_a_task_that_does_nothing_passes_few_rooms_until_it_is_settled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests of this process may have loaded OpenTelemetry, or left who listens.
    monkeypatch.delitem(sys.modules, API, raising=False)
    monkeypatch.setattr(HOOKS, "_subscribers", {})
    monkeypatch.setattr(HOOKS, "_followers", ())
    bench.handler()(lambda ctx: None)
    child = warm(bench.child())
    child.execute([bench.create()])  # what is made once is made
    entered: set[str] = set()

    def note(frame: FrameType, kind: str, _arg: Any) -> None:
        _, found, path = frame.f_code.co_filename.rpartition("/tasks_app/")
        if kind == "call" and found and frame.f_code.co_name != "<module>":
            entered.add(str(PurePath(path).parent))
        if kind == "return" and path.startswith("pool/runs/settle"):
            sys.setprofile(None)

    ids = [bench.create()]
    sys.setprofile(note)
    try:
        child.executor.execute(ids)
    finally:
        sys.setprofile(None)

    assert bench.states(ids) == ["SUCCEEDED"]
    assert entered == promised()
    assert len(entered) <= MOST


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
