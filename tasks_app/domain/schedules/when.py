"""What a schedule says of when it fires; light to import, for handlers may say so, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Literal

    from tasks_app.domain.durations import Duration
    from tasks_app.domain.schedules.misfire import FireAll, MisfirePolicy
    from tasks_app.domain.schedules.overlap import Overlap


class When(TypedDict, total=False):
    """What a schedule says beside its task and that task's options."""

    cron: str | None
    """Five fields, or six with seconds first; names, steps, ``L``, ``MON#2`` and ``@daily``."""
    every: Duration | None
    """A fixed interval, counted from ``starts_at`` or else from the creation."""
    at: datetime | None
    """One instant."""
    timezone: str
    """The IANA zone whose clocks ``cron`` reads; default UTC."""
    missed: str | MisfirePolicy | FireAll
    """``skip``, ``fire_once`` (default) or ``fire_all(max, max_age)``."""
    overlap: Literal["allow", "skip", "queue", "replace"] | Overlap
    """``allow`` (default), ``skip``, ``queue`` or ``replace``."""
    jitter: Duration | None
    """Each task becomes due up to so much later, at random."""
    starts_at: datetime | None
    ends_at: datetime | None
    """The first and the last instant that may fire."""
    enabled: bool | None
