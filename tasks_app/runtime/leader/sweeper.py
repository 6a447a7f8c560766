"""The sweeper: what is disabled or has expired leaves the pool, wherever it stands."""

from __future__ import annotations

from datetime import datetime

from tasks_app.pool.dispatch.set_aside import sweep_all
from tasks_app.pool.tasks import browse
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_outline

MOST, ROUNDS = 500, 10
"""Rows in a transaction, and transactions in a row; the rest waits for the next scan."""


class Sweeper:
    """Any number may run, and wait for nobody."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._admission = AdmissionControl(database)

    def run_once(self, *, now: datetime | None = None) -> int:
        number = 0
        for _ in range(ROUNDS):
            with self._database.begin() as connection:
                swept = list(sweep_all(connection, MOST, now=now))
                outlines = browse.outlines(connection, swept) if HOOKS.wanted and swept else []
            self._admission.gone(swept, now=now)
            HOOKS.tell(of_outline(outline, NoticeKind.RELEASED) for outline in outlines)
            number += len(swept)
            if len(swept) < MOST // 2:  # the rest, perhaps but for a few that cannot be moved
                break
        return number
