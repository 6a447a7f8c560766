"""Flows, and one flow with its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.config.setting_sources import masked
from tasks_app.domain.events import StoredEvent
from tasks_app.domain.flows import (
    FlowProgress,
    FlowState,
    FlowStep,
    MapItems,
    StepEnd,
    WhenFailed,
    is_item,
    is_undone,
    to_mend,
    undoes,
)
from tasks_app.domain.tasks.masks import Masks
from tasks_app.domain.tasks.states import State
from tasks_app.pool import events
from tasks_app.pool.flows import get_flow, newest_flows
from tasks_app.pool.tables import COMPLETED, database_now
from tasks_app.runtime.api.tasks import masked_errors
from tasks_app.runtime.encryption import values

PAGE = 50
MOST_EVENTS = 200  # on the page of a flow


@dataclass(frozen=True, slots=True)
class Flows:
    at: datetime
    filters: dict[str, str]
    flows: tuple[FlowProgress, ...]  # without their steps
    older: int | None  # the id to go on below; None: this is the last page


@dataclass(frozen=True, slots=True)
class FlowStepLine:
    step: FlowStep
    state: str  # that of its task, or HELD, WAITING (a need is open), NOT NEEDED


@dataclass(frozen=True, slots=True)
class FlowPage:
    at: datetime
    flow: FlowProgress  # without its steps
    steps: tuple[FlowStepLine, ...]  # in the order in which they were created
    events: tuple[StoredEvent, ...]  # that they wait for or have waited for, by key

    @property
    def left(self) -> int:
        steps = sum(line.step.end is None for line in self.steps if not is_item(line.step.name))
        return steps + sum(each.left - each.failed for each in self._items)

    @property
    def failed(self) -> dict[str, list[FlowStep]]:
        """Return steps that failed, by the states of their tasks; a requeue starts them again.

        Of many items of maps, these are only the first; of a flow that is undone, those that undo.
        """
        found: dict[str, list[FlowStep]] = {}
        failed = {step.name for step in to_mend([line.step for line in self.steps])}
        for line in self.steps:
            if line.step.name in failed:
                found.setdefault(line.state, []).append(line.step)
        return found

    @property
    def open_events(self) -> list[str]:
        """Return keys of events that steps wait for."""
        return sorted({event.key for line in self.steps for event in line.step.open_events})

    def state_of(self, event: StoredEvent) -> str:
        if event.sent_at is not None:
            return "SENT"
        return "WAITING" if event.key in self.open_events else "NOT SENT"

    @property
    def undone(self) -> bool:
        """Whether it was undone, or is."""
        return is_undone(line.step for line in self.steps)

    @property
    def may_undo(self) -> bool:
        """Whether steps can be undone, and nobody has asked for that."""
        return not self.undone and any(line.step.undo for line in self.steps)

    def may_rerun(self, step: FlowStep) -> bool:
        may = undoes(step.name) if self.undone else not is_item(step.name)
        return may and step.end is not None

    @property
    def items(self) -> int:
        """How many items its maps have."""
        return sum(each.total for each in self._items)

    @property
    def _items(self) -> list[MapItems]:
        return [line.step.items for line in self.steps if line.step.items]

    @property
    def items_listed(self) -> int:
        return sum(is_item(line.step.name) for line in self.steps)

    @property
    def all_listed(self) -> bool:
        """Whether all that failed are among its steps here."""
        return sum(map(len, self.failed.values())) >= self.flow.failed

    @property
    def cancelled_rest(self) -> bool:
        """A failure made it skip steps."""
        unneeded = any(line.step.end is StepEnd.UNNEEDED for line in self.steps)
        return unneeded and bool(self.failed) and self.flow.on_failure is WhenFailed.CANCEL


def flows(connection: Connection, filters: dict[str, str], *, before: int | None = None) -> Flows:
    found = newest_flows(
        connection,
        PAGE + 1,
        name=filters.get("name"),
        key=filters.get("key"),
        state=FlowState(filters["state"]) if "state" in filters else None,
        below=before,
    )
    older = found[PAGE - 1].id if len(found) > PAGE else None
    return Flows(database_now(connection), filters, tuple(found[:PAGE]), older)


@dataclass(frozen=True, slots=True)
class Events:
    at: datetime
    events: tuple[StoredEvent, ...]  # the longest wait first, then those sent; without payloads


def event_list(connection: Connection, *, key: str | None, waiting: bool) -> Events:
    found = events.find(connection, MOST_EVENTS, key=key, waiting=waiting)
    return Events(database_now(connection), tuple(replace(each, payload=None) for each in found))


def flow_page(connection: Connection, flow_id: int) -> FlowPage | None:
    flow = get_flow(connection, flow_id)
    if flow is None:
        return None
    ends = _ends(connection, flow)
    steps = [
        replace(step, error=step.error or ends.get(step.task_id, (None, None))[1])
        for step in flow.steps
    ]
    rules = values.masks()
    lines = (
        FlowStepLine(replace(step, result=_shown(step, rules)), _state(step, ends))
        for step in masked_errors(connection, steps, by="task_id")
    )
    at, needed = database_now(connection), _events(connection, flow, rules)
    return FlowPage(at, replace(flow, steps=()), tuple(lines), needed)


def _events(connection: Connection, flow: FlowProgress, rules: Masks) -> tuple[StoredEvent, ...]:
    names: dict[str, set[str]] = {}
    for step in flow.steps:
        for need in step.events:
            names.setdefault(need.key, set()).add(step.task)
    found = events.find_by_key(connection, sorted(names)[:MOST_EVENTS])
    return tuple(shown_event(event, names[event.key], rules) for event in found)


def shown_event(event: StoredEvent, names: Iterable[str], rules: Masks) -> StoredEvent:
    """Return an event as pages show it, by the rules of the tasks that need it."""
    payload = event.payload
    for name in names:
        payload = rules.value(name, payload)
    return replace(event, payload=masked(payload))


Ends = Mapping[int, tuple[str, str | None]]
# A task ends after its flow was created: days before that are not opened.
_ENDS = text(f"""
    SELECT c.id, c.state, c.error FROM {COMPLETED} c
    WHERE c.id = ANY(CAST(:ids AS bigint[])) AND c.finished_at >= :since""")


def _ends(connection: Connection, flow: FlowProgress) -> Ends:
    """Return state and error of steps whose tasks are in the completed pool."""
    ids = [step.task_id for step in flow.steps if step.state is None]
    rows = connection.execute(_ENDS, {"ids": ids, "since": flow.created_at})
    return {row.id: (row.state, row.error) for row in rows}


def _state(step: FlowStep, ends: Ends) -> str:
    if step.end is StepEnd.UNNEEDED:
        return "NOT NEEDED"
    if step.end is not None:  # its task may have been pruned
        pruned = State.SUCCEEDED if step.end is StepEnd.SUCCESS else State.FAILED
        return step.state or ends.get(step.task_id, (pruned,))[0]
    if step.held:
        return "HELD"
    for_items = step.items is not None and step.due_at is None
    if step.open_needs or step.open_events or for_items:
        return "WAITING"
    return step.state or State.PENDING


def _shown(step: FlowStep, rules: Masks) -> Any:
    """Return a result as pages show it."""
    said = values.shown(step.result)
    return masked(rules.value(step.task, said) if said is step.result else said)
