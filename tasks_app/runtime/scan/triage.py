"""Tidying: what was found due and cannot run goes where it belongs, with its reason."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.pool.dispatch.scan import Due
from tasks_app.pool.dispatch.set_aside import park, sweep
from tasks_app.pool.flow_control.breaker_waiting_list import hold
from tasks_app.pool.tasks import browse
from tasks_app.runtime.hooks import HOOKS, Kind, Notice, of_outline


def tidy(
    connection: Connection,
    found: list[tuple[int, str]],
    seen: Due,
    names: set[str],
    settings: Settings,
    swept: list[Notice],
    *,
    now: datetime | None = None,
) -> list[tuple[int, str]]:
    """Return what may run; sweep what is barred, and put aside what is held or nobody knows.

    What there is to tell of the swept ones is added to ``swept``; it is true after the COMMIT.
    """
    if (
        not (seen.barred or seen.held) and {name for _, name in found} <= names
    ):  # the everyday answer
        return found
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
    if gone:
        gone = list(sweep(connection, gone, now=now))
        if HOOKS.wanted:
            swept += [of_outline(o, Kind.RELEASED) for o in browse.outlines(connection, gone)]
    if waits:
        hold(connection, waits, now=now)
    for name, ids in unknown.items():
        reason = f"no live worker of this queue has a handler named {name}"
        park(connection, ids, reason, settings.park_for, now=now)
    return ready
