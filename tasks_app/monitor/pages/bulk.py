"""Bulk: one action on many tasks, step by step; what is meant, what was done, what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.pool.connection.clock import instant
from tasks_app.pool.errors.again import look_again
from tasks_app.pool.operations import audit
from tasks_app.pool.tables import ALL

MOST_WATCHED = 500
"""The newest of the tasks that were acted on."""
MOST_STEPS = 50
STAGES = (1, 10)
"""Each is run when the one before went well; then comes the rest."""
_STATES = text(f"""
    SELECT t.state, count(*) AS number FROM {ALL} t WHERE t.id = ANY(:ids) GROUP BY t.state
""")


@dataclass(frozen=True, slots=True)
class BulkLine:
    """A line of the audit."""

    at: datetime
    who: str
    number: int
    left_out: int


@dataclass(frozen=True, slots=True)
class BulkPage:
    """A bulk and what became of its tasks."""

    at: datetime
    token: int
    action: str
    what: dict[str, Any]
    """The selection."""
    who: str
    opened_at: datetime
    steps: tuple[BulkLine, ...]
    """The newest, oldest first."""
    done: int
    """Tasks that were acted on."""
    left_out: dict[str, list[int]]
    """Ids by reason, a few of each."""
    over: bool
    """There is nothing left to do."""
    watched: int
    """How many of the tasks the next three fields are of."""
    states: dict[str, int]
    again: int
    """They failed for the cause that was selected, once more."""
    sample_id: int | None
    """One of the tasks."""

    @property
    def next_stage(self) -> int | None:
        """How many to take next; None: all the rest."""
        return next((stage for stage in STAGES if self.done < stage), None)


def bulk_page(connection: Connection, token: int) -> BulkPage | None:
    """Read a bulk by its token; None: there is none."""
    lines = audit.steps(connection, token)
    if not lines or lines[0].until is None:
        return None
    opening, steps = lines[0], lines[1:]
    left_out: dict[str, list[int]] = {}
    answers: Counter[str] = Counter()
    for line in steps:
        answers += Counter(line.answers)
        for why, ids in line.left_out.items():
            left_out.setdefault(why, []).extend(ids)
    ids = [each for line in steps for each in line.ids][-MOST_WATCHED:]
    fingerprint, again = opening.what.get("fingerprint"), 0
    if fingerprint and ids:
        again = look_again(connection, fingerprint, ids, opening.at).again
    return BulkPage(
        at=instant(connection),
        token=token,
        action=opening.action,
        what=opening.what,
        who=opening.who,
        opened_at=opening.at,
        steps=tuple(
            BulkLine(line.at, line.who, line.number, sum(map(len, line.left_out.values())))
            for line in steps[-MOST_STEPS:]
        ),
        done=answers.total(),
        left_out={why: found[:20] for why, found in left_out.items()},
        over=bool(steps) and steps[-1].after is None,
        watched=len(ids),
        states={row.state: row.number for row in connection.execute(_STATES, {"ids": ids})},
        again=again,
        sample_id=ids[-1] if ids else None,
    )
