"""Hooks: subscribers are called with notices of how runs go, each when it is true.

The end of a run is announced after the database has answered, with the state in which the task
really is. A subscriber can only delay a task: what it raises is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from tasks_app.domain.handlers import settlement as causes
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.tasks.browse import Outline

log = quiet_logger(__name__)


class NoticeKind(StrEnum):
    """What happened to a task."""

    RECEIVED = "received"
    """Claimed by this process."""
    STARTED = "started"
    """Its handler is about to be called."""
    RETRIED = "retried"
    """The attempt failed; the task comes back after ``wait``."""
    SNOOZED = "snoozed"
    """Its handler raised ``Snooze``; the task comes back after ``wait``."""
    RELEASED = "released"
    """It went back to the pool before it started, or through no fault of its own."""
    RESCUED = "rescued"
    """Its process vanished with it; it comes back."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It is in the error pool."""
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        """Whether the task is over, unless an operator requeues it."""
        return self in _FINAL.values()


_FINAL = {
    State.SUCCEEDED: NoticeKind.SUCCEEDED,
    State.FAILED: NoticeKind.FAILED,
    State.CANCELLED: NoticeKind.CANCELLED,
    State.SKIPPED: NoticeKind.SKIPPED,
    State.EXPIRED: NoticeKind.EXPIRED,
}
_AGAIN = {
    Event.RETRY: NoticeKind.RETRIED,
    Event.SNOOZE: NoticeKind.SNOOZED,
    Event.RELEASE: NoticeKind.RELEASED,
    Event.RESCUE: NoticeKind.RESCUED,
}


@dataclass(frozen=True, slots=True)
class Notice:
    """What happened to one task. Its ``repr`` leaves out what may hold secrets."""

    kind: NoticeKind
    """What happened."""
    task_id: int
    """The task's id."""
    name: str
    """The task's name."""
    queue: str
    """The task's queue."""
    biz_key: str | None = None
    """The business object that the task is about."""
    attempt: int = 0
    """Which claim of the task; 0: it was not claimed yet."""
    failures: int = 0
    """Charged so far, this attempt's included."""
    wait: timedelta | None = None
    """How long until it is due again."""
    run_ms: int | None = None
    """How long the handler of a succeeded task ran."""
    cause: Cause | None = field(default=None, repr=False)
    """Why it did not succeed."""
    payload: str | None = field(default=None, repr=False)
    """JSON text. None: it is large, or was not loaded."""
    result: str | None = field(default=None, repr=False)
    """JSON text of what the handler returned."""
    max_attempts: int | None = None
    """How many charged attempts lead to the error pool. None: no run moved the task."""
    headers: str | None = field(default=None, repr=False)
    """JSON text of what the producer gave, of a task that this process has claimed."""


Subscriber = Callable[[Notice], object]
S = TypeVar("S", bound=Subscriber)


class Hooks:
    """The subscribers of one process."""

    def __init__(self) -> None:
        # Each with a function that returns whether it listens now. Replaced, never changed: other
        # threads may iterate over it.
        self._subscribers: dict[Subscriber, Callable[[], bool]] = {}
        self._followers: tuple[Subscriber, ...] = ()
        self._failures: dict[Subscriber, int] = {}

    def subscribe(self, subscriber: S, *, while_: Callable[[], bool] = lambda: True) -> S:
        if subscriber not in self._subscribers:
            self._subscribers = {**self._subscribers, subscriber: while_}
        return subscriber

    def follow(self, follower: S) -> S:
        """Call it with notices that exist anyway: at least of all that did not succeed."""
        self._followers = (*self._followers, follower)
        return follower

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers = {s: w for s, w in self._subscribers.items() if s != subscriber}

    @property
    def wanted(self) -> bool:
        """Whether a subscriber listens now; otherwise no notice need be built."""
        for listens in self._subscribers.values():  # noqa: SIM110  asked twice per task
            if listens():
                return True
        return False

    def tell(self, notices: Iterable[Notice]) -> None:
        """Call all subscribers, in order, and raise nothing. Hold no lock meanwhile."""
        subscribers = [s for s, listens in self._subscribers.items() if listens()]
        subscribers += self._followers
        if not subscribers:
            return
        for notice in notices:
            for subscriber in subscribers:
                try:
                    subscriber(notice)
                except BaseException as error:
                    self._log_failure(subscriber, error)

    def _log_failure(self, subscriber: Subscriber, error: BaseException) -> None:
        failures = self._failures.get(subscriber, 0) + 1
        self._failures[subscriber] = failures
        if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, 8th …: it may fail at every task
            name = getattr(subscriber, "__qualname__", type(subscriber).__name__)
            log.error("subscriber %s failed %s times: %s", name, failures, first_line(error))


HOOKS = Hooks()  # of ``@subscribe``


def subscribe(subscriber: S, *, while_: Callable[[], bool] = lambda: True) -> S:
    """Call ``subscriber`` from now on, or only while ``while_`` is true. Also a decorator.

    >>> @subscribe
    ... def tell(notice):
    ...     if notice.kind.is_final:
    ...         print(notice.name, notice.kind)
    >>> drained = drain(session)
    mail.send succeeded
    """
    return HOOKS.subscribe(subscriber, while_=while_)


def of_claim(kind: NoticeKind, task: ClaimedTask) -> Notice:
    about = task.task_id, task.name, task.queue, task.biz_key, task.fence.attempt, task.failures
    return Notice(kind, *about, payload=task.payload, headers=task.headers)


_WHY = {
    causes.VANISHED: "Its process or worker vanished while it held the task.",
    causes.PROCESS_KILLED: "Its process was killed at the hard limit of another task.",
    causes.INTERRUPTED: "A signal ended its process, and no other of the worker.",
    causes.CONNECTION_LOST: "The database, which is up, ended its connection.",
    causes.REFUSED: "The database had no room for what it wrote, or no free connection.",
    causes.ABORTED: "Its run was cut off, and not by a limit, a stop or an operator.",
}


def of_return(
    task: ClaimedTask, state: State, event: Event, wait: timedelta, why: str = causes.VANISHED
) -> Notice:
    """Return the notice of a claim that came back without an outcome."""
    cause = Cause(why, _WHY[why]) if event is Event.RESCUE else None
    counted = task.failures, task.retry_level
    settlement = Settlement(task.fence, event, *counted, wait=wait, cause=cause)
    return of_settlement(settlement, task, state)


def of_settlement(settlement: Settlement, task: ClaimedTask, state: State) -> Notice:
    again = state is State.PENDING
    kind, wait = (_AGAIN[settlement.event], settlement.wait) if again else (_FINAL[state], None)
    about = task.task_id, task.name, task.queue, task.biz_key, task.fence.attempt
    ended = settlement.failures, wait, settlement.run_ms, settlement.cause
    texts = task.payload, settlement.result
    return Notice(kind, *about, *ended, *texts, task.max_attempts, task.headers)


def of_outline(outline: Outline, returned: NoticeKind) -> Notice:
    """Return the notice of a row that was moved by others than its run."""
    kind, _, message = (outline.error or "").partition(": ")
    what = _FINAL.get(outline.state, returned)
    if what is NoticeKind.RESCUED and not kind:
        kind, message = causes.VANISHED, _WHY[causes.VANISHED]
    about = outline.id, outline.name, outline.queue, outline.biz_key
    cause = Cause(kind, message) if kind else None
    return Notice(what, *about, outline.attempt, outline.failures, cause=cause)
