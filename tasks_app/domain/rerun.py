"""Which steps of a flow run again with one of them, and when that is refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from graphlib import TopologicalSorter

from tasks_app.domain.errors import TasksError
from tasks_app.domain.flows import (
    UNDO_STEP,
    FlowProgress,
    FlowStep,
    StepEnd,
    WhenFailed,
    is_hopeless,
    is_item,
    is_open,
    need_in_words,
    undo_name,
)
from tasks_app.domain.tasks.states import State


def in_order(flow: FlowProgress) -> list[FlowStep]:
    """Return the steps, each behind all that it needs, without items of maps."""
    steps = {step.name: step for step in flow.steps if not is_item(step.name)}
    needs = {name: [need.step for need in step.needs] for name, step in steps.items()}
    return [steps[name] for name in TopologicalSorter(needs).static_order()]


def steps_from(flow: FlowProgress, name: str) -> list[FlowStep]:
    """Return a step and all that hang on it, in the order of their needs.

    A step with a need that can still never be met stays as it is, and so does what hangs on that.
    If no failure is left in a flow that cancels, what failures had skipped runs again, too.

    Raises:
        TasksError: there is no such step, it waits for another one, one of them runs, or the flow
            was undone.
    """
    order = in_order(flow)
    first = next((step for step in order if step.name == name), None)
    if first is None and is_item(name):
        whole = name.rpartition("[")[0]
        raise TasksError(
            f"{name} is an item of a map. Requeue its task, or run the flow again from {whole}."
        )
    if first is None:
        known = ", ".join(step.name for step in flow.steps[:20])
        raise TasksError(f"Flow {flow.id} has no step {name!r:.110}. Its steps are {known}.")
    undoes = name == UNDO_STEP or name.startswith(undo_name(""))
    if not undoes and any(step.name == UNDO_STEP for step in order):
        problem = "What needs its steps would read results that are taken back. Create it anew."
        raise TasksError(f"Flow {flow.id} was undone, or is to be. {problem}")
    ends = {step.name: step.end for step in order}
    waits = [need_in_words(need) for need in first.needs if is_open(need, ends[need.step])]
    if waits:
        raise TasksError(
            f"Step {name} waits for {', '.join(waits)}. Run the flow again from there, or wait."
        )
    found = _reached(order, first, ())
    if flow.on_failure is not WhenFailed.WAIT and all(
        step.name in found or (is_item(step.name) and step.name.rpartition("[")[0] in found)
        for step in flow.steps
        if step.end is StepEnd.FAILURE
    ):
        skipped = [step.name for step in order if step.end is StepEnd.UNNEEDED]
        found = _reached(order, first, skipped)
    again = [step for step in order if step.name in found]
    for step in again:
        if step.state is State.RUNNING:
            raise TasksError(f"{told(step)} runs. Wait for its end, or cancel it first.")
    return again


def told(step: FlowStep) -> str:
    return f"Step {step.name} (task {step.task_id})"


def _reached(order: Sequence[FlowStep], first: FlowStep, more: Collection[str]) -> set[str]:
    """Return which steps run again with ``first`` and ``more``."""
    found = {first.name}
    ends = {step.name: step.end for step in order}
    for step in order:
        outside = [need for need in step.needs if need.step not in found]
        if step.name not in more and len(outside) == len(step.needs):
            continue
        if step.end is not StepEnd.UNNEEDED or not any(
            is_hopeless(need, ends[need.step]) for need in outside
        ):
            found.add(step.name)
    return found
