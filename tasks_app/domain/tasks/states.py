"""The life of a task: states, events, and the one table that says which leads where.

Guards in SQL, the diagram in ``docs/lifecycle.md`` and the CHECK constraints all come from here.
"""

from __future__ import annotations

from enum import StrEnum

from tasks_app.domain.errors import IllegalTransitionError


class State(StrEnum):
    """Where a task is in its life; the words that the database stores."""

    PENDING = "PENDING"
    """Waits to become due, or to be claimed."""
    RUNNING = "RUNNING"
    """Claimed by one worker child, under a lease."""
    SUCCEEDED = "SUCCEEDED"
    """Its handler returned."""
    SKIPPED = "SKIPPED"
    """Nothing to do: its handler said so, or it was disabled when it became due."""
    CANCELLED = "CANCELLED"
    """Stopped on purpose."""
    EXPIRED = "EXPIRED"
    """Became due after its ``expires_at``."""
    FAILED = "FAILED"
    """Out of attempts, or failed at once; an operator may requeue it."""


class Pool(StrEnum):
    """The table a row lies in: half of its state."""

    PENDING = "pending"
    COMPLETED = "completed"
    ERROR = "error"


class Event(StrEnum):
    """What can happen to a task."""

    CLAIM = "claim"
    SUCCEED = "succeed"
    SKIP = "skip"
    CANCEL = "cancel"
    EXPIRE = "expire"
    FAIL = "fail"
    RETRY = "retry"
    """Again later; one failure is charged unless a rule says otherwise."""
    SNOOZE = "snooze"
    """Again later, because the handler asked for it; nothing is charged."""
    RELEASE = "release"
    """Given back unstarted or through no fault of its own; nothing is charged."""
    RESCUE = "rescue"
    """Its lease is over, or its child or its connection died with it: the machine returns it."""
    REQUEUE = "requeue"
    """An operator returns it."""


_P, _R = State.PENDING, State.RUNNING
TERMINAL: tuple[State, ...] = (
    State.SUCCEEDED,
    State.SKIPPED,
    State.CANCELLED,
    State.EXPIRED,
    State.FAILED,
)

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
    """Return the state that ``event`` leads to.

    Raises:
        IllegalTransitionError: ``event`` is not admitted in ``state``.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(state, event) from None


def sources(event: Event) -> tuple[State, ...]:
    """Return the states in which ``event`` is admitted, in the order of the enumeration."""
    return tuple(state for state in State if (state, event) in TRANSITIONS)


def pool_of(state: State) -> Pool:
    """Return the pool in which a row of this state lies."""
    return _POOLS.get(state, Pool.COMPLETED)


def states_in(pool: Pool) -> tuple[State, ...]:
    """Return the states that rows of this pool may have."""
    return tuple(state for state in State if pool_of(state) is pool)
