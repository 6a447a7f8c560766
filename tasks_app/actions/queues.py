"""What operators do to queues, to what holds tasks back (limits, breakers, locks), and workers."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

from pydantic import AfterValidator, Field
from sqlalchemy import Connection

from tasks_app.actions.action import ActionResult, Nothing, Role, Short, action, param
from tasks_app.domain.durations import count
from tasks_app.domain.errors import NotThereError
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode
from tasks_app.domain.flow_control.limits import GateKind
from tasks_app.domain.locks import MOST_COUNTED, lock_parts
from tasks_app.pool.operations.audit import note
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api import limits
from tasks_app.runtime.api import queues as verbs
from tasks_app.runtime.flow_control.breakers import override_breaker


def _subject(queue: str) -> str:
    return "Every queue" if queue == EVERY_QUEUE else f"Queue {queue}"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _list_page(_: object) -> str:
    return "/queues"


@dataclass(frozen=True, slots=True)
class Pausing:
    """Until when, and why. Without a time it lasts until an operator resumes the queue."""

    reason: Short = param(
        "--why", "Shown by stats and explain.", "", label="Why", hint="shown to all", metavar="TEXT"
    )
    resume_in: str | None = param("--for", "Resume after this long: 2h.", label="For", hint="2h")
    resume_at: datetime | None = param(
        "--until", "Resume then: ISO 8601 with a zone.", label="or until (UTC)"
    )


# Before those of one queue: its route would match theirs.
@action(Role.ADMIN, "Pause every queue", "/queues/*/pause", takes=Pausing, page=_list_page)
def pause_all(connection: Connection, _: None, given: Pausing, by: str) -> ActionResult:
    """Start no task of any queue, also of later ones; running tasks go on."""
    return pause.run(connection, EVERY_QUEUE, given, by)


@action(Role.ADMIN, "Resume all queues", "/queues/*/resume", page=_list_page)
def resume_all(connection: Connection, _: None, given: Nothing, by: str) -> ActionResult:
    """Let all queues run again, also those that were paused one by one."""
    return resume.run(connection, EVERY_QUEUE, given, by)


@action(Role.OPERATOR, "Pause", "/queues/{queue:path}/pause", command="pause", takes=Pausing)
def pause(connection: Connection, queue: str, given: Pausing, by: str) -> ActionResult:
    """Start no task of the queue; running tasks go on."""
    until = given.resume_at
    if until is not None and until.utcoffset() is None:
        until = until.replace(tzinfo=UTC)  # a form has no zone
    changed = verbs.pause_queue(
        connection, queue, given.reason, resume_at=until, resume_in=given.resume_in, by=by
    )
    text = "Nothing was changed: it is paused. Resume it first."
    if changed:
        text = f"{_subject(queue)} is paused. Running tasks go on."
    return ActionResult(text, {"queue": queue, "paused": True, "changed": changed}, changed)


@action(Role.OPERATOR, "Resume", "/queues/{queue:path}/resume", command="resume")
def resume(connection: Connection, queue: str, _: Nothing, by: str) -> ActionResult:
    """Let the queue run again."""
    resumed = sorted(verbs.resume_queue(connection, queue, by=by))
    if verbs.get_queue(connection, EVERY_QUEUE) is not None:
        text = "Every queue is paused: an admin can resume them. Run: tasks-app resume --all"
        return ActionResult(text, changed=bool(resumed))
    text = "Nothing was changed: it is not paused."
    if resumed:
        text = f"{_subject(queue)} is not paused any more."
    return ActionResult(text, {"resumed": resumed}, bool(resumed))


@dataclass(frozen=True, slots=True)
class Rules:
    """All settings of a queue; what is left out is removed."""

    windows: str | list[str] = param(
        default="", label="Windows, one a line", hint="mon-fri 22:00-06:00 Europe/Berlin"
    )
    """Such as ``mon-fri 22:00-06:00 Europe/Berlin not on CALENDAR``; a form has one a line."""
    running_below: int | None = param(label="While fewer others run", hint="10")
    waiting_below: str | None = param(label="While no other waits", hint="30s")
    only_while: str | None = param(label="While this load gate says so", hint="business_is_idle")
    retry: str | None = param(label="Retry", hint="5s,30s,1m")
    max_attempts: int | None = param(label="Attempts", hint="5")
    timeout: str | None = param(label="Timeout", hint="30s")
    hard_timeout: str | None = param(label="Hard timeout", hint="1m")


@action(Role.ADMIN, "Save the settings", "/queues/{queue:path}/change", takes=Rules)
def change_rules(connection: Connection, queue: str, given: Rules, by: str) -> ActionResult:
    """Set when the queue runs, and what its tasks have by default. What is left out is removed."""
    windows = given.windows
    rules: Any = asdict(given)
    rules["windows"] = (_lines(windows) if isinstance(windows, str) else windows) or None
    if verbs.change_queue(connection, queue, by=by, **rules) is None:
        return ActionResult(f"Queue {queue} has no settings any more.")
    return ActionResult("Changed. It holds from the next claim on.")


@action(Role.ADMIN, "Remove", on="queue", command="queues remove")
def remove_rules(connection: Connection, queue: str, _: Nothing, by: str) -> ActionResult:
    """Remove all settings of a queue, but not its pause."""
    done = verbs.reset_queue(connection, queue, by=by)
    text = "Its settings are removed." if done else "Nothing was changed: it has no settings."
    return ActionResult(text, {"queue": queue, "removed": done}, done)


def _weights(given: str | dict[str, float]) -> dict[str, float]:
    if not isinstance(given, str):
        return given
    weights = {}
    for line in _lines(given):
        key, _, number = line.rpartition("=")
        try:
            weights[key.strip()] = float(number)
        except ValueError:
            raise ValueError(f"{line!r:.60} isn't a weight. Write key=2, one a line") from None
    return weights


@dataclass(frozen=True, slots=True)
class Weights:
    """How the fair keys of a queue share it."""

    weights: Annotated[str | dict[str, float], AfterValidator(_weights)] = param(
        default="", label="Weights, one a line", hint="key=2"
    )
    """Keys that are not named weigh 1; a form has one a line, ``key=2``."""


@action(Role.ADMIN, "Share it", "/queues/{queue:path}/share", takes=Weights)
def share(connection: Connection, queue: str, given: Weights, by: str) -> ActionResult:
    """Let the fair keys of the queue share what runs."""
    limits.share_queue(connection, queue, _weights(given.weights), by=by)
    return ActionResult(f"Queue {queue} is shared by fair key.")


@action(Role.ADMIN, "Share it no more", "/queues/{queue:path}/unshare")
def unshare(connection: Connection, queue: str, _: Nothing, by: str) -> ActionResult:
    """Let priority and age alone decide in the queue."""
    if limits.unshare_queue(connection, queue, by=by):
        return ActionResult(f"In queue {queue} priority and age decide.")
    return ActionResult("Nothing was changed: it is not shared.", changed=False)


_KINDS = tuple(kind.value for kind in GateKind if kind is not GateKind.ORDER)


def _page(given: Any) -> str:
    return f"/queues/{quote(given.page, safe='')}" if given.page else "/queues"


@dataclass(frozen=True, slots=True)
class Limited:
    """A limit: of what, and how much."""

    kind: str = param("KIND", choices=_KINDS, label="Of", default=MISSING)
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


_SET = {"command": "limits set", "takes": Limited, "page": _page}


@action(Role.ADMIN, "Set the limit", "/limits/set", **_SET)
def set_limit(connection: Connection, _: None, given: Limited, by: str) -> ActionResult:
    """Set the limit of a queue, a name or a limit key. 'tenant:*': each key with this beginning.

    It replaces the earlier limit, and holds from the next claim on.
    """
    kind, target = given.kind, given.target
    limit = limits.set_limit(
        connection, kind, target, most=given.most, rate=given.rate, burst=given.burst, by=by
    )
    return ActionResult(f"The limit of {kind} {target} is set, from the next claim on.", limit)


@dataclass(frozen=True, slots=True)
class Target:
    """Which limit."""

    kind: str = param("KIND", choices=_KINDS, default=MISSING)
    target: str = param("TARGET", default=MISSING)
    page: str = ""


@action(Role.ADMIN, "Drop", "/limits/drop", command="limits remove", takes=Target, page=_page)
def remove_limit(connection: Connection, _: None, given: Target, by: str) -> ActionResult:
    """Remove a limit; the tasks that wait for it go on."""
    of, subject = {"kind": given.kind, "target": given.target}, f"{given.kind} {given.target}"
    if not limits.drop_limit(connection, **of, by=by):
        text = f"There is no limit of {subject}. Run: tasks-app limits list"
        return ActionResult(text, changed=False)
    return ActionResult(f"The limit of {subject} is removed.", {**of, "removed": True})


@dataclass(frozen=True, slots=True)
class Override:
    """What decides on a breaker: an operator (open, closed), or its outcomes (auto)."""

    dependency: str = param("DEPENDENCY", default=MISSING)
    mode: BreakerMode = param(default=MISSING)
    page: str = ""


_OVERRIDE = {"command": "breakers open", "takes": Override, "page": _page}


@action(Role.ADMIN, "Override", "/breakers/override", **_OVERRIDE)
def override(connection: Connection, _: None, given: Override, by: str) -> ActionResult:
    """Open or close a breaker by hand (open, closed), or let its outcomes decide (auto)."""
    dependency, mode = given.dependency, given.mode
    if not override_breaker(connection, dependency, mode, by=by):
        raise NotThereError(f"There is no breaker {dependency}. Run: tasks-app breakers list")
    undo = f"tasks-app breakers auto {dependency}"
    text = f"Breaker {dependency} is {mode} by hand. Undo: {undo}"
    if mode is BreakerMode.AUTO:
        text = f"The outcomes of breaker {dependency} decide again."
    return ActionResult(text, {"dependency": dependency, "mode": mode})


@dataclass(frozen=True, slots=True)
class Freed:
    """Which lock."""

    resource: str = param("RESOURCE", default=MISSING)
    holder: UUID | None = param("--token", "Only this holder; locks list --json shows it.")
    page: str = ""


@action(Role.ADMIN, "Free", "/locks/free", command="locks free", takes=Freed, page=_page)
def free_lock(connection: Connection, _: None, given: Freed, by: str) -> ActionResult:
    """Take a lock from its holder. From then on its guarded writes are refused."""
    holders = limits.free_lock(connection, given.resource, given.holder, by=by)
    if not holders:
        text = f"{given.resource} is not held. Run: tasks-app locks list"
        return ActionResult(text, changed=False)
    fields = {"resource": given.resource, "taken_from": holders}
    return ActionResult(f"{given.resource} was taken from {', '.join(holders)}.", fields)


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose stacks."""

    worker: Short = param("--worker", "Only of this worker, or of this child.", "", metavar="NAME")


def _stacks_page(given: Asked) -> str:
    return f"/workers/stacks?worker={quote(given.worker, safe='')}"


@action(Role.OPERATOR, "Stacks", "/workers/stacks", takes=Asked, page=_stacks_page)
def ask_stacks(connection: Connection, _: None, given: Asked, by: str) -> ActionResult:
    """Ask workers what each of their threads and coroutines does just now."""
    asked = heartbeats.ask_stacks(connection, given.worker)
    if not asked:
        return ActionResult("Nobody was asked: no such worker is alive.", changed=False)
    note(connection, "stacks", {"worker": given.worker}, who=by, number=len(asked))
    return ActionResult(f"{count(len(asked), 'child')} asked. Answers take some seconds.", asked)


@dataclass(frozen=True, slots=True)
class Room:
    """How many may hold a counted resource."""

    number: Annotated[int, Field(ge=0, le=MOST_COUNTED)] | None = param("NUMBER")


@action(Role.ADMIN, "Limit", on="resource", command="locks limit", takes=Room)
def limit_lock(connection: Connection, resource: str, given: Room, by: str) -> ActionResult:
    """Set how many may hold a resource; it overrides the code. Without NUMBER the code decides."""
    lock_parts(resource)
    limits.limit_lock(connection, resource, given.number, by=by)
    text = "as the code says" if given.number is None else f"at most {given.number}"
    return ActionResult(f"{resource}: {text}.", {"resource": resource, "most": given.number})
