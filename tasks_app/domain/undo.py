"""Which steps of a flow are undone, and in which order."""

from __future__ import annotations

from collections.abc import Collection

from tasks_app.domain.errors import TasksError
from tasks_app.domain.flows import FlowProgress, FlowStep, StepEnd
from tasks_app.domain.rerun import in_order
from tasks_app.domain.tasks.states import State


def check_undo(flow: FlowProgress) -> None:
    """Raise TasksError: no step has an undo."""
    if not any(step.undo for step in flow.steps):
        raise TasksError(f"No step of flow {flow.id} has an undo=. To stop it: cancel_flow.")


def steps_to_undo(flow: FlowProgress) -> list[FlowStep]:
    """Return the steps that have succeeded, or run and may, and can be undone; in that order."""
    return [
        step
        for step in reversed(in_order(flow))
        if step.undo and (step.end is StepEnd.SUCCESS or step.state is State.RUNNING)
    ]


def undone_before(flow: FlowProgress, undone: Collection[str]) -> dict[str, list[str]]:
    """Return which of the steps are undone before each: those that needed it.

    A step that is not undone hands its needs on: what needed it needs what it needed.
    """
    before: dict[str, list[str]] = {name: [] for name in undone}
    nearest: dict[str, set[str]] = {}  # steps that are undone, and none between
    for step in in_order(flow):
        found: set[str] = set()
        for need in step.needs:
            found |= {need.step} if need.step in before else nearest[need.step]
        nearest[step.name] = found
        if step.name in before:
            for name in sorted(found):
                before[name].append(step.name)
    return before
