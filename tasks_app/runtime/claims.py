"""The claims of one child: of a message's ids, or straight from the pool, onto its desk."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from uuid import UUID, uuid4

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.handler import HandlerSpec
from tasks_app.domain.logs import quiet_logger
from tasks_app.domain.settings import Settings
from tasks_app.domain.task import ClaimedTask
from tasks_app.pool.claim import Claimer, claim, claim_next, waiting
from tasks_app.pool.release import release_token
from tasks_app.pool.settle import settle_nothing
from tasks_app.runtime.database import Database
from tasks_app.runtime.desk import Desk
from tasks_app.runtime.front import Front
from tasks_app.runtime.hooks import HOOKS, Kind, of_claim
from tasks_app.runtime.registry import Registry

log = quiet_logger(__name__)


class Claims:
    """Who claims, and what of."""

    def __init__(
        self, settings: Settings, registry: Registry, database: Database, desk: Desk, owner: str
    ) -> None:
        self._settings = settings
        self._database = database
        self._desk = desk
        self._owner = owner
        self._rehearsed = False
        self._fronts: defaultdict[object, Front] = defaultdict(Front)
        specs = tuple(registry)
        self._all = self._claimer(specs)
        self.plain = self._claimer(spec for spec in specs if not spec.is_async)
        """Of handlers that take a thread."""
        self.asynchronous = self._claimer(spec for spec in specs if spec.is_async)
        """Of handlers that take a place in the crew."""

    def rehearse(self) -> None:
        """Claim and settle nothing, once: a first task shall not wait for statements to be planned.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        if self._rehearsed:
            return
        with self._database.single() as connection:
            for _ in range(2):  # from the second time on the driver prepares a statement
                claim(connection, [], self._all, uuid4())
                settle_nothing(connection)
        self._rehearsed = True

    def of_message(self, ids: Sequence[int]) -> list[ClaimedTask] | None:
        """Claim those that are there to take; None: the database did not answer."""
        token = uuid4()
        try:
            with self._database.single() as connection:
                claimed = claim(connection, ids, self._all, token)
        except SQLAlchemyError as error:
            self._doubt(token, error)
            return None
        self._receive(claimed)
        return claimed

    def of_pool(
        self, queues: Sequence[str], most: int, claimer: Claimer, *, lonely: bool = True
    ) -> int:
        """Claim due tasks straight from the pool; return how many.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
        token = uuid4()
        front = self._fronts[claimer.names, lonely, tuple(queues)]
        began = time.monotonic()
        within = front.within(began)
        try:
            with self._database.single() as connection:
                claimed = claim_next(
                    connection, queues, most, claimer, token, lonely=lonely, within=within
                )
        except SQLAlchemyError as error:
            self._doubt(token, error)
            raise
        front.was_read(began, within, left=len(claimed))
        self._receive(claimed)
        return len(claimed)

    def begin_at_the_front(self) -> None:
        """Let the next claims from the pool read all that is due."""
        self._fronts.clear()

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

    def _receive(self, claimed: Sequence[ClaimedTask]) -> None:
        """Tell of them first: another thread may start one as soon as it is on the desk."""
        if HOOKS.wanted:
            HOOKS.tell(of_claim(Kind.RECEIVED, task) for task in claimed)
        self._desk.receive(claimed)

    def _doubt(self, token: UUID, error: SQLAlchemyError) -> None:
        """The claim's reply never came: give back by token whatever it may have taken."""
        log.warning("a claim was not answered: %s", type(error).__name__)
        self._desk.errand(lambda connection: release_token(connection, token))

    def _claimer(self, specs: Iterable[HandlerSpec]) -> Claimer:
        known = tuple(specs)
        return Claimer(
            owner=self._owner,
            lease=self._settings.lease,
            names=tuple(spec.name for spec in known),
            max_attempts=tuple(spec.max_attempts for spec in known),
            at_most_once=tuple(spec.at_most_once for spec in known),
        )
