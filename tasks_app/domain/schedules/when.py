"""The options of a schedule; light to import, because modules of handlers use it, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Literal

    from tasks_app.domain.durations import Duration
    from tasks_app.domain.schedules.days_off import OnDayOff
    from tasks_app.domain.schedules.misfire import FireAll, MisfirePolicy
    from tasks_app.domain.schedules.overlap import Overlap


class When(TypedDict, total=False):
    """The options of a schedule that are not its task's."""

    cron: str | None
    """Five fields, or six with seconds first; with names, steps, ``L``, ``MON#2``, ``@daily``."""
    every: Duration | None
    """A fixed interval, counted from ``starts_at`` or, without it, from the creation."""
    at: datetime | None
    """One instant, with a zone."""
    timezone: str
    """The IANA time zone in which ``cron`` is read. Default: UTC."""
    missed: str | MisfirePolicy | FireAll
    """What becomes of missed instants: ``skip``, ``fire_once`` (default), ``fire_all(n, age)``."""
    overlap: Literal["allow", "skip", "queue", "replace"] | Overlap
    """While the task before is not over: ``allow`` (default), ``skip``, ``queue``, ``replace``."""
    jitter: Duration | None
    """Each task becomes due up to this much later, at random."""
    calendar: str | None
    """A calendar, as ``set_calendar`` makes them: its days are days off."""
    on_day_off: Literal["skip", "next_working_day"] | OnDayOff | None
    """An instant on a day off: ``skip`` (default), or the same time of the ``next_working_day``,
    for which Saturdays and Sundays are off, too."""
    starts_at: datetime | None
    """No instant before this one fires."""
    ends_at: datetime | None
    """No instant after this one fires."""
    enabled: bool | None
    """False: the schedule does not fire. Default: True."""
