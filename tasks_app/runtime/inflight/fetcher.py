"""The claims of one child: of a message's ids, or straight from the pool, onto its desk."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from uuid import UUID, uuid4

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.pool.flow_control.order_and_limits import in_front
from tasks_app.pool.runs.claim import claim, claim_unhindered, waiting
from tasks_app.pool.runs.claim_next import claim_next
from tasks_app.pool.runs.claim_sql import Claimer
from tasks_app.pool.runs.release import release_token
from tasks_app.pool.runs.settle import settle_nothing
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.flow_control.fair_queues import Fairness
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.hooks import HOOKS, Kind, of_claim
from tasks_app.runtime.inflight.inflight import InFlight
from tasks_app.runtime.scan.empty_poll_backoff import EmptyPollBackoff
from tasks_app.runtime.scan.position import ScanPasses

log = quiet_logger(__name__)

NEXT_TIME = float("inf")
FAIR_S = 1.0
"""So long it is remembered which queues are fair."""
HINDERED_S = 1.0
"""So long nothing is claimed the short way after that found nothing and the long way did."""


class Claims:
    """Who claims, and what of."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        database: Database,
        inflight: InFlight,
        owner: str,
        admission: AdmissionControl,
    ) -> None:
        self._settings = settings
        self._database = database
        self._inflight = inflight
        self._owner = owner
        self._rehearsed = False
        self._fairness = Fairness()
        self._fair: set[str] = set()
        self._fair_until = 0.0
        self._turn = 0
        self._passes: defaultdict[object, ScanPasses] = defaultdict(ScanPasses)
        self._admission = admission
        self._hindered_until = 0.0
        """The short way is not tried before; see HINDERED_S."""
        self._gated = False
        """Gates stood before the tasks that were claimed by their ids the long way last."""
        self._gates_at: dict[tuple[str, ...], float] = {}
        """When those that gates stand before have their next turn, for each set of names."""
        specs = tuple(registry)
        self._all = self._claimer(specs)
        self.plain = self._claimer(spec for spec in specs if not spec.is_async)
        """Of handlers that take a thread."""
        self.asynchronous = self._claimer(spec for spec in specs if spec.is_async)
        """Of handlers that take a place in the async pool."""
        self.kinds = tuple(kind for kind in (self.asynchronous, self.plain) if kind.names)
        self.lulls = {kind: EmptyPollBackoff() for kind in self.kinds}

    def rehearse(self) -> None:
        """Claim and settle nothing, once: a first task shall not wait for statements to be planned.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        if self._rehearsed:
            return
        with self._database.single() as connection:
            for _ in range(2):  # from the second time on the driver prepares a statement
                claim_unhindered(connection, [], self._all, uuid4())
                claim(connection, [], self._all, uuid4())
                settle_nothing(connection)
        self._rehearsed = True

    def of_message(self, ids: Sequence[int]) -> list[ClaimedTask] | None:
        """Claim those that are there to take; None: the database did not answer."""
        token, began = uuid4(), time.monotonic()
        try:
            claimed = self._by_id(ids, token)
        except SQLAlchemyError as error:
            self._doubt(token, error)
            return None
        self._receive(claimed, began)
        return claimed

    def _by_id(self, ids: Sequence[int], token: UUID) -> list[ClaimedTask]:
        now = time.monotonic()
        if now < self._hindered_until:
            return self._the_long_way(ids, token)
        with self._database.single() as connection:
            claimed = claim_unhindered(connection, ids, self._all, token)
        if not claimed:
            claimed = self._the_long_way(ids, token)
            if claimed:
                self._hindered_until = now + HINDERED_S
        return claimed

    def _the_long_way(self, ids: Sequence[int], token: UUID) -> list[ClaimedTask]:
        claimed = self._of_kind(ids, token)
        if not claimed:  # none of the kind that the last message was of
            self._gated = not self._gated
            claimed = self._of_kind(ids, token)
        return claimed

    def _of_kind(self, ids: Sequence[int], token: UUID) -> list[ClaimedTask]:
        if self._gated:
            return self._admission.claim(ids, self._all, token)
        with self._database.single() as connection:
            return claim(connection, ids, self._all, token)

    def of_pool(
        self, queues: Sequence[str], most: int, claimer: Claimer, *, lonely: bool = True
    ) -> int:
        """Claim due tasks straight from the pool; return how many.

        Those that gates stand before have their turn once in a while, every other time as long as
        there are some, and when there are no others.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        self._admission.pass_on()
        began = time.monotonic()
        taken = self._of_queues(queues, most, claimer, lonely=lonely)
        self.lulls[claimer].looked(began, found=taken)
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
            interval_s = self._settings.scan_interval.total_seconds()
            self._gates_at[names] = NEXT_TIME if claimed else now + interval_s
        if claimed:
            return claimed
        if self._gates_at[names] == NEXT_TIME:
            self._gates_at[names] = 0.0
        claimed = self._ungated(queues, most, claimer, lonely=True)
        return claimed or (0 if turn else self._of_gates(queues, most, claimer))

    def _ungated(self, queues: Sequence[str], most: int, claimer: Claimer, *, lonely: bool) -> int:
        passes = self._passes[claimer.names, lonely, tuple(queues)]
        goes_on, began = True, time.monotonic()
        claimed: list[ClaimedTask] = []
        while goes_on and not claimed:
            token, began = uuid4(), time.monotonic()
            within, goes_on = start = passes.start(began)
            try:
                with self._database.single() as connection:
                    claimed = claim_next(
                        connection,
                        queues,
                        most,
                        claimer,
                        token,
                        lonely=lonely,
                        within=within,
                        places=passes.places,
                    )
            except SQLAlchemyError as error:
                self._doubt(token, error)
                raise
            passes.was_read(began, start, left=len(claimed))
        self._receive(claimed, began)
        return len(claimed)

    def _of_gates(self, queues: Sequence[str], most: int, claimer: Claimer) -> int:
        """Claim of those at the front that gates stand before; return how many."""
        token, began = uuid4(), time.monotonic()
        try:
            with self._database.single() as connection:
                ids = in_front(connection, queues, claimer.names)
            claimed = self._admission.claim(ids, claimer, token, most) if ids else []
        except SQLAlchemyError as error:
            self._doubt(token, error)
            raise
        self._receive(claimed, began)
        return len(claimed)

    def _fair_among(self, queues: Sequence[str]) -> set[str]:
        """Return which queues are fair; what an operator changes holds within a second."""
        now = time.monotonic()
        if now >= self._fair_until:
            with self._database.single() as connection:
                self._fair = self._fairness.among(connection, queues)
            self._fair_until = now + FAIR_S
        return self._fair & set(queues)

    def _of_shares(self, queue: str, most: int, claimer: Claimer) -> int:
        """Claim of a fair queue what comes next by its shares; return how many.

        What is looked at is ours until the claim is committed: others look behind it.
        """
        token, began, claimed = uuid4(), time.monotonic(), list[ClaimedTask]()
        try:
            with self._database.begin() as connection:
                found = self._fairness.due(
                    connection, queue, most, {}, names=claimer.names, lock=True
                )
                if found is not None:
                    claimed = claim(connection, found.ids, claimer, token)
        except SQLAlchemyError as error:
            self._doubt(token, error)
            raise
        self._fairness.went(queue, (task.task_id for task in claimed))
        self._receive(claimed, began)
        return len(claimed) or self._of_gates([queue], most, claimer)

    def begin_at_the_front(self) -> None:
        """Let the next claims from the pool read all that is due."""
        self._passes.clear()

    def all_async(self, claimed: Sequence[ClaimedTask]) -> bool:
        """Whether none of them takes a thread."""
        return all(task.name in self.asynchronous.names for task in claimed)

    def still_waiting(self, ids: list[int]) -> list[int]:
        """Look before the next claim: of a message that comes twice, all ids may be gone."""
        if not ids:
            return []
        try:
            with self._database.single() as connection:
                return waiting(connection, ids)
        except SQLAlchemyError:
            return []

    def _receive(self, claimed: Sequence[ClaimedTask], began: float) -> None:
        """Tell of them first: another thread may start one as soon as it is in flight.

        ``began`` is when the claim was sent, or before: their leases last that much longer.
        """
        if HOOKS.wanted:
            HOOKS.tell(of_claim(Kind.RECEIVED, task) for task in claimed)
        self._inflight.receive(claimed, began + self._settings.lease.total_seconds())

    def _doubt(self, token: UUID, error: SQLAlchemyError) -> None:
        """The claim's reply never came: give back by token whatever it may have taken."""
        log.warning("a claim was not answered: %s", type(error).__name__)
        self._inflight.write_later(lambda connection: release_token(connection, token))

    def _claimer(self, specs: Iterable[HandlerSpec]) -> Claimer:
        known = tuple(specs)
        return Claimer(
            owner=self._owner,
            lease=self._settings.lease,
            names=tuple(spec.name for spec in known),
            max_attempts=tuple(spec.max_attempts for spec in known),
            at_most_once=tuple(spec.at_most_once for spec in known),
        )
