"""The way of a task passes the rooms that docs/architecture.md names, and no others."""

from __future__ import annotations

import re
import sys
from pathlib import PurePath
from types import FrameType
from typing import Any

import pytest

from tasks_app.runtime.hooks import HOOKS
from tasks_app.runtime.tracing.tracing import API
from tests.docs.reading import PROJECT
from tests.runtime.bench import Bench
from tests.runtime.execution.warm_child import warm

MOST = 12


def promised() -> set[str]:
    """Return the rooms of the page's sentence."""
    page = (PROJECT / "docs/architecture.md").read_text()
    said = re.search(r"A task that does nothing passes these (.*?)\n\n", page, re.DOTALL)
    assert said is not None
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
