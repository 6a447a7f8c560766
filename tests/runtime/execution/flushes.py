"""When the log is flushed, and when a success is counted."""

from __future__ import annotations

from typing import Any

import pytest

from tasks_app.runtime.execution import late_commits


def flushes_and_counts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what is flushed and what is counted, in order: ``2 flushed``, ``2 counted``."""
    calls: list[str] = []
    known = late_commits.flush, late_commits.count_settled

    def flush(connection: Any, fences: Any) -> Any:
        calls.append(f"{len(fences)} flushed")
        return known[0](connection, fences)

    def count(settlements: Any, states: Any) -> None:
        calls.append(f"{len(settlements)} counted")
        known[1](settlements, states)

    monkeypatch.setattr(late_commits, "flush", flush)
    monkeypatch.setattr(late_commits, "count_settled", count)
    return calls
