"""The lease renewer: extends the leases of all that a child holds, and shows that it lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.renew import renew
from tasks_app.runtime.health_files import DB, Liveness
from tasks_app.runtime.inflight.parts import ChildParts

MOST_SHOWN = 100
"""Runs in a heartbeat row, the oldest first; async ones may run in thousands."""


class LeaseRenewer:
    """A duty of the housekeeper."""

    def __init__(self, parts: ChildParts) -> None:
        settings = parts.settings
        self._lease = settings.lease
        self._every_s = settings.renew_every.total_seconds()
        self._identity = parts.identity
        self._database = parts.database
        self._inflight = parts.inflight
        self._queues_shown: tuple[str, ...] = ()
        self.due_at = 0.0
        """By ``time.monotonic``."""
        self.known = threading.Event()
        """Set once the scan can see that this child serves its queues."""
        patience = settings.healthy_for + settings.renew_every
        self._liveness = Liveness(DB, good_for_s=patience.total_seconds())

    def renew_soon(self) -> None:
        """Renew in the next round: a run that was cancelled learns of it."""
        self.due_at = 0.0

    def renew(self) -> None:
        """Renew if it is time; a child that stops shows at once that it serves no queue."""
        queues = () if self._inflight.stopping.is_set() else self._identity.queues
        if time.monotonic() < self.due_at and queues == self._queues_shown:
            return
        self._inflight.leave_unowned()
        fences, asked_at = self._inflight.held(), time.monotonic()
        with self._database.begin() as connection:
            heartbeats.beat(
                connection,
                owner=self._identity.owner,
                node=self._identity.node,
                queues=queues,
                handlers=self._identity.handlers,
                threads=self._identity.threads,
                running=self._running(),
            )
            renewal = renew(connection, fences, self._lease) if fences else None
        if renewal is not None:  # told after our COMMIT, or its outcome meets our own lock
            self._inflight.cancel(renewal.cancelled)
            held_until = asked_at + self._lease.total_seconds()
            self._inflight.renewed(renewal.ids, held_until)
        self._liveness.beat()
        self._queues_shown = queues
        self.known.set()
        self.due_at = time.monotonic() + self._every_s

    def _running(self) -> Sequence[dict[str, object]]:
        now = time.monotonic()
        rows = []
        for run in self._inflight.running()[:MOST_SHOWN]:
            row: dict[str, object] = {
                "id": run.task.task_id,
                "name": run.task.name,
                "seconds": round(now - run.since, 1),
            }
            if self._identity.parent is not None:  # who kills it
                row["hard_timeout"] = run.hard_timeout_s
            if run.progress is not None:
                row["fraction"], row["note"] = run.progress
            rows.append(row)
        return rows
