"""Triage: rows that were found due and cannot run are swept, held or parked, with the reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.flow_control.waiting_reason import WaitingKind, WaitingReason
from tasks_app.pool.dispatch.scan import DueRows
from tasks_app.pool.dispatch.set_aside import park, sweep
from tasks_app.pool.flow_control.breaker_waiting_list import hold
from tasks_app.pool.tasks import browse
from tasks_app.runtime.hooks import HOOKS, Notice, NoticeKind, of_outline


class Tidied(NamedTuple):
    """What was found due, sorted out."""

    ready: list[tuple[int, str]]
    """What may run: ids and names."""
    swept: Sequence[Notice] = ()
    """What there is to tell of those that were swept; it is true after the COMMIT."""


def tidy(
    connection: Connection,
    found: list[tuple[int, str]],
    seen: DueRows,
    names: set[str],
    settings: Settings,
    *,
    now: datetime | None = None,
) -> Tidied:
    """Sort out what may run; sweep what is barred, and put aside what is held or nobody knows."""
    if not (seen.barred or seen.held) and {name for _, name in found} <= names:  # the usual case
        return Tidied(found)
    unknown: dict[str, list[int]] = defaultdict(list)
    gone: list[int] = []
    waits: list[int] = []
    ready: list[tuple[int, str]] = []
    for task_id, name in found:
        if task_id in seen.barred:
            gone.append(task_id)
        elif task_id in seen.held:
            waits.append(task_id)
        elif name not in names:
            unknown[name].append(task_id)
        else:
            ready.append((task_id, name))
    swept: list[Notice] = []
    if gone:
        gone = list(sweep(connection, gone, now=now))
        if HOOKS.wanted:
            swept = [of_outline(o, NoticeKind.RELEASED) for o in browse.outlines(connection, gone)]
    if waits:
        hold(connection, waits, now=now)
    for name, ids in unknown.items():
        reason = WaitingReason(WaitingKind.HANDLER, name)
        park(connection, ids, reason, settings.park_for, now=now)
    return Tidied(ready, swept)
