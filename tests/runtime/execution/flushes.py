"""When the log is flushed, and when a success is counted."""

from __future__ import annotations

from typing import Any

import pytest

from tasks_app.runtime.execution import late_commits
from tasks_app.runtime.handler_db.ends import EndsRuns


def flushes_and_counts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what is flushed and what is counted, in order: ``flushed``, ``2 counted``."""
    calls: list[str] = []
    known = EndsRuns._check_flushed, late_commits.count_settled

    def check(pipeline: Any, answer: Any) -> Any:
        yield from known[0](pipeline, answer)
        calls.append("flushed")

    def count(settlements: Any, states: Any) -> None:
        calls.append(f"{len(settlements)} counted")
        known[1](settlements, states)

    monkeypatch.setattr(EndsRuns, "_check_flushed", check)
    monkeypatch.setattr(late_commits, "count_settled", count)
    return calls
