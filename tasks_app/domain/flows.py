"""Flows: tasks with needs, as a producer describes them, and as they are read back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

from tasks_app.domain.creation import NewTask
from tasks_app.domain.durations import distance_in_words
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.events import AwaitedEvent, EventNeed, event, event_in_words
from tasks_app.domain.handlers.spec import Handler
from tasks_app.domain.tasks.options import TaskOptions, read_key, shown_value
from tasks_app.domain.tasks.payload_checks import check_text
from tasks_app.domain.tasks.records import TaskId
from tasks_app.domain.tasks.states import State

if TYPE_CHECKING:
    from typing import TypeVar, Unpack

    from tasks_app.domain.tasks.call_payload import CeleryCall
    from tasks_app.domain.tasks.payload import Payload

    P = TypeVar("P")

MOST_STEPS = 1_000  # and needs of one
LONGEST_NAME = 100
MOST_ITEMS = 10_000  # of one map
MAP_TASK = "tasks_app.map"  # the name of the tasks of maps, which every worker handles
NOT_NEEDED = "not needed any more"  # the sub-status of steps with a need that can never be met
UNDO_TASK = "tasks_app.undo"  # the name of the tasks that undo flows, likewise
UNDO_STEP = "undo"  # the name of their steps; those of what they create begin with it and a colon
_ITEM = "]"  # the end of names of items, and of no other steps
_LONGEST_MAP = LONGEST_NAME - len(f"[{MOST_ITEMS - 1}]")


def is_item(step: str) -> bool:
    """Whether this is the name of an item of a map, as ``labels[7]``."""
    return step.endswith(_ITEM)


class After(StrEnum):
    """Which end of a step is waited for."""

    SUCCESS = "success"  # SUCCEEDED or SKIPPED
    FAILURE = "failure"  # FAILED, CANCELLED or EXPIRED
    END = "end"  # either, and also that it is not needed any more


class StepEnd(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    UNNEEDED = "unneeded"  # a need of it can never be met, so it was skipped


class WhenFailed(StrEnum):
    """What a step that failed for good means for the others."""

    WAIT = "wait"  # they go on as far as they can; once it is requeued and succeeds, the rest does
    CANCEL = "cancel"  # those that wait are skipped, those that run are asked to stop
    UNDO = "undo"  # the same, and those that have succeeded are undone


class Need(NamedTuple):
    """A step that another one waits for, and which end of it."""

    step: str
    after: After = After.SUCCESS


Undo: TypeAlias = "Handler[Any, Any] | str"
Needs: TypeAlias = "Need | EventNeed | str | Sequence[Need | EventNeed | str]"


def failed(step: Need | str) -> Need:
    """Return the need that a step fails for good. The step that needs it is skipped otherwise.

    >>> flow = Flow("order")
    >>> pay = flow.step("pay", send_mail, {"to": "bank@example.org"})
    >>> flow.step("sorry", send_mail, {"to": "a@example.org"}, needs=failed(pay)).step
    'sorry'
    """
    return Need(_name_of(step), After.FAILURE)


def ended(step: Need | str) -> Need:
    """Return the need that a step ends, however it does.

    >>> flow = Flow("order")
    >>> pay = flow.step("pay", send_mail, {"to": "bank@example.org"})
    >>> flow.step("report", send_mail, {"to": "a@example.org"}, needs=ended(pay)).step
    'report'
    """
    return Need(_name_of(step), After.END)


@dataclass(slots=True)
class PlannedStep:
    task: NewTask  # of a map: what each item is to be, without a payload
    needs: dict[str, After]  # by the name of the step that is needed
    over: str | None = None  # of a map: the step whose result has the items
    events: dict[str, timedelta | None] = field(default_factory=dict)  # time-outs, by key
    undo: NewTask | None = None  # what undoes it, without a payload


@dataclass(slots=True)
class Flow:
    """Tasks that need each other, its steps. :func:`create_flow` creates them.

    >>> flow = Flow("order")
    >>> pay = flow.step("pay", send_mail, {"to": "bank@example.org"})
    >>> ship = flow.step("ship", send_mail, {"to": "shop@example.org"}, needs=pay)
    >>> _ = flow.step("sorry", send_mail, {"to": "a@example.org"}, needs=failed(ship))
    """

    name: str
    steps: dict[str, PlannedStep] = field(default_factory=dict, init=False)

    # fmt: off
    @overload
    def step(
        self, name: str, task: Handler[P, Any], payload: P, *,
        needs: Needs = (), undo: Undo | None = None, **options: Unpack[TaskOptions],
    ) -> Need: ...
    @overload
    def step(
        self, name: str, task: Handler[None, Any], payload: None = None, *,
        needs: Needs = (), undo: Undo | None = None, **options: Unpack[TaskOptions],
    ) -> Need: ...
    @overload
    def step(
        self, name: str, task: str | CeleryCall, payload: Payload = None, *,
        needs: Needs = (), undo: Undo | None = None, **options: Unpack[TaskOptions],
    ) -> Need: ...
    # fmt: on
    def step(
        self,
        name: str,
        task: Any,
        payload: Any = None,
        *,
        needs: Needs = (),
        undo: Undo | None = None,
        **options: Unpack[TaskOptions],
    ) -> Need:
        """Add a step, a task that waits until all its needs are met; return the need of it.

        Args:
            name: of the step, unique in the flow.
            task: what create_task takes.
            payload: of the task.
            needs: steps, or their names, that must succeed; :func:`failed` or :func:`ended` of one;
                :func:`event` that is sent.
            undo: a handler, or its name, that undoes the step once it has succeeded: see
                :func:`undo_flow`. Its payload is ``{"payload": …, "result": …}`` of the step.
            options: of create_task. A ``delay`` counts from the moment when the needs are met.

        Raises:
            InvalidTaskError: the name is taken or cannot be stored, or a need is none.
        """
        new, (found, events) = NewTask(task, payload, options), self._needs(name, needs)
        undone_by = None if undo is None else _undo(name, undo)
        self.steps[name] = PlannedStep(new, found, events=events, undo=undone_by)
        return Need(name)

    def map(
        self,
        name: str,
        task: Handler[Any, Any] | str,
        over: Need | str,
        *,
        needs: Needs = (),
        **options: Unpack[TaskOptions],
    ) -> Need:
        """Add a task for each item of the list that the step ``over`` returns; return the need.

        The items run beside each other, as steps ``name[0]``, ``name[1]`` and so on. The need is
        met when all have succeeded, and what it returned is the list of their results.

        >>> flow = Flow("order")
        >>> orders = flow.step("orders", send_mail, {"to": "shop@example.org"})
        >>> flow.map("labels", "label.print", over=orders).step
        'labels'

        Args:
            name: of the step, unique in the flow.
            task: a handler, or its name; an item is the payload of its task.
            over: a step that succeeds with a list, of at most 10,000 items.
            needs: other steps that must succeed before; see :meth:`step`.
            options: of create_task, for each item; a delay counts from the creation of the items.

        Raises:
            InvalidTaskError: the name is taken or cannot be stored, or a need is none.
        """
        of = _over(name, task, over)
        found, events = self._needs(name, needs)
        if len(name) > _LONGEST_MAP:
            allowed = f"text of up to {_LONGEST_MAP} characters for a map"
            raise InvalidTaskError("step", f"is {shown_value(name)}", allowed)
        found[of] = After.SUCCESS
        self.steps[name] = PlannedStep(NewTask(task, None, options), found, of, events)
        return Need(name)

    def _needs(
        self, name: str, needs: Needs
    ) -> tuple[dict[str, After], dict[str, timedelta | None]]:
        """Return the needs of a new step, and its events; raises InvalidTaskError."""
        check_name(name, "step")
        if undoes(name):
            allowed = "another name: those that undo others have it"
            raise InvalidTaskError("step", f"is {shown_value(name)}", allowed)
        if is_item(name):
            raise InvalidTaskError("step", f"is {shown_value(name)}", "a name that ends without ]")
        if name in self.steps:
            raise InvalidTaskError(f"steps.{name}", "is there twice", "one step of each name")
        if len(self.steps) >= MOST_STEPS:
            raise InvalidTaskError("steps", f"are more than {MOST_STEPS}", "several flows")
        path, found, awaited = f"steps.{name}.needs", dict[str, After](), list[EventNeed]()
        try:
            for need in [needs] if isinstance(needs, Need | EventNeed | str) else needs:
                if isinstance(need, EventNeed):
                    awaited.append(need)
                    continue
                found.setdefault(
                    _name_of(need), need.after if isinstance(need, Need) else After.SUCCESS
                )
        except (TypeError, InvalidTaskError):
            allowed = "steps of this flow, their names, failed(step), ended(step) or event(key)"
            raise InvalidTaskError(path, f"are {shown_value(needs)}", allowed) from None
        if (number := len(found) + len(awaited)) > MOST_STEPS:
            raise InvalidTaskError(path, f"are {number}", f"at most {MOST_STEPS}")
        events = dict(event(*need) for need in awaited)
        if len(events) < len(awaited):
            raise InvalidTaskError(path, "have an event twice", "each event once")
        return found, events


def _undo(name: str, undo: Any) -> NewTask:
    if not isinstance(undo, Handler | str):
        problem = f"is of type {type(undo).__name__}"
        raise InvalidTaskError(f"steps.{name}.undo", problem, "a handler, or its name")
    most = LONGEST_NAME - len(undo_name(""))
    if len(name) > most:
        allowed = f"text of up to {most} characters for a step with undo="
        raise InvalidTaskError("step", f"is {shown_value(name)}", allowed)
    return NewTask(undo)


def undo_name(step: str) -> str:
    """Return the name of the step that undoes this one."""
    return f"{UNDO_STEP}:{step}"


def _over(name: Any, task: Any, over: Any) -> str:
    """Return the step that a map is over; raises InvalidTaskError."""
    if not isinstance(task, Handler | str):
        problem = f"is of type {type(task).__name__}"
        raise InvalidTaskError(f"steps.{name}.task", problem, "a handler, or its name")
    match over:
        case Need(step, After.SUCCESS) | str(step):
            return step
        case _:
            allowed = "a step of this flow, or its name"
            raise InvalidTaskError(f"steps.{name}.over", f"is {shown_value(over)}", allowed)


def check_name(name: Any, path: str) -> None:
    """Raise InvalidTaskError unless it is the name of a flow or a step."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        allowed = f"text of up to {LONGEST_NAME} characters"
        raise InvalidTaskError(path, f"is {shown_value(name)}", allowed)
    check_text(name, path)


def _name_of(step: object) -> str:
    match step:
        case Need(name):
            return name
        case str():
            return step
        case _:
            raise InvalidTaskError("needs", f"has a {type(step).__name__}", "steps or names")


def check_flow(flow: Flow, key: str | None, on_failure: str) -> WhenFailed:
    """Raise InvalidTaskError if the flow cannot be created: a need is unknown, or needs itself."""
    check_type(flow)
    check_name(flow.name, "flow.name")
    read_key({"key": key}, "key")
    if on_failure not in list(WhenFailed):
        problem = f"is {shown_value(on_failure)}"
        raise InvalidTaskError("on_failure", problem, " or ".join(WhenFailed))
    check_needs(flow, {})
    return WhenFailed(on_failure)


def check_type(flow: Flow) -> None:
    if not isinstance(flow, Flow):
        raise InvalidTaskError("flow", f"is of type {type(flow).__name__}", "a Flow")


def check_needs(flow: Flow, there: Mapping[str, StepEnd | None]) -> None:
    """Raise InvalidTaskError if a need is unknown, can never be met, or is part of a circle.

    ``there`` are steps that exist already, with their ends.
    """
    for name, step in flow.steps.items():
        if name in there:
            raise InvalidTaskError(f"steps.{name}", "is there already", "another name")
        for need in starmap(Need, step.needs.items()):
            path, quoted = f"steps.{name}.needs", shown_value(need.step)
            if need.step not in flow.steps and need.step not in there:
                problem = f"has {quoted}, which is no step of this flow"
                others = ", ".join(other for other in flow.steps if other != name)
                raise InvalidTaskError(path, problem, others or "the name of another step")
            if is_hopeless(need, there.get(need.step)):
                how = "succeeded" if there[need.step] is StepEnd.SUCCESS else "is not needed"
                problem = f"can never be met: {quoted} {how}"
                raise InvalidTaskError(path, problem, "a need that is met, or still can be")
    try:
        TopologicalSorter({name: step.needs for name, step in flow.steps.items()}).prepare()
    except CycleError as error:
        path = " -> ".join(reversed(error.args[1]))
        raise InvalidTaskError("steps", f"need each other: {path}", "no circle") from None


@dataclass(frozen=True, slots=True)
class CreatedFlow:
    """A flow that was just created, or the open one that has its name and key."""

    id: int
    task_ids: dict[str, TaskId | int]  # by the name of the step
    created: bool = True


class FlowState(StrEnum):
    RUNNING = "running"  # a step runs, or waits for its date or an event
    STALLED = "stalled"  # a step has failed, and nothing goes on until it is requeued
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # it is over, and a step has failed; requeue that to go on


class MapItems(NamedTuple):
    """How many items a map has."""

    total: int
    succeeded: int  # including those that were skipped
    failed: int

    @property
    def left(self) -> int:
        """How many keep the map waiting."""
        return self.total - self.succeeded


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A step of a flow as it is now."""

    name: str
    task_id: int
    task: str  # the name of its task
    end: StepEnd | None
    state: State | None  # of its task, while it has not ended or lies in the error pool
    attempt: int | None  # how often its task has started, while it has not ended
    held: bool
    due_at: datetime | None  # None: it has ended, or waits for its needs
    open_needs: tuple[Need, ...]  # items of a map aside, as in the next
    needs: tuple[Need, ...]
    result: Any  # what its handler returned
    error: str | None
    ended_at: datetime | None
    items: MapItems | None = None  # of a map that has created its items
    undo: str | None = None  # the name of the task that undoes it
    events: tuple[AwaitedEvent, ...] = ()

    @property
    def open_events(self) -> tuple[AwaitedEvent, ...]:
        """Those that it waits for."""
        if self.end is not None or self.state is State.RUNNING:
            return ()
        return tuple(event for event in self.events if event.is_open)


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """A flow as it is now."""

    id: int
    name: str
    key: str | None
    state: FlowState
    on_failure: WhenFailed
    total: int
    succeeded: int  # steps, including those that were skipped
    failed: int
    created_at: datetime
    changed_at: datetime  # when a step ended last
    # In the order in which they were created, and behind them at most 50 items of maps, the failed
    # ones first; none in lists.
    steps: tuple[FlowStep, ...] = ()


class StepOfFlow(NamedTuple):
    step: FlowStep
    flow: FlowProgress  # of whose steps it has this one, those that it needs, and ``undo``

    @property
    def was_undone(self) -> bool:
        """Whether its flow is undone, and it does not undo: it is not to run again."""
        return is_undone(self.flow.steps) and not undoes(self.step.name)


def is_undone(steps: Iterable[FlowStep]) -> bool:
    """Whether the flow of these steps was undone, or is."""
    return any(step.name == UNDO_STEP for step in steps)


def undoes(step: str) -> bool:
    """Whether this is the name of a step that undoes others."""
    return step == UNDO_STEP or step.startswith(undo_name(""))


def to_mend(steps: Collection[FlowStep]) -> list[FlowStep]:
    """Return those that failed; of a flow that is undone, only those that undo."""
    undone = is_undone(steps)
    return [
        step for step in steps if step.end is StepEnd.FAILURE and (not undone or undoes(step.name))
    ]


def need_in_words(need: Need) -> str:
    return need.step if need.after is After.SUCCESS else f"{need.after} of {need.step}"


def waits_in_words(step: FlowStep, now: datetime) -> list[str]:
    """Return what a step waits for: steps and events."""
    events = (event_in_words(event, now) for event in step.open_events)
    return [*map(need_in_words, step.open_needs), *events]


def items_in_words(items: MapItems) -> str:
    failed = f", {items.failed:,} failed" if items.failed else ""
    return f"{items.succeeded:,} of {items.total:,} items{failed}"


def step_in_words(step: FlowStep, now: datetime) -> str:
    """Return what a step does now, or how it ended."""
    if step.end is StepEnd.UNNEEDED:
        return "not needed"
    if step.end is StepEnd.SUCCESS:
        return "succeeded"
    if step.end is StepEnd.FAILURE:
        return "failed" if step.state is State.FAILED else "cancelled or expired"
    if step.state is State.RUNNING:
        return "runs"
    if step.held:
        return "held"
    if step.due_at is None or step.open_events:
        return "waits"
    if step.due_at <= now:
        return "is due"
    return f"{'retries' if step.attempt else 'due'} {distance_in_words(step.due_at, now)}"


def state_of_flow(outcome: str | None, *, goes_on: bool) -> FlowState:
    """``goes_on``: a step runs, or needs nothing but its date, an event or a release."""
    if outcome is not None:
        return FlowState.SUCCEEDED if outcome == State.SUCCEEDED else FlowState.FAILED
    return FlowState.RUNNING if goes_on else FlowState.STALLED


def needs_of(rows: Iterable[Any]) -> dict[str, list[Need]]:
    """Return the needs of each step, from rows with step, needs and after."""
    found: dict[str, list[Need]] = {}
    for row in rows:
        found.setdefault(row.step, []).append(Need(row.needs, After(row.after)))
    return found


def is_open(need: Need, end: StepEnd | None) -> bool:
    """Whether a step waits for this need, of a step with this end; a failure may be mended."""
    return end is None or (end is StepEnd.FAILURE and need.after is After.SUCCESS)


def is_hopeless(need: Need, end: StepEnd | None) -> bool:
    """Whether this need, of a step with this end, can never be met."""
    match end:
        case StepEnd.SUCCESS:
            return need.after is After.FAILURE
        case StepEnd.UNNEEDED:
            return need.after is not After.END
        case _:
            return False
