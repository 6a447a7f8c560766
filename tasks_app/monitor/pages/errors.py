"""Errors by cause, one cause with its tasks, and a bulk action step by step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.error_text import traits_of
from tasks_app.domain.tasks.records import Attempt
from tasks_app.domain.tasks.run import Cause
from tasks_app.pool.error_groups import (
    MOST_WITHOUT,
    ErrorGroup,
    FailedTask,
    count_requeued,
    count_without_fingerprint,
    find_error_groups,
    tasks_of_error_group,
)
from tasks_app.pool.operations import audit
from tasks_app.pool.tables import ALL, database_now
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api.tasks import masked_errors, masked_texts

SINCE = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
KNOWN = ("yes", "no")
MOST, PAGE = 100, 50


@dataclass(frozen=True, slots=True)
class Errors:
    at: datetime
    filters: dict[str, str]
    groups: tuple[ErrorGroup, ...]
    more: bool  # there are more groups
    without: int  # failed tasks without a fingerprint, at most one more than ``most_without``
    most_without: int = MOST_WITHOUT


@dataclass(frozen=True, slots=True)
class ErrorPage:
    at: datetime
    group: ErrorGroup
    frames: tuple[str, ...]  # functions of the user's code, the innermost last
    sample: Attempt | None  # the last attempt of the newest task
    tasks: tuple[FailedTask, ...]  # the newest first
    older: tuple[datetime, int] | None  # end and id to go on below; None: this is the last page


def causes(connection: Connection, **filters: Any) -> list[ErrorGroup]:
    """Return groups with masked errors; ``filters`` are those of ``find_error_groups``."""
    return masked_errors(connection, find_error_groups(connection, **filters), by="sample_id")


def errors(connection: Connection, filters: dict[str, str]) -> Errors:
    """Read the groups that fit the filters; ``since`` is a key of SINCE, ``known`` of KNOWN."""
    at = database_now(connection)
    since = at - SINCE[filters["since"]] if "since" in filters else None
    found = causes(
        connection,
        name=filters.get("name"),
        queue=filters.get("queue"),
        since=since,
        most=MOST + 1,
        now=at,
    )
    shown = found[:MOST]
    if "known" in filters:
        known = filters["known"] == "yes"
        shown = [group for group in shown if known == (group.known_by is not None)]
    return Errors(
        at, filters, tuple(shown), len(found) > MOST, count_without_fingerprint(connection)
    )


def error_page(
    connection: Connection,
    fingerprint: str,
    *,
    before: tuple[datetime, int] | None = None,
    most: int | None = None,
) -> ErrorPage | None:
    """Return None if no task in the error pool has this cause."""
    at, most = database_now(connection), most or PAGE
    group = next(iter(causes(connection, fingerprint=fingerprint, now=at)), None)
    if group is None:
        return None
    sample = next(reversed(browse.failed_attempts(connection, group.sample_id)), None)
    frames: tuple[str, ...] = ()
    if sample is not None:
        masked = masked_texts(connection, {sample.task_id: sample.message})
        sample = replace(sample, message=masked[sample.task_id])
        frames = traits_of(Cause(sample.kind, sample.message, sample.traceback)).frames
    found = tasks_of_error_group(connection, fingerprint, before=before, most=most + 1)
    last = found[most - 1] if len(found) > most else None
    older = None if last is None else (last.finished_at, last.id)
    shown = masked_errors(connection, found[:most])
    return ErrorPage(at, group, frames, sample, tuple(shown), older)


MOST_WATCHED = 500  # the newest of the tasks that were acted on
MOST_STEPS = 50
STAGES = (1, 10)  # each is run when the one before went well; then comes the rest


@dataclass(frozen=True, slots=True)
class BulkLine:
    at: datetime
    who: str
    number: int
    left_out: int


@dataclass(frozen=True, slots=True)
class BulkPage:
    at: datetime
    token: int
    action: str
    what: dict[str, Any]  # the selection
    who: str
    opened_at: datetime
    steps: tuple[BulkLine, ...]  # the newest, oldest first
    done: int  # tasks that were acted on
    left_out: dict[str, list[int]]  # ids by reason, a few of each
    over: bool  # there is nothing left to do
    watched: int  # how many of the tasks the next three fields are of
    states: dict[str, int]
    again: int  # they failed for the cause that was selected, once more
    sample_id: int | None  # one of the tasks

    @property
    def next_stage(self) -> int | None:
        """How many to take next; None: all the rest."""
        return next((stage for stage in STAGES if self.done < stage), None)


_STATES = text(f"""
    SELECT t.state, count(*) AS number FROM {ALL} t WHERE t.id = ANY(:ids) GROUP BY t.state
""")


def bulk_page(connection: Connection, token: int) -> BulkPage | None:
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
        again = count_requeued(connection, fingerprint, ids, opening.at).again
    return BulkPage(
        at=database_now(connection),
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
