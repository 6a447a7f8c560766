"""What is done to queues, and to what holds tasks back in them: limits, breakers, locks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

from pydantic import AfterValidator, Field
from sqlalchemy import Connection

from tasks_app.actions.action import Action, Done, Nothing, Param, Role
from tasks_app.domain.coordination.locks import MOST_COUNTED, parts_of
from tasks_app.domain.errors import NotThereError
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode
from tasks_app.domain.flow_control.limits import GateKind
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api import limits
from tasks_app.runtime.api import queues as verbs
from tasks_app.runtime.flow_control.breakers import override_breaker


def page_of(queue: str) -> str:
    """Return the page of a queue; of none or all of them the list."""
    return "/queues" if queue in ("", EVERY_QUEUE) else f"/queues/{quote(queue, safe='')}"


def _next(queue: str | None, given: Any) -> str:
    return page_of(getattr(given, "page", "") if queue is None else queue)


def _called(queue: str) -> str:
    return "Every queue" if queue == EVERY_QUEUE else f"Queue {queue}"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


@dataclass(frozen=True, slots=True)
class Pausing:
    """Until when, and why. With neither time it lasts until somebody resumes the queue."""

    reason: Annotated[
        str, Param("--why", "Shown by stats and explain.", label="Why", hint="shown to all")
    ] = ""
    resume_in: Annotated[
        str | None, Param("--for", "Resume after this long: 2h.", label="For", hint="2h")
    ] = None
    """Such as ``2h``."""
    resume_at: Annotated[
        datetime | None,
        Param("--until", "Resume then: ISO 8601 with a zone.", label="or until (UTC)"),
    ] = None
    """Without a zone it is in UTC."""


def _pause(connection: Connection, queue: str, given: Pausing, by: str) -> Done:
    """Let nothing of the queue begin; what runs goes on."""
    until = given.resume_at
    if until is not None and until.utcoffset() is None:
        until = until.replace(tzinfo=UTC)
    changed = verbs.pause_queue(
        connection, queue, given.reason, resume_at=until, resume_in=given.resume_in, by=by
    )
    said = (
        f"{_called(queue)} is paused. What runs goes on."
        if changed
        else "Nothing was changed: it is paused. Resume it first."
    )
    return Done(said, {"queue": queue, "paused": True, "changed": changed}, changed)


def _resume(connection: Connection, queue: str, _: Nothing, by: str) -> Done:
    """Let the queue run again."""
    resumed = verbs.resume_queue(connection, queue, by=by)
    if verbs.get_queue(connection, EVERY_QUEUE) is not None:
        said = "Every queue is paused: an admin can resume them. Run: tasks-app resume --all"
        return Done(said, changed=bool(resumed))
    said = (
        f"{_called(queue)} is not paused any more."
        if resumed
        else "Nothing was changed: it is not paused."
    )
    return Done(said, {"resumed": sorted(resumed)}, bool(resumed))


def _pause_every(connection: Connection, _: None, given: Pausing, by: str) -> Done:
    """Let nothing of any queue begin, also of those that come later; what runs goes on."""
    return _pause(connection, EVERY_QUEUE, given, by)


def _resume_every(connection: Connection, _: None, given: Nothing, by: str) -> Done:
    """Let all queues run again, also those that were paused by themselves."""
    return _resume(connection, EVERY_QUEUE, given, by)


@dataclass(frozen=True, slots=True)
class Rules:
    """All settings of a queue; what is left out is removed."""

    windows: Annotated[
        str | list[str],
        Param(label="Windows, one a line", hint="mon-fri 22:00-06:00 UTC"),
    ] = ""
    """Such as ``mon-fri 22:00-06:00 Europe/Berlin not on CALENDAR``; of a form one a line."""
    running_below: Annotated[int | None, Param(label="While fewer others run", hint="10")] = None
    waiting_below: Annotated[str | None, Param(label="While no other waits", hint="30s")] = None
    retry: Annotated[str | None, Param(label="Retry", hint="5s,30s,1m")] = None
    max_attempts: Annotated[int | None, Param(label="Attempts", hint="5")] = None
    timeout: Annotated[str | None, Param(label="Timeout", hint="30s")] = None
    hard_timeout: Annotated[str | None, Param(label="Hard timeout", hint="1m")] = None


def _change(connection: Connection, queue: str, given: Rules, by: str) -> Done:
    """Say when the queue runs, and what its tasks have by default. What is left out is removed."""
    rules: Any = {name: getattr(given, name) for name in Rules.__slots__}
    windows = given.windows
    rules["windows"] = (_lines(windows) if isinstance(windows, str) else windows) or None
    if verbs.change_queue(connection, queue, by=by, **rules) is None:
        return Done(f"Queue {queue} has no settings any more.")
    return Done("Changed. It counts from the next claim on.")


def _remove(connection: Connection, queue: str, _: Nothing, by: str) -> Done:
    """Remove all settings of a queue, but not its pause."""
    done = verbs.reset_queue(connection, queue, by=by)
    said = "Its settings are removed." if done else "Nothing was changed: it has no settings."
    return Done(said, {"queue": queue, "removed": done}, done)


def _weights(given: str | dict[str, float]) -> dict[str, float]:
    return dict(map(_weight, _lines(given))) if isinstance(given, str) else given


def _weight(line: str) -> tuple[str, float]:
    key, _, number = line.rpartition("=")
    try:
        return key.strip(), float(number)
    except ValueError:
        raise ValueError(f"{line!r:.60} is no weight. Write one a line, such as key=2") from None


@dataclass(frozen=True, slots=True)
class Weights:
    """How the fair keys of a queue share it."""

    weights: Annotated[
        str | dict[str, float],
        AfterValidator(_weights),
        Param(label="Weights, one a line", hint="key=2"),
    ] = ""
    """Keys that are not named weigh 1; of a form one a line, ``key=2``."""


def _share(connection: Connection, queue: str, given: Weights, by: str) -> Done:
    """Let the fair keys of the queue share what runs."""
    weights = _weights(given.weights)
    limits.share_queue(connection, queue, weights, by=by)
    fields = {"queue": queue, "shared": True, "weights": weights}
    return Done(f"Queue {queue} is shared by fair key.", fields)


def _unshare(connection: Connection, queue: str, _: Nothing, by: str) -> Done:
    """Let priority and age alone decide in the queue."""
    changed = limits.unshare_queue(connection, queue, by=by)
    said = (
        f"In queue {queue} priority and age decide."
        if changed
        else "Nothing was changed: it is not shared."
    )
    return Done(said, {"queue": queue, "shared": False, "changed": changed}, changed)


KINDS = tuple(kind.value for kind in GateKind if kind is not GateKind.ORDER)


@dataclass(frozen=True, slots=True)
class Target:
    """Which limit."""

    kind: Annotated[str, Param("KIND", choices=KINDS)]
    """``queue``, ``name`` or ``key``."""
    target: Annotated[str, Param("TARGET", label="Target")]
    page: str = ""
    """The queue whose page is shown next."""


@dataclass(frozen=True, slots=True)
class Limited:
    """A limit: of what, and how much."""

    kind: Annotated[str, Param("KIND", label="Of", choices=KINDS)]
    """``queue``, ``name`` or ``key``."""
    target: Annotated[str, Param("TARGET", label="Target")]
    most: Annotated[
        int | None,
        Param("--most", "How many run at a time; 0: none.", label="At a time", hint="5"),
    ] = None
    """How many run at a time."""
    rate: Annotated[
        str | None,
        Param("--rate", "How many start in a period: 100/1m.", label="Rate", hint="100/1m"),
    ] = None
    """How many start in a period: ``100/1m``."""
    burst: Annotated[
        int | None,
        Param(
            "--burst",
            "How many start at once after a quiet time. Default: the rate's of a second, or 1.",
            label="Burst",
        ),
    ] = None
    """How many start at once after a quiet time."""
    page: str = ""
    """The queue whose page is shown next."""


def _set_limit(connection: Connection, _: None, given: Limited, by: str) -> Done:
    """Set the limit of a queue, a name or a limit key. 'tenant:*' means each key that begins so.

    It replaces what was set before, and holds from the next claim on.
    """
    values = {"most": given.most, "rate": given.rate, "burst": given.burst}
    limit = limits.set_limit(connection, given.kind, given.target, by=by, **values)  # type: ignore[arg-type]
    said = f"The limit of {given.kind} {given.target} is set, from the next claim on."
    return Done(said, limit)


def _remove_limit(connection: Connection, _: None, given: Target, by: str) -> Done:
    """Remove a limit; the tasks that wait for it go on."""
    of = {"kind": given.kind, "target": given.target}
    if not limits.drop_limit(connection, **of, by=by):
        said = f"There is no limit of {given.kind} {given.target}. Run: tasks-app limits list"
        return Done(said, changed=False)
    return Done(f"The limit of {given.kind} {given.target} is removed.", {**of, "removed": True})


@dataclass(frozen=True, slots=True)
class Override:
    """Who decides on a breaker: an operator (open, closed), or its outcomes (auto)."""

    dependency: Annotated[str, Param("DEPENDENCY")]
    mode: BreakerMode
    page: str = ""


_MODES = {
    BreakerMode.OPEN: "is open by hand",
    BreakerMode.CLOSED: "is closed by hand",
    BreakerMode.AUTO: "is left to its outcomes",
}


def _override(connection: Connection, _: None, given: Override, by: str) -> Done:
    """Open or close a breaker whatever the outcomes are (open, closed), or leave it to them."""
    if not override_breaker(connection, given.dependency, given.mode, by=by):
        raise NotThereError(f"There is no breaker {given.dependency}. Run: tasks-app breakers list")
    said = f"Breaker {given.dependency} {_MODES[given.mode]}"
    if given.mode is not BreakerMode.AUTO:
        said += f", until somebody says: tasks-app breakers auto {given.dependency}"
    return Done(f"{said}.", {"dependency": given.dependency, "mode": given.mode})


@dataclass(frozen=True, slots=True)
class Freed:
    """Which lock."""

    resource: Annotated[str, Param("RESOURCE")]
    holder: Annotated[
        UUID | None, Param("--token", "Only this holder; locks list --json shows it.")
    ] = None
    """The ``token`` of who holds it; without it, all who do."""
    page: str = ""


def _free_lock(connection: Connection, _: None, given: Freed, by: str) -> Done:
    """Take a lock from its holder. His guarded writes are refused from then on."""
    whose = limits.free_lock(connection, given.resource, given.holder, by=by)
    if not whose:
        said = f"Nobody holds {given.resource}. Run: tasks-app locks list"
        return Done(said, changed=False)
    fields = {"resource": given.resource, "taken_from": whose}
    return Done(f"{given.resource} was taken from {', '.join(whose)}.", fields)


@dataclass(frozen=True, slots=True)
class Room:
    """How many may hold a counted resource."""

    number: Annotated[int | None, Field(ge=0, le=MOST_COUNTED), Param("NUMBER")] = None


def _limit_lock(connection: Connection, resource: str, given: Room, by: str) -> Done:
    """Set how many may hold a resource, whatever code says. Without NUMBER code decides."""
    parts_of(resource)
    limits.limit_lock(connection, resource, given.number, by=by)
    said = "as code says" if given.number is None else f"at most {given.number}"
    return Done(f"{resource}: {said}.", {"resource": resource, "most": given.number})


def _of_queue(word: str, run: Any, role: Role, label: str, **more: Any) -> Action:
    path = f"/queues/{{queue:path}}/{word}"
    return Action(run, role, label, on="queue", path=path, page=_next, **more)


PAUSE = _of_queue("pause", _pause, Role.OPERATOR, "Pause", takes=Pausing, command="pause")
RESUME = _of_queue("resume", _resume, Role.OPERATOR, "Resume", command="resume")
REMOVE = Action(_remove, Role.ADMIN, "Remove", on="queue", command="queues remove")
SET_LIMIT = Action(
    _set_limit,
    Role.ADMIN,
    "Set the limit",
    path="/limits/set",
    command="limits set",
    takes=Limited,
    page=_next,
)
REMOVE_LIMIT = Action(
    _remove_limit,
    Role.ADMIN,
    "Drop",
    path="/limits/drop",
    command="limits remove",
    takes=Target,
    page=_next,
)
OVERRIDE = Action(
    _override,
    Role.ADMIN,
    "Override",
    path="/breakers/override",
    command="breakers open",
    takes=Override,
    page=_next,
)
FREE_LOCK = Action(
    _free_lock,
    Role.ADMIN,
    "Free",
    path="/locks/free",
    command="locks free",
    takes=Freed,
    page=_next,
)
LIMIT_LOCK = Action(
    _limit_lock, Role.ADMIN, "Limit", on="resource", command="locks limit", takes=Room
)
OF_QUEUES = (
    Action(
        _pause_every,
        Role.ADMIN,
        "Pause every queue",
        path="/queues/*/pause",
        takes=Pausing,
        page=_next,
    ),
    Action(_resume_every, Role.ADMIN, "Resume all queues", path="/queues/*/resume", page=_next),
    PAUSE,
    RESUME,
    _of_queue("change", _change, Role.ADMIN, "Save the settings", takes=Rules),
    _of_queue("share", _share, Role.ADMIN, "Share it", takes=Weights),
    _of_queue("unshare", _unshare, Role.ADMIN, "Share it no more"),
    REMOVE,
    SET_LIMIT,
    REMOVE_LIMIT,
    OVERRIDE,
    FREE_LOCK,
    LIMIT_LOCK,
)
