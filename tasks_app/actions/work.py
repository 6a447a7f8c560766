"""What is done to causes of errors, to groups, and to instances of batch jobs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection

from tasks_app.actions.action import ActionResult, Nothing, Role, Why, action, param
from tasks_app.batch.control import abandon_job, get_job, restart_job, stop_job
from tasks_app.domain.config.field_types import Span
from tasks_app.domain.errors import NotThereError
from tasks_app.pool.groups import browse
from tasks_app.runtime.api.errors import mark_error_known, mark_error_unknown
from tasks_app.runtime.api.groups import cancel_group


@dataclass(frozen=True, slots=True)
class Known:
    """What is said of a cause."""

    until: Span | None = param(label="For", hint="7d; empty: for ever")
    """For how long; None: until it is taken back."""
    note: Annotated[str, Field(max_length=500)] = param(default="", label="Note")


@action(Role.OPERATOR, "Mark as known", "/errors/{fingerprint}/known", takes=Known)
def known(connection: Connection, fingerprint: str, given: Known, by: str) -> ActionResult:
    """Mark a cause as known."""
    until: timedelta | None = given.until
    if mark_error_known(connection, fingerprint, by=by, until=until, note=given.note):
        return ActionResult("Marked as known.")
    return ActionResult(
        f"No failed task has {fingerprint:.40}. Run: tasks-app errors", changed=False
    )


@action(
    Role.OPERATOR,
    "Take the mark back",
    "/errors/{fingerprint}/unknown",
    command="errors unknown",
)
def unknown(connection: Connection, fingerprint: str, _: Nothing, by: str) -> ActionResult:
    """Take the mark of a cause back."""
    if mark_error_unknown(connection, fingerprint, by=by):
        fields = {"fingerprint": fingerprint, "known_by": None}
        return ActionResult("It is not marked any more.", fields)
    said = f"{fingerprint:.40} is not marked as known. Run: tasks-app errors"
    return ActionResult(said, changed=False)


@action(Role.OPERATOR, "Cancel", "/groups/{group_id}/cancel", command="groups cancel", takes=Why)
def cancel(connection: Connection, group_id: int, given: Why, by: str) -> ActionResult:
    """Cancel the members that have not ended; those that run are told."""
    if browse.get(connection, group_id) is None:
        raise NotThereError(f"There is no group {group_id}. Run: tasks-app groups list")
    done = cancel_group(connection, group_id, by=by, why=given.why)
    said = f"{done.cancelled} cancelled, {done.requested} told to stop."
    fields = {"group": group_id, **asdict(done)}
    return ActionResult(said, fields, changed=bool(done.cancelled or done.requested))


def _check(connection: Connection, batch_id: int) -> None:
    if get_job(connection, batch_id) is None:
        raise NotThereError(f"There is no batch {batch_id}. Run: tasks-app batch list")


@action(
    Role.ADMIN,
    "Stop at the next chunks",
    "/batches/{batch_id}/stop",
    command="batch stop",
    needs_handlers=True,
)
def stop(connection: Connection, batch_id: int, _: Nothing, by: str) -> ActionResult:
    """Stop an instance at the next chunks; a restart goes on there."""
    _check(connection, batch_id)
    left = stop_job(connection, batch_id, by=by)
    said = f"Stopping; {left} tasks run still." if left else "Stopping."
    return ActionResult(said, {"batch_id": batch_id, "running": left})


@dataclass(frozen=True, slots=True)
class Restart:
    """How an instance goes on."""

    divide: Annotated[int, Field(ge=2, le=1000)] | None = param(
        "--divide", "Divide what has not started by so much.", label="Divide by"
    )
    """Into how many each partition is divided that has not started."""


@action(
    Role.ADMIN,
    "Go on",
    "/batches/{batch_id}/restart",
    command="batch restart",
    takes=Restart,
    needs_handlers=True,
)
def restart(connection: Connection, batch_id: int, given: Restart, by: str) -> ActionResult:
    """Let an instance go on that has failed or was stopped. What is complete is not done again."""
    _check(connection, batch_id)
    begun = restart_job(connection, batch_id, divide=given.divide, by=by)
    return ActionResult(f"It goes on, run {begun.run}.", begun._asdict())


@action(
    Role.ADMIN,
    "Never let it go on",
    "/batches/{batch_id}/abandon",
    command="batch abandon",
    needs_handlers=True,
)
def abandon(connection: Connection, batch_id: int, _: Nothing, by: str) -> ActionResult:
    """Never let an instance go on. What it did stays; its parameters are free again."""
    _check(connection, batch_id)
    abandon_job(connection, batch_id, by=by)
    return ActionResult("Abandoned.", {"batch_id": batch_id, "abandoned": True})
