"""Requeue what failed for one cause in stages, and stop when the same error comes again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Engine

from tasks_app.domain.operations import BulkAction
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.errors.again import Since, look_again
from tasks_app.runtime.api.bulk import Done, run_bulk, start_bulk, transaction_of

STAGES: tuple[int | None, ...] = (1, 10, None)
"""None: all the rest."""


@dataclass(frozen=True, slots=True)
class RequeueStage:
    """A stage that was requeued, and what became of its tasks."""

    done: Done
    again: int
    """Failed for the same cause; no further stage follows."""
    going: int
    """Had not ended when the patience was over; no further stage follows."""


def requeue_errors(
    engine: Engine,
    fingerprint: str,
    stages: Sequence[int | None] = STAGES,
    *,
    by: str = "",
    why: str = "",
    patience: timedelta = timedelta(minutes=10),
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[RequeueStage]:
    """Begin, and yield each stage once its tasks have ended; the last, which none follows, at once.

    It is one bulk: ``run_bulk`` with ``done.token`` goes on where this has stopped. At most the
    first thousand tasks of a stage are watched.

    >>> (group,) = list_errors(session)
    >>> for stage in requeue_errors(engine, group.fingerprint, [100], by="anna"):
    ...     print(len(stage.done.ids), stage.again)
    1 0

    Raises:
        InvalidSelectionError: it is no fingerprint.
    """
    token = start_bulk(engine, BulkAction.REQUEUE, fingerprint=fingerprint, by=by, why=why)
    return _stages(engine, token, fingerprint, stages, by, patience.total_seconds(), pause)


def _stages(
    engine: Engine,
    token: int,
    fingerprint: str,
    stages: Sequence[int | None],
    by: str,
    patience_s: float,
    pause: Callable[[float], None],
) -> Iterator[RequeueStage]:
    for place, first in enumerate(stages, 1):
        with transaction_of(engine) as connection:
            since = instant(connection)
        done = run_bulk(engine, token, first=first, by=by)
        if done is None:
            return
        seen, end = Since(0, 0), time.monotonic() + patience_s
        while place < len(stages) and done.ids:
            with transaction_of(engine) as connection:
                seen = look_again(connection, fingerprint, done.ids, since)
            if seen.again or not seen.going or time.monotonic() >= end:
                break
            pause(0.5)
        yield RequeueStage(done, seen.again, seen.going)
        if seen.again or seen.going or not done.more:
            return
