"""Bulks: one action on all tasks of a selection, in short transactions.

A bulk is kept in the audit. Its token is the id of the line that opened it; any process that has it
goes on where the last step ended, with the same filter and cut-off, also after the process before
was killed. A step and its line commit together, and the steps of one bulk follow one another: each
task is acted on once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.operations.amendment import Amendment
from tasks_app.domain.operations import BulkAction
from tasks_app.domain.operations import Selection
from tasks_app.pool.operations import audit
from tasks_app.pool.operations.selection import cut
from tasks_app.runtime.api.bulk_step import BulkStep, BulkStepResult, Edits, in_the_way, parted
from tasks_app.runtime.db.connections import checked_engine
from tasks_app.runtime.handlers.registry import HANDLERS, Registry

STEP = 200
"""Tasks of one transaction, which takes 0.1 to 0.2 s."""
SHOWN = 1_000


@dataclass(slots=True)
class Done:
    """What the steps of one call did."""

    token: int
    answers: Counter[str] = field(default_factory=Counter)
    ids: list[int] = field(default_factory=list)
    """Of the tasks acted on: the first thousand; the audit has all."""
    left_out: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Ids, by reason."""
    more: bool = True
    """There may be more to do: call again with the token."""

    @property
    def number(self) -> int:
        """How many tasks were met: acted on, or left out."""
        return self.answers.total() + sum(map(len, self.left_out.values()))

    def add(self, step: BulkStepResult) -> None:
        """Add what a committed step did."""
        self.answers += step.answers
        self.ids += step.ids[: SHOWN - len(self.ids)]
        for why, ids in step.left_out.items():
            self.left_out[why] += ids
        self.more = step.after is not None


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
        selection: ``ids=``, ``name=``, ``queue=``, ``biz_key=``, ``state=``, ``pool=``,
            ``error_kind=``, ``error_text=``, ``fingerprint=``, ``older_than=``, ``newer_than=``,
            ``retrying=``, ``held=``; all must be true. Besides what the action makes of them:
            ``at=`` or ``delay=`` of ``reschedule``, ``to_priority=`` of ``reprioritise``,
            ``to_queue=`` of ``move``, ``rate="50/1s"`` of ``run-now`` and ``release``; and
            ``why=``.

    Raises:
        InvalidSelectionError: it would select everything, or makes no sense.
    """
    what, change, chosen = checked(action, selection, patch)
    means = {**chosen.plain(), **change.plain()}
    more: dict[str, Any] = {"patch": dict(patch)} if patch else {}
    with transaction_of(engine) as connection:
        until = cut(connection).until
        return audit.note(connection, what, means, who=by, until=until, after=0, **more)


def run_bulk(
    engine: Engine,
    token: int,
    *,
    first: int | None = None,
    by: str = "",
    registry: Registry = HANDLERS,
) -> Done | None:
    """Go on with a bulk: the next ``first`` tasks, or all the rest. None: no such token.

    The model of the handler, from ``registry``, checks each edited payload.

    >>> token = start_bulk(engine, "edit", name="mail.send", patch={"to": "b@example.org"})
    >>> done = run_bulk(engine, token, first=100)
    >>> len(done.ids), done.more
    (1, False)
    """
    done, passed, careful = Done(token), 0, 0
    while done.more and (first is None or done.number < first):
        room = STEP if first is None else min(STEP, first - done.number)
        try:
            with transaction_of(engine) as connection:
                opening = audit.take_turn(connection, token)
                if opening is None:
                    return None
                if opening.after is None:
                    done.more = False
                    break
                passed = max(passed, opening.after)
                step = BulkStep(connection, opening, by, Edits(opening.patch, registry))
                stepped = step.go_carefully(passed) if careful else step.go(passed, room)
        except DBAPIError as error:
            if careful or not in_the_way(error):
                raise
            careful = room  # one of these is locked: take them one by one, and leave that one out
            continue
        done.add(stepped)
        passed = stepped.after or passed
        careful = max(0, careful - 1)
    return done


def transaction_of(engine: Engine) -> AbstractContextManager[Connection]:
    """Begin a step of a bulk, or a look at what one would do."""
    advice = "Pass a synchronous Engine: each step of a bulk is a transaction of its own."
    return checked_engine(engine, advice=advice).begin()


def checked(
    action: str, selection: dict[str, Any], patch: Mapping[str, Any] | None
) -> tuple[BulkAction, Amendment, Selection]:
    """Return the action, what it makes of the tasks, and which tasks.

    Raises:
        InvalidSelectionError: they make no sense.
    """
    if action not in list(BulkAction):
        raise InvalidSelectionError(
            f"There is no bulk action {action!r:.40}. Known: {', '.join(BulkAction)}."
        )
    if (action == BulkAction.EDIT) != bool(patch):
        raise InvalidSelectionError(
            "An edit needs a patch of payloads, and nothing else takes one."
        )
    return (BulkAction(action), *parted(BulkAction(action), selection))
