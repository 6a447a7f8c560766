"""Flows whose steps end as a test says."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from tasks_app import CreatedFlow, Flow, create_flow
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tests.factory import claimed_task, ending


def made_flow(
    engine: Engine, name: str = "f", *, key: str | None = None, **needs: Any
) -> CreatedFlow:
    """Create a flow of steps with these names, each of which needs those."""
    flow = Flow(name)
    for step, of in needs.items():
        flow.step(step, "t", {"card": "canary-4711"}, needs=of)
    with engine.begin() as connection:
        return create_flow(connection, flow, key=key)


def ends(
    engine: Engine, flow: CreatedFlow, *steps: str, event: Event = Event.SUCCEED, **how: Any
) -> None:
    if event is Event.FAIL:
        how.setdefault("cause", Cause("ValueError", "canary-4711 is refused"))
    with engine.begin() as connection:
        for step in steps:
            settle_one(
                connection, ending(claimed_task(connection, int(flow.task_ids[step])), event, **how)
            )


def runs(engine: Engine, flow: CreatedFlow, step: str) -> None:
    with engine.begin() as connection:
        claimed_task(connection, int(flow.task_ids[step]))
