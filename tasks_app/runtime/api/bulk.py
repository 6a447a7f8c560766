"""Bulks: one action on all tasks of a selection, in short transactions, a stage at a time.

A bulk lives in the audit. Its token is the id of the line that opened it; whoever has it goes on
where the last step ended, with the same filter and cut-off, also after the process before was
killed. A step and its line commit together, and steps of one bulk follow one another: each task is
acted on once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.operations.selection import Action, Selection, select
from tasks_app.pool.operations import audit
from tasks_app.pool.operations.selection import cut
from tasks_app.runtime.api.bulk_step import Edits, Step, Stepped, in_the_way
from tasks_app.runtime.handlers.registry import HANDLERS, Registry

STEP = 200
"""Tasks of one transaction: a tenth of a second, or two."""
SHOWN = 1_000


@dataclass(slots=True)
class Done:
    """What came of the steps of one call."""

    token: int
    answers: Counter[str] = field(default_factory=Counter)
    ids: list[int] = field(default_factory=list)
    """Of what it was done to; the first thousand, the audit has all."""
    left_out: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Why, and ids."""
    more: bool = True
    """There may be more to do: go on with the token."""

    @property
    def number(self) -> int:
        """How many it met: it was done to them, or they were left out."""
        return self.answers.total() + sum(map(len, self.left_out.values()))

    def add(self, step: Stepped) -> None:
        """Take in what a committed step did."""
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
    """Open a bulk and return its token; nothing is done to any task yet.

    Args:
        engine: of the database; each step is a transaction of its own.
        action: ``cancel``, ``requeue`` or ``edit``.
        patch: of an ``edit``: merged into each payload; None in it removes.
        by: who wants it, for the audit.
        selection: ``ids=``, ``name=``, ``queue=``, ``biz_key=``, ``state=``, ``pool=``,
            ``error_kind=``, ``error_text=``, ``older_than=``, ``newer_than=``; all must be true.

    Raises:
        InvalidSelectionError: it would mean everything, or makes no sense.
    """
    what, chosen = checked(action, selection, patch)
    more: dict[str, Any] = {"patch": dict(patch)} if patch else {}
    with engine.begin() as connection:
        until = cut(connection).until
        return audit.note(connection, what, chosen.plain(), who=by, until=until, after=0, **more)


def run_bulk(
    engine: Engine,
    token: int,
    *,
    first: int | None = None,
    by: str = "",
    registry: Registry = HANDLERS,
) -> Done | None:
    """Go on with a bulk: with the next ``first`` tasks, or all the rest. None: no such token.

    Edited payloads must please the handler's model; ``registry`` has the handlers.
    """
    done, passed, careful = Done(token), 0, 0
    while done.more and (first is None or done.number < first):
        room = STEP if first is None else min(STEP, first - done.number)
        try:
            with engine.begin() as connection:
                opening = audit.take_turn(connection, token)
                if opening is None:
                    return None
                if opening.after is None:
                    done.more = False
                    break
                passed = max(passed, opening.after)
                step = Step(connection, opening, by, Edits(opening.patch, registry))
                stepped = step.go_carefully(passed) if careful else step.go(passed, room)
        except DBAPIError as error:
            if careful or not in_the_way(error):
                raise
            careful = room  # one of these is held: take them one by one, and leave that one out
            continue
        done.add(stepped)
        passed = stepped.after or passed
        careful = max(0, careful - 1)
    return done


def checked(
    action: str, selection: dict[str, Any], patch: Mapping[str, Any] | None
) -> tuple[Action, Selection]:
    """Return what can be meant.

    Raises:
        InvalidSelectionError: it cannot.
    """
    if action not in list(Action):
        raise InvalidSelectionError(f"Nobody can {action!r:.40} many. Known: {', '.join(Action)}.")
    if (action == Action.EDIT) != bool(patch):
        raise InvalidSelectionError(
            "An edit needs a patch of payloads, and nothing else takes one."
        )
    return Action(action), select(Action(action), selection)
