"""The fetcher: claims the ids of messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID, uuid4

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.pool.runs.claim import claim, claim_unhindered, waiting
from tasks_app.pool.runs.settle import settle_nothing
from tasks_app.runtime.inflight.claimant import Claimant
from tasks_app.runtime.inflight.parts import ChildParts

HINDERED_S = 1.0
"""For how long the short claim is left out after it found nothing and the long one did."""


class Fetcher:
    """The short claim takes what nothing is in the way of; the long one also looks at gates."""

    def __init__(self, parts: ChildParts, claimant: Claimant) -> None:
        self._database = parts.database
        self._admission = parts.admission
        self._claimant = claimant
        self.hindered_s = HINDERED_S
        self.hindered_until = 0.0
        """Until then, by ``time.monotonic``, the short claim is left out."""
        self._gated = False
        """Gates stood before the tasks that the last long claim took."""
        self._prepared = False

    def prepare_statements(self) -> None:
        """Claim and settle nothing, once, so that the first task need not wait for plans.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        if self._prepared:
            return
        every = self._claimant.every
        with self._database.single() as connection:
            for _ in range(2):  # from the second time on the driver prepares a statement
                claim_unhindered(connection, [], every, uuid4())
                claim(connection, [], every, uuid4())
                settle_nothing(connection)
        self._prepared = True

    def claim(self, ids: Sequence[int]) -> list[ClaimedTask] | None:
        """Claim those that are there to take; None: the database did not answer."""
        try:
            return self._claimant.claim(lambda token: self._by_id(ids, token))
        except SQLAlchemyError:
            return None

    def still_waiting(self, ids: list[int]) -> list[int]:
        """Look before the next claim: of a message that comes twice, all ids may be gone."""
        if not ids:
            return []
        try:
            with self._database.single() as connection:
                return waiting(connection, ids)
        except SQLAlchemyError:
            return []

    def _by_id(self, ids: Sequence[int], token: UUID) -> list[ClaimedTask]:
        now = time.monotonic()
        if now < self.hindered_until:
            return self._the_long_way(ids, token)
        with self._database.single() as connection:
            claimed = claim_unhindered(connection, ids, self._claimant.every, token)
        if not claimed:
            claimed = self._the_long_way(ids, token)
            if claimed:
                self.hindered_until = now + self.hindered_s
        return claimed

    def _the_long_way(self, ids: Sequence[int], token: UUID) -> list[ClaimedTask]:
        claimed = self._with_or_without_gates(ids, token)
        if not claimed:  # none of the kind that the last message was of
            self._gated = not self._gated
            claimed = self._with_or_without_gates(ids, token)
        return claimed

    def _with_or_without_gates(self, ids: Sequence[int], token: UUID) -> list[ClaimedTask]:
        if self._gated:
            return self._admission.claim(ids, self._claimant.every, token)
        with self._database.single() as connection:
            return claim(connection, ids, self._claimant.every, token)
