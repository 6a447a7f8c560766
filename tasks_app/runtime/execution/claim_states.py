"""Where a claim is in a child process, what may happen to it, and what the child notes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from tasks_app.domain.tasks.run import ClaimedTask, Fence, Settlement
from tasks_app.runtime.handlers.checkpoint import ActiveRun


class ClaimState(StrEnum):
    """Where a claim is in this process. The table below says how it gets there."""

    WAITING = "waiting"  # for a thread, or for a place in the event loop
    RUNNING = "running"
    COMMITTING = "committing"  # its COMMIT may be on the way: too late to release the task
    FINISHED = "finished"  # its outcome is decided, and is to be written together with others
    SEPARATE = "separate"
    """Its outcome could not be written beside others: a run of its own commits it."""
    RETURNING = "returning"  # to be released, uncharged or with a crash


class ClaimEvent(StrEnum):
    START = "start"
    COMMIT = "commit"
    RUN_AGAIN = "run again"
    COLLECT = "collect"
    SPLIT_OFF = "split off"
    RETURN = "return"
    DISOWN = "disown"  # the child ends, and takes the run away from its thread
    ANSWER = "answer"  # the database has answered for it, or its lease was lost


WAITING, RUNNING, COMMITTING, FINISHED, SEPARATE, RETURNING = ClaimState
START, COMMIT, RUN_AGAIN, COLLECT, SPLIT_OFF, RETURN, DISOWN, ANSWER = ClaimEvent

CLAIM_TRANSITIONS: dict[tuple[ClaimState, ClaimEvent], ClaimState | None] = {
    (WAITING, START): RUNNING,
    (WAITING, RETURN): RETURNING,
    (RUNNING, COMMIT): COMMITTING,
    (RUNNING, RUN_AGAIN): RUNNING,
    (RUNNING, COLLECT): FINISHED,
    (RUNNING, RETURN): RETURNING,
    (RUNNING, DISOWN): None,
    (RUNNING, ANSWER): None,
    (COMMITTING, COMMIT): COMMITTING,  # of a failure, after its success was refused
    (COMMITTING, RUN_AGAIN): RUNNING,
    (COMMITTING, COLLECT): FINISHED,
    (COMMITTING, RETURN): RETURNING,
    (COMMITTING, DISOWN): None,
    (COMMITTING, ANSWER): None,
    (FINISHED, SPLIT_OFF): SEPARATE,
    (FINISHED, RETURN): RETURNING,
    (FINISHED, ANSWER): None,
    (SEPARATE, START): RUNNING,
    (SEPARATE, RETURN): RETURNING,
    (RETURNING, ANSWER): None,
}
"""None: the child holds the claim no longer. An event that is not listed changes nothing: another
thread was faster."""


@dataclass(slots=True, eq=False)
class HeldClaim:
    task: ClaimedTask
    held_until: float  # by ``time.monotonic``: its lease does not end before, as far as is known
    state: ClaimState = WAITING
    run: ActiveRun | None = None
    settlement: Settlement | None = None  # of FINISHED and SEPARATE
    wait: timedelta = field(init=False)  # of RETURNING: after how long the task is due again
    crash: str = field(init=False)
    """Of RETURNING: what befell it, perhaps by its own fault, so that ``crashes`` rises."""

    @property
    def fence(self) -> Fence:
        return self.task.fence
