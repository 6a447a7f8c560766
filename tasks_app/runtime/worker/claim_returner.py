"""The claim returner: what others could run goes back to the pool, until that is answered."""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import timedelta

from tasks_app.domain.handlers.settlement import VANISHED
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.release import release
from tasks_app.pool.runs.leases import FIRST_S
from tasks_app.pool.runs.leases import rescue_claims
from tasks_app.pool.runs.settle import still_held
from tasks_app.runtime.execution.notices import tell_returned
from tasks_app.runtime.handlers.active_run import ReturnedClaim
from tasks_app.runtime.execution.in_flight import ACQUITS_S
from tasks_app.runtime.inflight.parts import ChildParts


class ClaimReturner:
    """A duty of the housekeeper."""

    def __init__(self, parts: ChildParts) -> None:
        self._give_back_after_s = parts.settings.give_back_after.total_seconds()
        self._max_crashes = parts.settings.max_crashes
        self._database = parts.database
        self._inflight = parts.inflight

    def give_back(self) -> None:
        """Take back what waits behind slow tasks, and release what is on its way back."""
        self._inflight.take_back(self._give_back_after_s)
        self.release()

    def release(self) -> None:
        """Release what is on its way back; what somebody's lock holds up is asked for again."""
        groups: dict[tuple[timedelta, str], list[ReturnedClaim]] = defaultdict(list)
        for item in self._inflight.returning():
            groups[item.wait, item.suspect].append(item)
        for (wait, suspect), items in groups.items():
            self._release(items, wait, suspect=suspect)

    def _release(self, items: list[ReturnedClaim], wait: timedelta, *, suspect: str) -> None:
        fences = [item.fence for item in items]
        refused = set[int]()
        with self._database.begin() as connection:
            idle_s = time.monotonic() - self._database.losses.idle
            if idle_s <= ACQUITS_S:
                suspect = ""
            if suspect:  # it answers us: so it was they alone
                done = rescue_claims(
                    connection,
                    fences,
                    lease=wait,
                    max_crashes=self._max_crashes,
                    kind=suspect,
                    left=refused,  # to the end of their leases
                )
            else:
                done = release(connection, fences, wait=wait, left=refused)
            left = [f for f in fences if f.task_id not in done and f.task_id not in refused]
            held = still_held(connection, left) if left else set()
        back_at = time.monotonic() + (FIRST_S if suspect else wait.total_seconds())
        self._inflight.back_at = max(self._inflight.back_at, back_at)
        for fence in fences:
            if fence.task_id not in held:
                self._inflight.drop(fence)
        event = Event.RESCUE if suspect else Event.RELEASE
        tell_returned([item.task for item in items], done, event, wait, suspect or VANISHED)
