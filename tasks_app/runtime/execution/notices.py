"""Notices of what the database has answered: they go to the counts, and to hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from tasks_app.domain.handlers.settlement import VANISHED
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.run import ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.runtime.hooks import HOOKS, Notice, of_return, of_settlement
from tasks_app.runtime.statistics.run_counts import RUN_COUNTS
from tasks_app.runtime.statistics import TASK_COUNTS
from tasks_app.runtime.tracing.run_logs import ATTEMPTS

log = quiet_logger(__name__)


def count_stale(task: ClaimedTask) -> None:
    """Count a write that was refused, as the lease was lost."""
    TASK_COUNTS.happened(CountedOutcome.STALE, name=task.name, queue=task.queue)


def tell_lost(settlement: Settlement) -> None:
    """Log and count an outcome that was not written, as the lease was lost."""
    if settlement.unsure:
        log.info("task %s: its commit stands, or its lease was lost", settlement.fence.task_id)
        return
    task = settlement.task
    log.warning(
        "task %s%s: the lease was lost, its outcome is not kept. Nothing to do: another attempt "
        "runs it, and what this one wrote is rolled back.",
        settlement.fence.task_id,
        f" ({task.name})" if task else "",
    )
    if task is not None:
        count_stale(task)


def tell_settled(settlements: Sequence[Settlement], states: Mapping[int, State]) -> None:
    """Count and tell what was settled. Hold no lock; nothing is raised."""
    count_settled(settlements, states)
    HOOKS.tell(notices_of(settlements, states))


def count_settled(settlements: Sequence[Settlement], states: Mapping[int, State]) -> None:
    """Count what was settled: for the log, for a waiting parent, and by name and queue."""
    ATTEMPTS.succeeded(list(states.values()).count(State.SUCCEEDED))
    RUN_COUNTS.add(states.values())
    TASK_COUNTS.settled(settlements, states)


def notices_of(
    settlements: Iterable[Settlement], states: Mapping[int, State]
) -> tuple[Notice, ...]:
    """Return what there is to tell of those that were settled; of successes only if wanted."""
    wanted = HOOKS.wanted
    return tuple(
        of_settlement(s, s.task, states[s.fence.task_id])
        for s in settlements
        if (wanted or s.event is not Event.SUCCEED)
        and s.task is not None
        and s.fence.task_id in states
    )


def tell_returned(
    tasks: Sequence[ClaimedTask],
    states: Mapping[int, State],
    event: Event,
    wait: timedelta = timedelta(0),
    why: str = VANISHED,
) -> None:
    """Count and tell of the claims among these that came back without an outcome."""
    TASK_COUNTS.returned(tasks, states, event)
    HOOKS.tell(
        of_return(task, states[task.task_id], event, wait, why)
        for task in tasks
        if task.task_id in states
    )
