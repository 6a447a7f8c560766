"""Settings of queues, calendars and pauses, noted in the audit; nothing here commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final, Unpack

from tasks_app.domain.durations import Duration, parse_duration
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.queues import Queue, QueueOptions, check_calendar_days, check_queue_options
from tasks_app.domain.schedules.timing import check_instant
from tasks_app.domain.tasks.options import check_queue
from tasks_app.pool import scheduling
from tasks_app.pool.flow_control import queue_settings as rows
from tasks_app.pool.flow_control.queue_settings import pause, resume
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tables import database_now
from tasks_app.runtime.db.connections import Sync, connection_of, made_async

_NOTHING: Any = dict.fromkeys(QueueOptions.__annotations__)


def change_queue(
    session: Sync, queue: str, *, by: str = "", **options: Unpack[QueueOptions]
) -> Queue | None:
    """Change the settings of a queue; what is left out stays, None removes a setting.

    It counts from the next claim on; running tasks go on. None: the queue has no settings any more.

    >>> queue = change_queue(session, "reports", windows=["22:00-06:00 Europe/Berlin"])
    >>> print(queue.windows[0])
    22:00-06:00 Europe/Berlin

    Raises:
        InvalidTaskError: a setting is invalid.
    """
    connection = connection_of(session)
    checked = check_queue_options(options)
    known = rows.calendars(connection)
    for window in checked.get("windows", ()):
        if window.calendar is not None and window.calendar not in known:
            allowed = f"a calendar that set_calendar made: {', '.join(known) or 'none yet'}"
            raise InvalidTaskError("options.windows", f"name {window.calendar!r}", allowed)
    rows.change_queue(connection, check_queue(queue), checked)
    note(connection, "queue change", {"queue": queue, "changed": sorted(options)}, who=by)
    return get_queue(session, queue)


def reset_queue(session: Sync, queue: str, *, by: str = "") -> bool:
    """Remove all settings of a queue, but not its pause. False: it has none.

    >>> reset_queue(session, "reports")
    False

    Raises:
        InvalidTaskError: a queue cannot have this name.
    """
    before = get_queue(session, check_queue(queue))
    if before is None or not before.has_rules:
        return False
    change_queue(session, queue, by=by, **_NOTHING)
    return True


def get_queue(session: Sync, queue: str) -> Queue | None:
    """Return the settings and the pause of a queue. None: it has neither.

    >>> pause_queue(session, "mails", "mail server is away")
    True
    >>> get_queue(session, "mails").reason
    'mail server is away'
    """
    return next((each for each in list_queues(session) if each.queue == queue), None)


def list_queues(session: Sync) -> list[Queue]:
    """Return the queues with settings or a pause, by name; ``*`` if all are paused.

    >>> pause_queue(session, "mails")
    True
    >>> [queue.queue for queue in list_queues(session) if not queue.runs]
    ['mails']
    """
    return rows.find_queues(connection_of(session))


def set_calendar(session: Sync, name: str, days: Sequence[date], *, by: str = "") -> list[date]:
    """Set the days of a calendar, on which windows do not open, and return them.

    Schedules that name it fire by its new days from now on.

    >>> days = set_calendar(session, "holidays", [date(2030, 12, 25)])
    >>> queue = change_queue(session, "calls", windows=["mon-fri 09:00-17:00 UTC not on holidays"])

    Raises:
        InvalidTaskError: the name or a day is invalid.
    """
    found = check_calendar_days(days)
    connection = connection_of(session)
    rows.set_calendar(connection, check_queue(name), found)
    scheduling.recompute_next_fire(connection, name)
    note(connection, "calendar set", {"calendar": name, "days": len(found)}, who=by)
    return found


def remove_calendar(session: Sync, name: str, *, by: str = "") -> bool:
    """Delete a calendar. False: there is none of that name.

    >>> remove_calendar(session, "holidays")
    False

    Raises:
        InvalidTaskError: the windows of a queue name it, or a schedule.
    """
    connection = connection_of(session)
    for what, users in (
        ("the windows of", rows.queues_of_calendar(connection, name)),
        ("schedule", scheduling.schedules_of_calendar(connection, name)),
    ):
        if users:
            used = f"is named by {what} {', '.join(users)}"
            raise InvalidTaskError("name", used, "a calendar that none names")
    removed = rows.remove_calendar(connection, name)
    if removed:
        note(connection, "calendar remove", {"calendar": name}, who=by)
    return removed


def list_calendars(session: Sync) -> dict[str, list[date]]:
    """Return the days of each calendar.

    >>> days = set_calendar(session, "holidays", [date(2030, 12, 25)])
    >>> list_calendars(session)
    {'holidays': [datetime.date(2030, 12, 25)]}
    """
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
    """Pause a queue, or all with ``*``. False: it was paused already, and nothing changes.

    It runs again after :func:`resume_queue`, at ``resume_at``, or after ``resume_in``.

    >>> pause_queue(session, "mails", "mail server is away", resume_in="2h", by="anna")
    True

    Raises:
        InvalidTaskError: a queue cannot have this name, or the end is not in the future.
    """
    if resume_at is not None and resume_in is not None:
        raise InvalidTaskError("resume_in", "is given together with resume_at", "one of the two")
    at = None if resume_at is None else check_instant("resume_at", resume_at)
    connection = connection_of(session)
    try:
        span = None if resume_in is None else parse_duration(resume_in)
    except ValueError as error:
        raise InvalidTaskError("resume_in", str(error), "such as '2h'") from None
    if (at is not None and at <= database_now(connection)) or span == timedelta(0):
        raise InvalidTaskError("resume_at", "is over", "an instant of the future")
    changed = pause(connection, queue, reason, resume_at=at, resume_in=span)
    if changed:
        ends = {"resume_at": at and at.isoformat(), "resume_in": resume_in and str(resume_in)}
        given = {name: value for name, value in ends.items() if value}
        note(connection, "pause", {"queue": queue, "reason": reason, **given}, who=by)
    return changed


def resume_queue(session: Sync, queue: str, *, by: str = "") -> Sequence[str]:
    """Let a queue run again; ``*`` lets all of them. Return what was paused.

    >>> pause_queue(session, "mails")
    True
    >>> resume_queue(session, "mails", by="anna")
    ['mails']

    Raises:
        InvalidTaskError: a queue cannot have this name.
    """
    connection = connection_of(session)
    resumed = resume(connection, queue)
    if resumed:
        note(connection, "resume", {"queues": sorted(resumed)}, who=by)
    return resumed


achange_queue: Final = made_async(change_queue)
areset_queue: Final = made_async(reset_queue)
aget_queue: Final = made_async(get_queue)
alist_queues: Final = made_async(list_queues)
aset_calendar: Final = made_async(set_calendar)
aremove_calendar: Final = made_async(remove_calendar)
alist_calendars: Final = made_async(list_calendars)
apause_queue: Final = made_async(pause_queue)
aresume_queue: Final = made_async(resume_queue)
