"""How far a flow is, as the transaction of the test sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from tasks_app.domain.flows import (
    FlowProgress,
    FlowStep,
    StepEnd,
    is_item,
    step_in_words,
    waits_in_words,
)
from tasks_app.pool.tables import database_now
from tasks_app.runtime.api.flows import get_flow
from tasks_app.runtime.db.connections import Raw, Sync, made_async, on_connection


def assert_flow(
    session: Sync | Raw,
    flow_id: int,
    *,
    done: Collection[str] | None = None,
    waiting: Mapping[str, Collection[str]] | None = None,
    failed: Collection[str] | None = None,
) -> FlowProgress:
    """Assert that these steps of a flow, and no others, stand so. Return the flow.

    ``done`` have succeeded, ``failed`` have not (or were cancelled, or expired), and each step in
    ``waiting`` waits for those steps, and events (``"event order:7/approved"``), and only for
    those. None: it may be any. Items of a map are not named: the map is done when all of them are.

    >>> flow = Flow("order")
    >>> pay = flow.step("pay", send_mail, {"to": "bank@example.org"})
    >>> _ = flow.step("ship", send_mail, {"to": "shop@example.org"}, needs=pay)
    >>> made = create_flow(session, flow)
    >>> flow = assert_flow(session, made.id, done=[], waiting={"ship": ["pay"]})
    >>> drained = drain(session)
    >>> flow = assert_flow(session, made.id, done=["pay", "ship"], waiting={}, failed=[])

    Raises:
        AssertionError: it says what is missing, what was not expected, and how each step stands.
        ValueError: an item of a map is named.
    """
    given = {"done": done, "waiting": waiting, "failed": failed}
    if items := [name for names in given.values() for name in names or () if is_item(name)]:
        raise ValueError(f"Items of a map are not named: name the map. Given was {items[0]}.")
    with on_connection(session) as connection:
        flow, now = get_flow(connection, flow_id), database_now(connection)
    if flow is None:
        raise AssertionError(f"There is no flow {flow_id}.")
    steps = [step for step in flow.steps if not is_item(step.name)]
    found = {
        "done": [step.name for step in steps if step.end is StepEnd.SUCCESS],
        "waiting": _in_words({step.name: waited for step in steps if (waited := _waits_for(step))}),
        "failed": [step.name for step in steps if step.end is StepEnd.FAILURE],
    }
    given["waiting"] = None if waiting is None else _in_words(waiting)
    wrong = [
        f"  {word}: {_difference(expected, found[word])}"
        for word, expected in given.items()
        if expected is not None and {*expected} != {*found[word]}
    ]
    if wrong:
        lines = [f"  {_described(step, now)}" for step in flow.steps]
        told = f"Flow {flow.id} ({flow.name}) stands otherwise:"
        raise AssertionError("\n".join([told, *wrong, "Its steps:", *lines]))
    return flow


aassert_flow: Final = made_async(assert_flow)


def _waits_for(step: FlowStep) -> set[str]:
    return {n.step for n in step.open_needs} | {f"event {e.key}" for e in step.open_events}


def _in_words(waiting: Mapping[str, Collection[str]]) -> list[str]:
    return [f"{s} for {', '.join(sorted({*needs})) or 'nothing'}" for s, needs in waiting.items()]


def _difference(expected: Collection[str], found: Collection[str]) -> str:
    missing = [name for name in expected if name not in found]
    other = [name for name in found if name not in expected]
    parts = {"missing": missing, "not expected:": other}
    return "; ".join(f"{word} {', '.join(names)}" for word, names in parts.items() if names)


def _described(step: FlowStep, now: datetime) -> str:
    waits = ", ".join(waits_in_words(step, now))
    needs = f" for {waits}" if waits else ""
    error = f": {step.error}" if step.error else ""
    return f"{step.name} ({step.task_id}) {step_in_words(step, now)}{needs}{error}"
