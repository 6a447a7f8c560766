"""Again: what became of requeued tasks since, by the cause for which they had failed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.pool.tables import ATTEMPT, PENDING

_LOOK = text(f"""
    SELECT count(*) FILTER (WHERE t.again) AS again,
        count(*) FILTER (WHERE t.going AND NOT t.again) AS going
    FROM (
        SELECT EXISTS (
                SELECT FROM {ATTEMPT} a WHERE a.task_id = i.id AND a.ended_at >= :since
                  AND a.fingerprint = decode(:fingerprint, 'hex')) AS again,
            EXISTS (SELECT FROM {PENDING} p WHERE p.id = i.id) AS going
        FROM unnest(CAST(:ids AS bigint[])) AS i(id)) AS t
""")


class Since(NamedTuple):
    """How many of the tasks are where."""

    again: int
    """An attempt failed for the same cause, be it that a retry follows."""
    going: int
    """They wait or run, and have not failed for it."""


def look_again(
    connection: Connection, fingerprint: str, ids: Sequence[int], since: datetime
) -> Since:
    """Return what became of these tasks; changes nothing."""
    values = {"fingerprint": fingerprint, "ids": list(ids), "since": since}
    row = connection.execute(_LOOK, values).one()
    return Since(row.again, row.going)
