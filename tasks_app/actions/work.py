"""What is done to causes of errors, to groups, and to instances of batch jobs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection

from tasks_app.actions.action import Action, Done, Nothing, Param, Role, Why
from tasks_app.batch.control import abandon_job, get_job, restart_job, stop_job
from tasks_app.domain.config.field_types import Span
from tasks_app.domain.errors import NotThereError
from tasks_app.pool.groups import browse
from tasks_app.runtime.api.errors import mark_error_known, mark_error_unknown
from tasks_app.runtime.api.groups import cancel_group


@dataclass(frozen=True, slots=True)
class Known:
    """What is said of a cause."""

    until: Annotated[Span | None, Param(label="For", hint="7d; empty: for ever")] = None
    """For how long; None: until it is taken back."""
    note: Annotated[str, Field(max_length=500), Param(label="Note")] = ""


def _known(connection: Connection, fingerprint: str, given: Known, by: str) -> Done:
    """Mark a cause as known."""
    until: timedelta | None = given.until
    if mark_error_known(connection, fingerprint, by=by, until=until, note=given.note):
        return Done("Marked as known.")
    return Done(f"No failed task has {fingerprint:.40}. Run: tasks-app errors", changed=False)


def _unknown(connection: Connection, fingerprint: str, _: Nothing, by: str) -> Done:
    """Take the mark of a cause back."""
    if mark_error_unknown(connection, fingerprint, by=by):
        fields = {"fingerprint": fingerprint, "known_by": None}
        return Done("It is not marked any more.", fields)
    said = f"{fingerprint:.40} is not marked as known. Run: tasks-app errors"
    return Done(said, changed=False)


def _of_cause(word: str, run: Any, label: str, **more: Any) -> Action:
    return Action(
        run,
        Role.OPERATOR,
        label,
        on="fingerprint",
        path=f"/errors/{{fingerprint}}/{word}",
        page=lambda fingerprint, _: f"/errors/{fingerprint}",
        **more,
    )


def _cancel(connection: Connection, group_id: int, given: Why, by: str) -> Done:
    """Cancel the members that have not ended; those that run are told."""
    if browse.get(connection, group_id) is None:
        raise NotThereError(f"There is no group {group_id}. Run: tasks-app groups list")
    done = cancel_group(connection, group_id, by=by, why=given.why)
    said = f"{done.cancelled} cancelled, {done.requested} told to stop."
    fields = {"group": group_id, **asdict(done)}
    return Done(said, fields, changed=bool(done.cancelled or done.requested))


@dataclass(frozen=True, slots=True)
class Restart:
    """How an instance goes on."""

    divide: Annotated[
        int | None,
        Field(ge=2, le=1000),
        Param("--divide", "Divide what has not started by so much.", label="Divide by"),
    ] = None
    """Into how many each partition is divided that has not started."""


def _check(connection: Connection, batch_id: int) -> None:
    if get_job(connection, batch_id) is None:
        raise NotThereError(f"There is no batch {batch_id}. Run: tasks-app batch list")


def _stop(connection: Connection, batch_id: int, _: Nothing, by: str) -> Done:
    """Stop an instance at the next chunks; a restart goes on there."""
    _check(connection, batch_id)
    left = stop_job(connection, batch_id, by=by)
    said = f"Stopping; {left} tasks run still." if left else "Stopping."
    return Done(said, {"batch_id": batch_id, "running": left})


def _restart(connection: Connection, batch_id: int, given: Restart, by: str) -> Done:
    """Let an instance go on that has failed or was stopped. What is complete is not done again."""
    _check(connection, batch_id)
    begun = restart_job(connection, batch_id, divide=given.divide, by=by)
    return Done(f"It goes on, run {begun.run}.", begun._asdict())


def _abandon(connection: Connection, batch_id: int, _: Nothing, by: str) -> Done:
    """Never let an instance go on. What it did stays; its parameters are free again."""
    _check(connection, batch_id)
    abandon_job(connection, batch_id, by=by)
    return Done("Abandoned.", {"batch_id": batch_id, "abandoned": True})


def _of_batch(word: str, run: Any, label: str, **more: Any) -> Action:
    return Action(
        run,
        Role.ADMIN,
        label,
        on="batch_id",
        path=f"/batches/{{batch_id}}/{word}",
        command=f"batch {word}",
        page=lambda batch_id, _: f"/batches/{batch_id}",
        needs_handlers=True,
        **more,
    )


KNOWN = _of_cause("known", _known, "Mark as known", takes=Known)
UNKNOWN = _of_cause("unknown", _unknown, "Take the mark back", command="errors unknown")
CANCEL_GROUP = Action(
    _cancel,
    Role.OPERATOR,
    "Cancel",
    on="group_id",
    path="/groups/{group_id}/cancel",
    command="groups cancel",
    takes=Why,
    page=lambda group_id, _: f"/groups/{group_id}",
)
STOP = _of_batch("stop", _stop, "Stop at the next chunks")
RESTART = _of_batch("restart", _restart, "Go on", takes=Restart)
ABANDON = _of_batch("abandon", _abandon, "Never let it go on")
OF_WORK = (KNOWN, UNKNOWN, CANCEL_GROUP, STOP, RESTART, ABANDON)
