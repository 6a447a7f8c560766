"""Errors: the error pool by cause, and one cause with its tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from tasks_app.domain.tasks.fingerprint import traits_of
from tasks_app.domain.tasks.records import Attempt
from tasks_app.domain.tasks.run import Cause
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.error_groups import MOST_WITHOUT
from tasks_app.pool.error_groups import ErrorGroup
from tasks_app.pool.error_groups import FailedTask
from tasks_app.pool.error_groups import groups
from tasks_app.pool.error_groups import tasks_of
from tasks_app.pool.error_groups import without_fingerprint
from tasks_app.pool.tasks import browse
from tasks_app.runtime.encryption.older_texts import masked_errors, masked_texts

FILTERS = ("name", "queue", "since", "known")
SINCE = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
KNOWN = ("yes", "no")
MOST, PAGE = 100, 50


@dataclass(frozen=True, slots=True)
class Errors:
    """Groups of failed tasks with one cause, most tasks first."""

    at: datetime
    filters: dict[str, str]
    groups: tuple[ErrorGroup, ...]
    more: bool
    """There are more groups."""
    without: int
    """Failed tasks without a fingerprint, at most one more than ``most_without``."""
    most_without: int = MOST_WITHOUT


@dataclass(frozen=True, slots=True)
class ErrorPage:
    """One cause."""

    at: datetime
    group: ErrorGroup
    frames: tuple[str, ...]
    """Functions of the user's code, the innermost last."""
    sample: Attempt | None
    """The last attempt of the newest task."""
    tasks: tuple[FailedTask, ...]
    """The newest first."""
    older: tuple[datetime, int] | None
    """End and id to go on below; None: this is the last page."""


def causes(connection: Connection, **filters: Any) -> list[ErrorGroup]:
    """Return groups as people may see them; ``filters`` are those of the pool's."""
    return masked_errors(connection, groups(connection, **filters), by="sample_id")


def errors(connection: Connection, filters: dict[str, str]) -> Errors:
    """Read the groups that fit the filters; ``since`` is a key of SINCE, ``known`` of KNOWN."""
    at = instant(connection)
    since = at - SINCE[filters["since"]] if "since" in filters else None
    found = causes(
        connection,
        name=filters.get("name"),
        queue=filters.get("queue"),
        since=since,
        most=MOST + 1,
        now=at,
    )
    asked = filters.get("known")
    shown = [
        group
        for group in found[:MOST]
        if asked is None or (asked == "yes") == (group.known_by is not None)
    ]
    without = without_fingerprint(connection)
    return Errors(at, filters, tuple(shown), len(found) > MOST, without)


def error_page(
    connection: Connection,
    fingerprint: str,
    *,
    before: tuple[datetime, int] | None = None,
    most: int | None = None,
) -> ErrorPage | None:
    """Read one cause; None: no task in the error pool has it."""
    at, most = instant(connection), most or PAGE
    group = next(iter(causes(connection, fingerprint=fingerprint, now=at)), None)
    if group is None:
        return None
    sample = next(reversed(browse.attempts(connection, group.sample_id)), None)
    frames: tuple[str, ...] = ()
    if sample is not None:
        said = masked_texts(connection, {sample.task_id: sample.message})
        sample = replace(sample, message=said[sample.task_id])
        frames = traits_of(Cause(sample.kind, sample.message, sample.traceback)).frames
    found = tasks_of(connection, fingerprint, before=before, most=most + 1)
    last = found[most - 1] if len(found) > most else None
    older = None if last is None else (last.finished_at, last.id)
    shown = masked_errors(connection, found[:most])
    return ErrorPage(at, group, frames, sample, tuple(shown), older)
