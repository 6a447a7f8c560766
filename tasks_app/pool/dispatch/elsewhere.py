"""Elsewhere: tasks that workers of the same queue know which have other handlers. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import Event
from tasks_app.pool.fragments.conditions import is_free
from tasks_app.pool.fragments.conditions import runs
from tasks_app.pool.fragments.fences import array
from tasks_app.pool.tables import NOW, PENDING, WORKER, admits_by_id

_KNOWN = text(f"""
    SELECT DISTINCT h.name FROM {WORKER} w CROSS JOIN LATERAL unnest(w.handlers) AS h(name)
    WHERE w.seen_at > {NOW} - CAST(:within AS interval)
      AND w.queues && CAST(:queues AS text[]) AND h.name <> ALL (CAST(:own AS text[]))
""")
_OF_OTHERS = text(f"""
    SELECT p.queue, p.id FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
      AND p.due_at <= {NOW} AND p.parked IS NULL AND p.name = ANY(CAST(:names AS text[]))
      AND {is_free()} AND {runs("p.queue")}
    ORDER BY p.queue, p.id
""")


def known_elsewhere(
    connection: Connection,
    queues: Collection[str],
    own: Collection[str],
    within: timedelta,
    *,
    now: datetime | None = None,
) -> set[str]:
    """Return the names beside our ``own`` that live workers of these queues know."""
    values = {"queues": list(queues), "own": list(own), "within": within, "now": now}
    return set(connection.execute(_KNOWN, values).scalars())


def of_others(
    connection: Connection,
    ids: Sequence[int],
    names: Collection[str],
    *,
    now: datetime | None = None,
) -> list[tuple[str, int]]:
    """Return queue and id of those that may run just now and have one of these names."""
    values = {"ids": array(map(int, ids)), "names": list(names), "now": now}
    return [(queue, task_id) for queue, task_id in connection.execute(_OF_OTHERS, values)]
