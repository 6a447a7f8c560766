"""The executor: which tasks this child claims, out of a message or straight from the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.logs import quiet_logger
from tasks_app.domain.settings import Settings
from tasks_app.domain.task import ClaimedTask
from tasks_app.pool import ledger
from tasks_app.pool.claim import Claimer, claim, claim_next, waiting
from tasks_app.pool.release import release_token
from tasks_app.runtime.database import Database
from tasks_app.runtime.desk import Desk
from tasks_app.runtime.hooks import HOOKS, Kind, of_claim
from tasks_app.runtime.registry import Registry
from tasks_app.runtime.runner import Runner
from tasks_app.runtime.settler import Settler
from tasks_app.runtime.slot import Slot, Stage

log = quiet_logger(__name__)

TURN_PATIENCE_S = 0.5
"""Between two looks whether a task that runs alone may start."""


class Executor:
    """Claims for one child and hands to its runner."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        database: Database,
        desk: Desk,
        slot: Slot,
        settler: Settler,
        runner: Runner,
    ) -> None:
        self._settings = settings
        self._database = database
        self._desk = desk
        self._slot = slot
        self._settler = settler
        self._runner = runner
        specs = tuple(registry)
        self._claimer = Claimer(
            owner=slot.owner,
            lease=settings.lease,
            names=tuple(spec.name for spec in specs),
            max_attempts=tuple(spec.max_attempts for spec in specs),
            at_most_once=tuple(spec.at_most_once for spec in specs),
        )

    def execute(self, dispatch_id: int | None, ids: Sequence[int]) -> None:
        """Carry out one message: claim its ids in groups, run what was there to take.

        Returns when every outcome is written, so that the child may be recycled after it.
        """
        self._slot.message(dispatch_id or 0)
        self._desk.open_message(dispatch_id or 0)
        try:
            self._work_off(list(ids))
            self._settler.flush_until_answered()
        finally:
            if dispatch_id and not self._desk.gave_back:
                self._finish_message(dispatch_id)
            self._desk.close_message()
            self._slot.message(0)

    def _work_off(self, ids: list[int]) -> None:
        while ids and not self._over() and not self._desk.gave_back:
            size = self._runner.pace.next_group(self._settings.claim_size)
            group, rest = ids[:size], ids[size:]
            claimed = self._claim(group)
            if claimed is None:
                return  # the database is away: the scan comes back to the rest
            if not claimed:  # taken by others, done, unknown, or not due: an everyday answer
                ids = self._still_waiting(rest)
                continue
            taken = {task.task_id for task in claimed}
            ids = [task_id for task_id in group if task_id not in taken] + rest
            self.run_waiting()

    def _still_waiting(self, ids: list[int]) -> list[int]:
        """Look before the next claim: of a message that comes twice, all ids may be gone."""
        if not ids:
            return []
        try:
            with self._database.single() as connection:
                return waiting(connection, ids)
        except SQLAlchemyError:
            return []

    def run_waiting(self) -> None:
        """Run what is on the desk, and write it; a task that runs alone waits for its turn."""
        while not self._over():
            run = self._desk.start_next()
            if run is not None:
                self._runner.run(run)
            elif not self._desk.await_turn(TURN_PATIENCE_S):
                break
        self._settler.flush_quietly()

    def _over(self) -> bool:
        """Whether nothing more may start; the clerk gives back what has not."""
        if self._slot.stage is not Stage.RUNS:
            self._desk.stop()
        return self._desk.over

    def _claim(self, ids: list[int]) -> list[ClaimedTask] | None:
        token = uuid4()
        try:
            with self._database.single() as connection:
                claimed = claim(connection, ids, self._claimer, token)
        except SQLAlchemyError as error:
            self._doubt(token, error)
            return None
        self._receive(claimed)
        return claimed

    def _receive(self, claimed: Sequence[ClaimedTask]) -> None:
        """Tell of them first: another thread may start one as soon as it is on the desk."""
        if HOOKS.wanted:
            HOOKS.tell(of_claim(Kind.RECEIVED, task) for task in claimed)
        self._desk.receive(claimed)

    def claim_next(self, queues: Sequence[str], most: int) -> int:
        """Claim due tasks straight from the pool; return how many are on the desk now."""
        token = uuid4()
        try:
            with self._database.single() as connection:
                claimed = claim_next(connection, queues, most, self._claimer, token)
        except SQLAlchemyError as error:
            self._doubt(token, error)
            raise
        self._receive(claimed)
        return len(claimed)

    def _doubt(self, token: Any, error: SQLAlchemyError) -> None:
        """The claim's reply never came: give back by token whatever it may have taken."""
        log.warning("a claim was not answered: %s", type(error).__name__)
        self._desk.errand(lambda connection: release_token(connection, token))

    def _finish_message(self, dispatch_id: int) -> None:
        try:
            with self._database.single() as connection:
                ledger.finish(connection, dispatch_id)
        except SQLAlchemyError:
            self._desk.errand(lambda connection: ledger.finish(connection, dispatch_id))
