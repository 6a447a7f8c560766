"""What is done to limits, breakers and locks. A page says in ``page`` whose queue it is."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

from pydantic import Field
from sqlalchemy import Connection

from tasks_app.actions.action import ActionResult, Role, action, param
from tasks_app.domain.locks import MOST_COUNTED
from tasks_app.domain.locks import parts_of
from tasks_app.domain.errors import NotThereError
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode
from tasks_app.domain.flow_control.limits import GateKind
from tasks_app.runtime.api import limits as verbs
from tasks_app.runtime.flow_control.breakers import override_breaker

_KINDS = tuple(kind.value for kind in GateKind if kind is not GateKind.ORDER)


def _page(given: Any) -> str:
    return f"/queues/{quote(given.page, safe='')}" if given.page else "/queues"


@dataclass(frozen=True, slots=True)
class Limited:
    """A limit: of what, and how much."""

    kind: str = param("KIND", choices=_KINDS, label="Of", default=MISSING)
    """``queue``, ``name`` or ``key``."""
    target: str = param("TARGET", label="Target", default=MISSING)
    most: int | None = param(
        "--most", "How many run at a time; 0: none.", label="At a time", hint="5"
    )
    rate: str | None = param(
        "--rate", "How many start in a period: 100/1m.", label="Rate", hint="100/1m"
    )
    burst: int | None = param(
        "--burst",
        "How many start at once after a quiet time. Default: the rate's of a second, or 1.",
        label="Burst",
    )
    page: str = ""


@action(
    Role.ADMIN,
    "Set the limit",
    "/limits/set",
    command="limits set",
    takes=Limited,
    page=_page,
)
def set_limit(connection: Connection, _: None, given: Limited, by: str) -> ActionResult:
    """Set the limit of a queue, a name or a limit key. 'tenant:*' means each key that begins so.

    It replaces what was set before, and holds from the next claim on.
    """
    kind, target = given.kind, given.target
    limit = verbs.set_limit(
        connection, kind, target, most=given.most, rate=given.rate, burst=given.burst, by=by
    )
    return ActionResult(f"The limit of {kind} {target} is set, from the next claim on.", limit)


@dataclass(frozen=True, slots=True)
class Target:
    """Which limit."""

    kind: str = param("KIND", choices=_KINDS, default=MISSING)
    """``queue``, ``name`` or ``key``."""
    target: str = param("TARGET", default=MISSING)
    page: str = ""


@action(Role.ADMIN, "Drop", "/limits/drop", command="limits remove", takes=Target, page=_page)
def remove_limit(connection: Connection, _: None, given: Target, by: str) -> ActionResult:
    """Remove a limit; the tasks that wait for it go on."""
    of = {"kind": given.kind, "target": given.target}
    if not verbs.drop_limit(connection, **of, by=by):
        said = f"There is no limit of {given.kind} {given.target}. Run: tasks-app limits list"
        return ActionResult(said, changed=False)
    return ActionResult(
        f"The limit of {given.kind} {given.target} is removed.", {**of, "removed": True}
    )


@dataclass(frozen=True, slots=True)
class Override:
    """Who decides on a breaker: an operator (open, closed), or its outcomes (auto)."""

    dependency: str = param("DEPENDENCY", default=MISSING)
    mode: BreakerMode = param(default=MISSING)
    page: str = ""


_MODES = {
    BreakerMode.OPEN: "is open by hand",
    BreakerMode.CLOSED: "is closed by hand",
    BreakerMode.AUTO: "is left to its outcomes",
}


@action(
    Role.ADMIN,
    "Override",
    "/breakers/override",
    command="breakers open",
    takes=Override,
    page=_page,
)
def override(connection: Connection, _: None, given: Override, by: str) -> ActionResult:
    """Open or close a breaker whatever the outcomes are (open, closed), or leave it to them."""
    dependency, mode = given.dependency, given.mode
    if not override_breaker(connection, dependency, mode, by=by):
        raise NotThereError(f"There is no breaker {dependency}. Run: tasks-app breakers list")
    said = f"Breaker {dependency} {_MODES[mode]}"
    if mode is not BreakerMode.AUTO:
        said += f", until somebody says: tasks-app breakers auto {dependency}"
    return ActionResult(f"{said}.", {"dependency": dependency, "mode": mode})


@dataclass(frozen=True, slots=True)
class Freed:
    """Which lock."""

    resource: str = param("RESOURCE", default=MISSING)
    holder: UUID | None = param("--token", "Only this holder; locks list --json shows it.")
    """The ``token`` of who holds it; without it, all who do."""
    page: str = ""


@action(Role.ADMIN, "Free", "/locks/free", command="locks free", takes=Freed, page=_page)
def free_lock(connection: Connection, _: None, given: Freed, by: str) -> ActionResult:
    """Take a lock from its holder. His guarded writes are refused from then on."""
    whose = verbs.free_lock(connection, given.resource, given.holder, by=by)
    if not whose:
        said = f"Nobody holds {given.resource}. Run: tasks-app locks list"
        return ActionResult(said, changed=False)
    fields = {"resource": given.resource, "taken_from": whose}
    return ActionResult(f"{given.resource} was taken from {', '.join(whose)}.", fields)


@dataclass(frozen=True, slots=True)
class Room:
    """How many may hold a counted resource."""

    number: Annotated[int, Field(ge=0, le=MOST_COUNTED)] | None = param("NUMBER")


@action(Role.ADMIN, "Limit", on="resource", command="locks limit", takes=Room)
def limit_lock(connection: Connection, resource: str, given: Room, by: str) -> ActionResult:
    """Set how many may hold a resource, whatever code says. Without NUMBER code decides."""
    parts_of(resource)
    verbs.limit_lock(connection, resource, given.number, by=by)
    said = "as code says" if given.number is None else f"at most {given.number}"
    return ActionResult(f"{resource}: {said}.", {"resource": resource, "most": given.number})
