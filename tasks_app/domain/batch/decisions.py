"""What follows when the tasks of a step have ended, and what a restart runs again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from tasks_app.domain.batch.policies import AbortKind, Join, OnAbort
from tasks_app.domain.batch.records import BatchStatus, PartTally, StepStatus


class Move(StrEnum):
    """What the join does next with its step."""

    AGAIN = "again"
    """Start the failed partitions again, from their checkpoints."""
    COMPENSATE = "compensate"
    """Undo what the failed partitions have committed."""
    REDUCE = "reduce"
    COMPLETE = "complete"
    FAIL = "fail"
    STOP = "stop"


def after_partitions(
    tally: PartTally,
    join: Join,
    on_abort: OnAbort,
    *,
    rounds: int,
    stopping: bool,
    reduces: bool,
) -> Move:
    """Return the move when the partitions have ended, or enough of them have.

    ``rounds``: how often failed ones were started again. A stop leaves what is not done.
    """
    done = Move.REDUCE if reduces else Move.COMPLETE
    if stopping:
        return Move.STOP if reduces or tally.completed < tally.total else Move.COMPLETE
    if tally.failed:
        if on_abort.kind is AbortKind.FAIL_FAST and join.enough is None:
            return Move.FAIL
        if on_abort.kind is AbortKind.RETRY_PARTITION and rounds < on_abort.tries:
            if not (join.enough and join.satisfied(tally.completed, tally.total)):
                return Move.AGAIN
        elif on_abort.kind is AbortKind.COMPENSATE:
            return Move.COMPENSATE
    return done if join.satisfied(tally.completed, tally.total) else Move.FAIL


def after_compensation(tally: PartTally, join: Join, *, stopping: bool, reduces: bool) -> Move:
    """Return the move when all failed partitions are undone, or one could not be."""
    if stopping:
        return Move.STOP
    if tally.failed or not join.satisfied(tally.completed, tally.total):
        return Move.FAIL
    return Move.REDUCE if reduces else Move.COMPLETE


def ready(after: Mapping[str, Sequence[str]], statuses: Mapping[str, StepStatus]) -> list[str]:
    """Return the waiting steps of which all predecessors are complete."""
    return [
        step
        for step, before in after.items()
        if statuses[step] is StepStatus.WAITING
        and all(statuses[each] is StepStatus.COMPLETED for each in before)
    ]


def status_of_batch(statuses: Mapping[str, StepStatus], *, stopping: bool) -> BatchStatus | None:
    """Return how an instance has ended; None: a step of it is under way.

    Ask after starting all steps that are ready.
    """
    found = set(statuses.values())
    if any(status.is_active for status in found):
        return None
    if found <= {StepStatus.COMPLETED}:
        return BatchStatus.COMPLETED
    if StepStatus.FAILED in found:
        return BatchStatus.FAILED
    return BatchStatus.STOPPED if stopping or StepStatus.STOPPED in found else None


def error_of_batch(statuses: Mapping[str, StepStatus]) -> str | None:
    failed = [name for name, status in statuses.items() if status is StepStatus.FAILED]
    return f"failed: {', '.join(failed)}" if failed else None


def again(statuses: Mapping[str, StepStatus]) -> list[str]:
    """Return the steps that a restart sets to WAITING: all that are not complete."""
    return [step for step, status in statuses.items() if status is not StepStatus.COMPLETED]
