"""One action on all tasks of a selection, in short transactions; previews, and staged requeues."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.operations import Amendment, BulkAction, Selection
from tasks_app.pool.error_groups import RequeueResult, count_requeued
from tasks_app.pool.operations import audit
from tasks_app.pool.operations.selection import SelectionLimits, limits_of_now, read, read_page
from tasks_app.pool.tables import database_now
from tasks_app.runtime.api.bulk_step import (
    MOST_EDITED,
    BulkStep,
    Done,
    edited_payload,
    is_locked,
    parted,
    read_opening,
)
from tasks_app.runtime.db.connections import checked_engine
from tasks_app.runtime.handlers.registry import HANDLERS, Registry

STEP = 200
"""Tasks of one transaction, which takes 0.1 to 0.2 s."""


def start_bulk(
    engine: Engine,
    action: str,
    *,
    patch: Mapping[str, Any] | None = None,
    by: str = "",
    **selection: Any,
) -> int:
    """Open a bulk and return its token. No task is changed yet.

    >>> token = start_bulk(engine, "cancel", name="mail.send", queue="default", by="anna")
    >>> run_bulk(engine, token).answers["cancelled"]
    1

    Args:
        engine: of the database; each step is a transaction of its own.
        action: ``cancel``, ``requeue``, ``edit``; of what waits ``run-now``, ``reschedule``,
            ``reprioritise``, ``move``, ``hold``, ``release``, ``enable``, ``disable``.
        patch: of an ``edit``: is merged into each payload; None in it removes a key.
        by: who does it, for the audit.
        selection: ``ids=``, ``name=``, ``queue=``, ``biz_key=``, ``group=``,
            ``state=``, ``pool=``, ``error_kind=``, ``error_text=``, ``fingerprint=``,
            ``older_than=``, ``newer_than=``, ``retrying=``, ``held=``; all must be true. Besides
            what the action makes of them: ``at=`` or ``delay=`` of ``reschedule``,
            ``to_priority=`` of ``reprioritise``, ``to_queue=`` of ``move``, ``rate="50/1s"`` of
            ``run-now`` and ``release``; and ``why=``.

    Raises:
        InvalidSelectionError: it would select everything, or makes no sense.
    """
    what, change, chosen = checked(action, selection, patch)
    means = {**chosen.plain(), **change.plain()}
    more: dict[str, Any] = {"patch": dict(patch)} if patch else {}
    with transaction_of(engine) as connection:
        until = limits_of_now(connection).until
        return audit.note(connection, what, means, who=by, until=until, after=0, **more)


def run_bulk(
    engine: Engine,
    token: int,
    *,
    first: int | None = None,
    by: str = "",
    registry: Registry = HANDLERS,
) -> Done | None:
    """Go on with a bulk: the next ``first`` tasks, or all that are left. None: no such token.

    The model of the handler, from ``registry``, checks each edited payload.

    >>> token = start_bulk(engine, "edit", name="mail.send", patch={"to": "b@example.org"})
    >>> done = run_bulk(engine, token, first=100)
    >>> len(done.ids), done.more
    (1, False)
    """
    done, passed, careful = Done(token), 0, 0
    while done.more and (first is None or done.number < first):
        most = STEP if first is None else min(STEP, first - done.number)
        try:
            with transaction_of(engine) as connection:
                opening = audit.lock_bulk(connection, token)
                if opening is None:
                    return None
                if opening.after is None:
                    done.more = False
                    break
                passed = max(passed, opening.after)
                step = BulkStep(connection, opening, by, registry)
                stepped = step.go(passed, 1 if careful else most, leave_locked=bool(careful))
        except DBAPIError as error:
            if careful or not is_locked(error):
                raise
            careful = most  # one of these is locked: take them one by one, and leave that one out
            continue
        done.add(stepped)
        passed = step.after or passed
        careful = max(0, careful - 1)
    return done


def transaction_of(engine: Engine) -> AbstractContextManager[Connection]:
    """Begin a step of a bulk, or a preview of one."""
    advice = "Pass a synchronous Engine: each step of a bulk is a transaction of its own."
    return checked_engine(engine, advice=advice).begin()


def checked(
    action: str, selection: dict[str, Any], patch: Mapping[str, Any] | None
) -> tuple[BulkAction, Amendment, Selection]:
    """Return the action, what it changes, and in which tasks; or raise InvalidSelectionError."""
    if action not in list(BulkAction):
        raise InvalidSelectionError(
            f"There is no bulk action {action!r:.40}. Known: {', '.join(BulkAction)}."
        )
    if (action == BulkAction.EDIT) != bool(patch):
        raise InvalidSelectionError(
            "An edit needs a patch of payloads, and nothing else takes one."
        )
    return (BulkAction(action), *parted(BulkAction(action), selection))


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a bulk would do now."""

    counts: Counter[tuple[str, str]]
    """Tasks that it would act on, by name and state."""
    left_out: dict[str, list[int]]
    """Ids of those whose new payload would be refused, by reason."""
    more: bool = False
    """There are more than were counted."""


def foresee_bulk(
    engine: Engine,
    action: str,
    *,
    patch: Mapping[str, Any] | None = None,
    registry: Registry = HANDLERS,
    most: int | None = None,
    **selection: Any,
) -> Foreseen:
    """Count the tasks that ``start_bulk`` would mean; change nothing and lock nothing.

    ``most``: count no further when there are so many.

    >>> foresee_bulk(engine, "requeue", name="card.charge").counts.total()
    1

    Raises:
        InvalidSelectionError: as ``start_bulk`` raises it.
    """
    what, _, chosen = checked(action, selection, patch)
    with transaction_of(engine) as connection:
        end = limits_of_now(connection)
    return _count(engine, what, chosen, end, 0, patch, registry, most)


def foresee_rest(engine: Engine, token: int, *, registry: Registry = HANDLERS) -> Foreseen | None:
    """Count the tasks that are left of a bulk. None: there is no such token.

    >>> token = start_bulk(engine, "requeue", name="card.charge")
    >>> foresee_rest(engine, token).counts.total()
    1
    """
    with transaction_of(engine) as connection:
        opening = audit.lock_bulk(connection, token)
    if opening is None:
        return None
    action, _, chosen, end = read_opening(opening)
    return _count(engine, action, chosen, end, opening.after, opening.patch, registry)


def _count(
    engine: Engine,
    action: BulkAction,
    chosen: Selection,
    end: SelectionLimits,
    after: int | None,
    patch: Mapping[str, Any] | None,
    registry: Registry,
    most: int | None = None,
) -> Foreseen:
    counts: Counter[tuple[str, str]] = Counter()
    left_out: dict[str, list[int]] = defaultdict(list)
    while after is not None and (most is None or counts.total() < most):
        with transaction_of(engine) as connection:
            found, after = read_page(
                connection, chosen, end, after, MOST_EDITED if action is BulkAction.EDIT else 500
            )
            counts.update((one.name, str(one.state)) for one in found)
            ids = [one.id for one in found] if action is BulkAction.EDIT else []
            for one in read(connection, chosen, end, ids) if ids else ():
                try:
                    edited_payload(one, patch, registry)
                except InvalidSelectionError as why:
                    left_out[str(why)].append(one.id)
    return Foreseen(counts, dict(left_out), after is not None)


STAGES: tuple[int | None, ...] = (1, 10, None)
"""None: all that are left."""


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
        InvalidSelectionError: the fingerprint is invalid.
    """
    token = start_bulk(engine, BulkAction.REQUEUE, fingerprint=fingerprint, by=by, why=why)
    patience_s = patience.total_seconds()

    def run() -> Iterator[RequeueStage]:
        for place, first in enumerate(stages, 1):
            with transaction_of(engine) as connection:
                since = database_now(connection)
            done = run_bulk(engine, token, first=first, by=by)
            if done is None:
                return
            seen, end = RequeueResult(0, 0), time.monotonic() + patience_s
            while place < len(stages) and done.ids:
                with transaction_of(engine) as connection:
                    seen = count_requeued(connection, fingerprint, done.ids, since)
                if seen.again or not seen.going or time.monotonic() >= end:
                    break
                pause(0.5)
            yield RequeueStage(done, seen.again, seen.going)
            if seen.again or seen.going or not done.more:
                return

    return run()
