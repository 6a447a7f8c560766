"""When the log is flushed, and when late successes are counted."""

from __future__ import annotations

from typing import Any

import pytest

from tasks_app.runtime.execution import settler
from tasks_app.runtime.handler_db.ends import EndsRuns


def flushes_and_counts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what is flushed and what is counted, in order: ``flushed``, ``2 counted``."""
    calls: list[str] = []
    known = EndsRuns._check_flushed, settler.count_settled

    def check(pipeline: Any, answer: Any) -> Any:
        yield from known[0](pipeline, answer)
        calls.append("flushed")

    def count(settlements: Any, states: Any) -> None:
        if any(settlement.writes for settlement in settlements):
            calls.append(f"{len(states)} counted")
        known[1](settlements, states)

    monkeypatch.setattr(EndsRuns, "_check_flushed", check)
    monkeypatch.setattr(settler, "count_settled", count)
    return calls
