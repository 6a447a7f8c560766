"""Leadership: one duty's lease, as one candidate sees it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID, uuid4

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import Lease, Rank
from tasks_app.runtime.db.database import Database

log = quiet_logger(__name__)
TTL = timedelta(seconds=5)  # a killed leader is replaced after that; a live one may miss 4 renewals
RENEWALS = 4


class Leadership:
    """Holds one lease, or reads whether it is free: one plain read as long as it is not."""

    def __init__(
        self,
        database: Database,
        name: str,
        holder: str,
        *,
        rank: Rank,
        ttl: timedelta = TTL,
        token: UUID | None = None,
    ) -> None:
        self._database = database
        self._name = name
        self._holder = holder
        self._rank = rank
        self._ttl = ttl
        self._token = token or uuid4()
        self.renewals: float = RENEWALS
        self._renew_at = 0.0
        self.held: Lease | None = None  # as we last took or renewed it; None: we do not lead
        self.taken_for_s = 0.0  # another's lease: for how long, if it is not renewed

    def hold(self) -> bool:
        """Take the lease, or renew it when it is time to; return whether we lead."""
        asked_at = time.monotonic()
        if self.held is not None and asked_at < self._renew_at:
            return True
        self.taken_for_s = 0.0
        self.held = None  # without an answer we do not lead
        self.held = self._acquire()
        self._renewed(asked_at)
        return self.held is not None

    def _acquire(self) -> Lease | None:
        with self._database.single() as connection:
            seen = leader_lease.read_lease(connection, self._name)
            if seen is not None and not seen.open_to(self._token, self._rank):
                self.taken_for_s = seen.left.total_seconds()
                return None
            return leader_lease.acquire_lease(
                connection,
                self._name,
                holder=self._holder,
                token=self._token,
                rank=self._rank,
                ttl=self._ttl,
            )

    def _renewed(self, asked_at: float) -> None:
        self._renew_at = asked_at + self._ttl.total_seconds() / self.renewals

    def release(self) -> None:
        """Release the lease, so that the next candidate need not wait for its end."""
        if self.held is None:
            return
        self.held = None
        try:
            with self._database.begin() as connection:
                leader_lease.release_lease(connection, self._name, self._token)
        except SQLAlchemyError as error:
            log.info("the lease of %s was not released: %s", self._name, type(error).__name__)

    def done(self, depths: Mapping[str, int] | None = None) -> None:
        """Record that the duty is done, and renew the lease if we still hold it."""
        asked_at = time.monotonic()
        with self._database.single() as connection:
            renewed = leader_lease.record_duty(
                connection, self._name, self._token, self._ttl, depths
            )
        if renewed:
            self._renewed(asked_at)
        else:
            self.held = None

    def note(self, notes: Mapping[str, str]) -> bool:
        """Write notes for the next leader; False: another process leads already."""
        with self._database.begin() as connection:
            return leader_lease.add_notes(connection, self._name, self._token, notes)

    def refused(self, why: str) -> str | None:
        """Record that the broker takes no messages, and why; return since when."""
        with self._database.begin() as connection:
            return leader_lease.record_refusal(connection, self._name, why)

    def taken(self) -> None:
        """Record that the broker takes messages again."""
        with self._database.begin() as connection:
            leader_lease.clear_refusal(connection, self._name)
