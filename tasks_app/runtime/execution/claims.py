"""The poller: claims due tasks straight from the pool."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.pool.flow_control.order_and_limits import in_front
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.claim_next import claim_next
from tasks_app.pool.runs.claim_sql import Claimer
from tasks_app.runtime.flow_control.fair_queues import Fairness
from tasks_app.runtime.inflight.claimant import Claimant
from tasks_app.runtime.inflight.parts import ChildParts
from tasks_app.runtime.scan import ScanPasses
from tasks_app.runtime.scan.throttle import EmptyPollBackoff

NEXT_TIME = float("inf")
FAIR_S = 1.0
"""How long it remembers which queues are fair."""


class Poller:
    """Every method that claims raises ``DBAPIError`` where the database did not answer."""

    def __init__(self, parts: ChildParts, claimant: Claimant) -> None:
        self._scan_interval_s = parts.settings.scan_interval.total_seconds()
        self._database = parts.database
        self._admission = parts.admission
        self._claimant = claimant
        self._fairness = Fairness()
        self._fair: set[str] = set()
        self._fair_until = 0.0
        self._turn = 0
        self._passes: defaultdict[object, ScanPasses] = defaultdict(lambda: ScanPasses(parts.paces))
        self._gates_at: dict[tuple[str, ...], float] = {}
        """When those that gates stand before have their next turn, for each set of names."""
        self.kinds = tuple(k for k in (claimant.asynchronous, claimant.plain) if k.names)
        self.backoffs = {kind: EmptyPollBackoff(parts.paces.empty) for kind in self.kinds}

    def begin_at_the_front(self) -> None:
        """Let the next claims read all that is due."""
        self._passes.clear()

    def claim(
        self, queues: Sequence[str], most: int, claimer: Claimer, *, lonely: bool = True
    ) -> int:
        """Claim due tasks; return how many.

        Tasks behind gates have their turn once in a while, every other time as long as there are
        some, and when there are no others.
        """
        self._admission.pass_on()
        began = time.monotonic()
        taken = self._of_queues(queues, most, claimer, lonely=lonely)
        self.backoffs[claimer].looked(began, found=taken)
        return taken

    def _of_queues(
        self, queues: Sequence[str], most: int, claimer: Claimer, *, lonely: bool
    ) -> int:
        fair = self._fair_among(queues)
        if not fair:
            return self._by_age(queues, most, claimer, lonely=lonely)
        taken, self._turn = 0, self._turn + 1
        plain = [queue for queue in queues if queue not in fair]
        kinds = [plain, *([queue] for queue in sorted(fair))] if lonely else [plain]
        kinds = [some for some in kinds if some]
        for place in range(len(kinds)):  # each is first in its turn, and gets half of what is left
            some = kinds[(self._turn + place) % len(kinds)]
            room = most - taken if place == len(kinds) - 1 else (most - taken + 1) // 2
            if room and some is plain:
                taken += self._by_age(some, room, claimer, lonely=lonely)
            elif room:
                taken += self._of_shares(some[0], room, claimer)
        return taken

    def _by_age(self, queues: Sequence[str], most: int, claimer: Claimer, *, lonely: bool) -> int:
        if not lonely:
            return self._ungated(queues, most, claimer, lonely=False)
        names, now = claimer.names, time.monotonic()
        turn = self._gates_at.get(names, 0.0) <= now
        claimed = self._of_gates(queues, most, claimer) if turn else 0
        if turn:
            self._gates_at[names] = NEXT_TIME if claimed else now + self._scan_interval_s
        if claimed:
            return claimed
        if self._gates_at[names] == NEXT_TIME:
            self._gates_at[names] = 0.0
        claimed = self._ungated(queues, most, claimer, lonely=True)
        return claimed or (0 if turn else self._of_gates(queues, most, claimer))

    def _ungated(self, queues: Sequence[str], most: int, claimer: Claimer, *, lonely: bool) -> int:
        passes = self._passes[claimer.names, lonely, tuple(queues)]
        goes_on, taken = True, 0
        while goes_on and not taken:
            began = time.monotonic()
            within, goes_on = start = passes.start(began)

            def ask(token: UUID, within: timedelta | None = within) -> list[ClaimedTask]:
                with self._database.single() as connection:
                    return claim_next(
                        connection,
                        queues,
                        most,
                        claimer,
                        token,
                        lonely=lonely,
                        within=within,
                        places=passes.places,
                    )

            taken = len(self._claimant.claim(ask))
            passes.was_read(began, start, left=taken)
        return taken

    def _of_gates(self, queues: Sequence[str], most: int, claimer: Claimer) -> int:
        """Claim those at the front that gates stand before; return how many."""

        def ask(token: UUID) -> list[ClaimedTask]:
            with self._database.single() as connection:
                ids = in_front(connection, queues, claimer.names)
            return self._admission.claim(ids, claimer, token, most) if ids else []

        return len(self._claimant.claim(ask))

    def _of_shares(self, queue: str, most: int, claimer: Claimer) -> int:
        """Claim of a fair queue what comes next by its shares; return how many.

        The rows that are read are locked until the claim is committed: others look behind them.
        """

        def ask(token: UUID) -> list[ClaimedTask]:
            with self._database.begin() as connection:
                found = self._fairness.due(
                    connection, queue, most, {}, names=claimer.names, lock=True
                )
                return [] if found is None else claim(connection, found.ids, claimer, token)

        claimed = self._claimant.claim(ask)
        self._fairness.went(queue, (task.task_id for task in claimed))
        return len(claimed) or self._of_gates([queue], most, claimer)

    def _fair_among(self, queues: Sequence[str]) -> set[str]:
        """Return which queues are fair; what an operator changes holds within a second."""
        now = time.monotonic()
        if now >= self._fair_until:
            with self._database.single() as connection:
                self._fair = self._fairness.among(connection, queues)
            self._fair_until = now + FAIR_S
        return self._fair & set(queues)
