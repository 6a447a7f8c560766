"""What operators and applications say of queues, noted in the audit; nothing here commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Unpack

from tasks_app.domain.durations import Duration
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.queues.queue import Queue, QueueOptions, check_days, check_options
from tasks_app.domain.schedules.timing import check_instant
from tasks_app.domain.tasks.names import check_queue
from tasks_app.pool.flow_control import queue_settings as rows
from tasks_app.pool.flow_control.pause import pause, resume
from tasks_app.pool.operations.audit import note
from tasks_app.runtime.db.connections import Sync, connection_of

if TYPE_CHECKING:
    pass

from tasks_app.runtime.api.tasks import _span

_NOTHING: QueueOptions = {
    "windows": None,
    "running_below": None,
    "waiting_below": None,
    "retry": None,
    "max_attempts": None,
    "timeout": None,
    "hard_timeout": None,
}


def change_queue(
    session: Sync, queue: str, *, by: str = "", **options: Unpack[QueueOptions]
) -> Queue | None:
    """Say something of a queue; what is left out stays, None takes back.

    It holds from the next claim on; what runs already, runs on. None: nothing is said any more.

    Raises:
        InvalidTaskError: something is wrong with it.
    """
    connection = connection_of(session)
    said = check_options(options)
    known = rows.calendars(connection)
    for window in said.get("windows", ()):
        if window.calendar is not None and window.calendar not in known:
            allowed = f"a calendar that set_calendar made: {', '.join(known) or 'none yet'}"
            raise InvalidTaskError("options.windows", f"name {window.calendar!r}", allowed)
    rows.change(connection, check_queue(queue), said)
    note(connection, "queue change", {"queue": queue, "changed": sorted(options)}, who=by)
    return get_queue(session, queue)


def reset_queue(session: Sync, queue: str, *, by: str = "") -> bool:
    """Take back all that is said of a queue, but not its pause; False: nothing was.

    Raises:
        InvalidTaskError: it is no queue's name.
    """
    before = get_queue(session, check_queue(queue))
    if before is None or not before.has_rules:
        return False
    change_queue(session, queue, by=by, **_NOTHING)
    return True


def get_queue(session: Sync, queue: str) -> Queue | None:
    """Return what is said of a queue; None: nothing."""
    found = (each for each in list_queues(session) if each.queue == queue)
    return next(found, None)


def list_queues(session: Sync) -> list[Queue]:
    """Return the queues of which something is said, by name; ``*`` where all are paused."""
    return rows.find(connection_of(session))


def set_calendar(session: Sync, name: str, days: Sequence[date], *, by: str = "") -> list[date]:
    """Write the days of a calendar, on which windows do not open; return them.

    Raises:
        InvalidTaskError: the name or a day is none.
    """
    found = check_days(days)
    connection = connection_of(session)
    rows.set_calendar(connection, check_queue(name), found)
    note(connection, "calendar set", {"calendar": name, "days": len(found)}, who=by)
    return found


def remove_calendar(session: Sync, name: str, *, by: str = "") -> bool:
    """Delete a calendar; False: there is none of that name.

    Raises:
        InvalidTaskError: the windows of a queue name it.
    """
    connection = connection_of(session)
    users = rows.users_of(connection, name)
    if users:
        said = f"is named by the windows of {', '.join(users)}"
        raise InvalidTaskError("name", said, "a calendar that none names")
    removed = rows.remove_calendar(connection, name)
    if removed:
        note(connection, "calendar remove", {"calendar": name}, who=by)
    return removed


def list_calendars(session: Sync) -> dict[str, list[date]]:
    """Return the days of each calendar."""
    return rows.calendars(connection_of(session))


def pause_queue(
    session: Sync,
    queue: str,
    reason: str = "",
    *,
    resume_at: datetime | None = None,
    resume_in: Duration | None = None,
    by: str = "",
) -> bool:
    """Stop a queue, or all with ``*``; False: it was paused already, and all of that stays.

    It runs again after :func:`resume_queue`, at ``resume_at``, or ``resume_in`` from now on.

    Raises:
        InvalidTaskError: it is no queue's name, or the end is none.
    """
    if resume_at is not None and resume_in is not None:
        raise InvalidTaskError("resume_in", "is given together with resume_at", "one of the two")
    at = None if resume_at is None else check_instant("resume_at", resume_at)
    connection = connection_of(session)
    changed = pause(connection, queue, reason, resume_at=at, resume_in=_span(resume_in))
    if changed:
        ends = {"resume_at": at and at.isoformat(), "resume_in": resume_in and str(resume_in)}
        given = {name: value for name, value in ends.items() if value}
        note(connection, "pause", {"queue": queue, "reason": reason, **given}, who=by)
    return changed


def resume_queue(session: Sync, queue: str, *, by: str = "") -> Sequence[str]:
    """Let a queue run again; ``*`` lets all of them. Return what was paused.

    Raises:
        InvalidTaskError: it is no queue's name.
    """
    connection = connection_of(session)
    resumed = resume(connection, queue)
    if resumed:
        note(connection, "resume", {"queues": sorted(resumed)}, who=by)
    return resumed
