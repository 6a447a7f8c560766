"""When the log is flushed, and when late successes are counted."""

from __future__ import annotations

from typing import Any

import pytest

from tasks_app.runtime.execution import settler
from tasks_app.runtime.handler_db.end_pipeline import EndPipeline


def flushes_and_counts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what is flushed and what is counted, in order: ``flushed``, ``2 counted``."""
    calls: list[str] = []
    known = EndPipeline.check_flushed, settler.count_settled

    def check(pipeline: Any, answer: Any) -> None:
        known[0](pipeline, answer)
        calls.append("flushed" if answer.fname(0) == b"pg_logical_emit_message" else "looked")

    def count(settlements: Any, states: Any) -> None:
        if any(settlement.writes for settlement in settlements):
            calls.append(f"{len(states)} counted")
        known[1](settlements, states)

    monkeypatch.setattr(EndPipeline, "check_flushed", check)
    monkeypatch.setattr(settler, "count_settled", count)
    return calls
