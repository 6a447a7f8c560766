"""The life of a task: states, events, and the table of transitions.

Guards in SQL, the diagram in ``docs/lifecycle.md`` and CHECK constraints are generated from it.
"""

from __future__ import annotations

from enum import StrEnum

from tasks_app.domain.errors import IllegalTransitionError


class State(StrEnum):
    """The states of a task, as the database stores them."""

    PENDING = "PENDING"  # waits to become due or to be claimed
    RUNNING = "RUNNING"  # claimed by one worker child, under a lease
    SUCCEEDED = "SUCCEEDED"  # its handler returned
    SKIPPED = "SKIPPED"  # its handler raised Skip, or it was disabled when it became due
    CANCELLED = "CANCELLED"  # stopped on purpose
    EXPIRED = "EXPIRED"  # became due after its expires_at
    FAILED = "FAILED"  # out of attempts, or failed at once; an operator may requeue it


class Pool(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    ERROR = "error"


class Event(StrEnum):
    CLAIM = "claim"
    SUCCEED = "succeed"
    SKIP = "skip"
    CANCEL = "cancel"
    EXPIRE = "expire"
    FAIL = "fail"
    RETRY = "retry"  # again later; charges one failure, unless a rule says otherwise
    SNOOZE = "snooze"  # again later at the handler's request; uncharged
    RELEASE = "release"  # given back unstarted, or through no fault of its own; uncharged
    RESCUE = "rescue"  # taken back: its lease ended, or its child or connection died
    REQUEUE = "requeue"  # put back by an operator


_P, _R = State.PENDING, State.RUNNING
TERMINAL = tuple(state for state in State if state not in (_P, _R))
TRANSITIONS: dict[tuple[State, Event], State] = {
    (_P, Event.CLAIM): _R,
    (_P, Event.SKIP): State.SKIPPED,
    (_P, Event.CANCEL): State.CANCELLED,
    (_P, Event.EXPIRE): State.EXPIRED,
    (_R, Event.SUCCEED): State.SUCCEEDED,
    (_R, Event.SKIP): State.SKIPPED,
    (_R, Event.CANCEL): State.CANCELLED,
    (_R, Event.FAIL): State.FAILED,
    (_R, Event.RETRY): _P,
    (_R, Event.SNOOZE): _P,
    (_R, Event.RELEASE): _P,
    (_R, Event.RESCUE): _P,
    **{(state, Event.REQUEUE): _P for state in TERMINAL},
}
_POOLS = {_P: Pool.PENDING, _R: Pool.PENDING, State.FAILED: Pool.ERROR}


def next_state(state: State, event: Event) -> State:
    """Return the state after ``event``, or raise IllegalTransitionError."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(state, event) from None


def sources(event: Event) -> tuple[State, ...]:
    """Return the states in which ``event`` is allowed, in the order of the enum."""
    return tuple(state for state in State if (state, event) in TRANSITIONS)


def pool_of(state: State) -> Pool:
    return _POOLS.get(state, Pool.COMPLETED)


def states_in(pool: Pool) -> tuple[State, ...]:
    return tuple(state for state in State if pool_of(state) is pool)
