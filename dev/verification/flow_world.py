"""What there is in a flow: the rows of its steps, an event, and who has not committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dev.verification.explorer import Step
from dev.verification.rules import FlowRules

Place = Literal["waits", "dated", "due", "runs", "over"]
End = Literal["", "success", "failure", "unneeded"]
After = Literal["success", "failure", "end"]
Sender = Literal["to send", "has K", "done"]
Wait = Literal["counted", "dated"]
"""Of a wait with a time-out the step has a date, and counts nothing."""


class FlowStep(NamedTuple):
    """The row of a step's task, and what the flow knows of its end."""

    place: Place
    waits_for: int = 0
    """The counter in the row."""
    end: End = ""
    saw: frozenset[int] = frozenset()
    """Steps that had ended when the statement began that ends this one."""
    ends: End | Literal["back"] = ""
    """The end that a statement is about to write: it waits for the lock of the flow."""
    ghost: bool = False
    """A worker that lost its lease still runs it, and will write an end."""
    own_needs: Literal["", "entered", "counted"] = ""
    """Needs of its own, which its run has committed; counted when that went back."""


class Change(NamedTuple):
    """A transaction that has looked and written, and has not committed."""

    what: str
    rows: tuple[tuple[int, FlowStep], ...]
    """They are locked. Those of steps that are over are inserted: others do not see them."""
    has_flow: bool
    """It has the lock of the flow."""


class FlowWorld(NamedTuple):
    """The whole state of one flow, and of the event K."""

    steps: tuple[FlowStep, ...]
    """None: who creates the flow has not committed."""
    unreleased: tuple[int, ...]
    """Ends that were written, and whose followers were not released yet."""
    faults_left: tuple[int, ...]
    change: Change | None = None
    sent: bool = False
    senders: tuple[Sender, ...] = ()
    creator_saw: Literal["", "sent", "unsent"] = ""


@dataclass(frozen=True, slots=True)
class FlowSetup:
    """One flow: what each step needs, by its number, and which faults happen."""

    needs: tuple[dict[int, After], ...]
    faults: dict[str, int] = field(default_factory=dict)
    events: dict[int, Wait] = field(default_factory=dict)
    """Which steps wait for K."""
    senders: int = 0
    is_there: bool = True
    """Else it is created while K is sent."""
    is_known: bool = False
    """Others have begun to wait for K before."""
    go_back: tuple[int, ...] = ()
    """Steps whose needs are entered by their run, which goes back until these are met."""
    rules: FlowRules = field(default_factory=FlowRules)


Steps = Iterator[Step[FlowWorld]]


def with_step(world: FlowWorld, number: int, **changes: object) -> FlowWorld:
    steps = list(world.steps)
    steps[number] = steps[number]._replace(**changes)  # type: ignore[arg-type]
    return world._replace(steps=tuple(steps))


def is_met(after: After, end: End) -> bool:
    return end != "" and after in ("end", end)


def is_open(after: After, end: End) -> bool:
    """A need that can never be met is not: who requeues such a step wants it to run."""
    return end == "" or (end == "failure" and after == "success")
