"""Groups: tasks with one outcome, how far they are, and which members failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from sqlalchemy import Connection

from tasks_app.domain.groups import GroupProgress
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.groups import browse
from tasks_app.runtime.encryption.older_texts import masked_errors

MOST, MOST_MEMBERS, MOST_FAILED = 100, 2_000, 50


@dataclass(frozen=True, slots=True)
class Groups:
    """The newest groups."""

    at: datetime
    only_open: bool
    groups: tuple[GroupProgress, ...]


@dataclass(frozen=True, slots=True)
class FailedMember:
    """A member that did not succeed."""

    id: int
    state: str
    error: str


@dataclass(frozen=True, slots=True)
class GroupPage:
    """One group and the first of its members."""

    at: datetime
    group: GroupProgress
    states: dict[str, int]
    """Of the first members, at most MOST_MEMBERS."""
    counted: int
    """How many members ``states`` is of."""
    failed: tuple[FailedMember, ...]


def groups(connection: Connection, *, only_open: bool) -> Groups:
    found = browse.newest(connection, MOST, only_open=only_open)
    return Groups(instant(connection), only_open, tuple(found))


def group_page(connection: Connection, group_id: int) -> GroupPage | None:
    """Read a group; None: there is none."""
    group = browse.get(connection, group_id)
    if group is None:
        return None
    states: Counter[str] = Counter()
    failed: list[FailedMember] = []
    for ended in islice(browse.results(connection, group), MOST_MEMBERS):
        states[str(ended.state)] += 1
        if ended.error is not None and len(failed) < MOST_FAILED:
            failed.append(FailedMember(ended.task_id, str(ended.state), ended.error))
    at = instant(connection)
    shown = masked_errors(connection, failed)
    return GroupPage(at, group, dict(states), states.total(), tuple(shown))
