"""What cannot run here for lack of a key is parked: another worker may have that key."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.encryption.keyring import NO_KEY, MissingKeyError
from tasks_app.domain.flow_control.waiting_reason import WaitingKind, WaitingReason
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.runs.release import release_parked
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.execution.notices import tell_returned
from tasks_app.runtime.inflight.inflight import InFlight

log = quiet_logger(__name__)


class KeyWait:
    """One child's; its threads use it at once."""

    def __init__(
        self, settings: Settings, database: Database, inflight: InFlight, invocation: Invocation
    ) -> None:
        self._wait = settings.park_for
        self._database = database
        self._inflight = inflight
        self._invocation = invocation
        self._told: set[str] = set()

    def park(self, task: ClaimedTask, spec: HandlerSpec, missing: MissingKeyError) -> None:
        """Park it; if the database does not answer, the housekeeper gives it back."""
        key = missing.key_id or NO_KEY
        if key not in self._told:
            self._told.add(key)
            log.warning("encryption key missing: %s; tasks that need it wait", key)
        reason = WaitingReason(WaitingKind.ENCRYPTION, key)
        try:
            state = self._invocation.lane(spec).aside(lambda: self._release(task, reason))
        except SQLAlchemyError:
            state = None
        if state is None:
            self._inflight.give_back(task, self._wait)
            return
        self._inflight.drop(task.fence)
        tell_returned([task], {task.task_id: state}, Event.RELEASE, self._wait)

    def _release(self, task: ClaimedTask, reason: WaitingReason) -> State | None:
        with self._database.begin() as connection:
            return release_parked(connection, task, reason, self._wait)
