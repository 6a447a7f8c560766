"""The one table that says which event leads where."""

from __future__ import annotations

import pytest

from tasks_app.domain.errors import IllegalTransitionError
from tasks_app.domain.tasks.states import (
    TERMINAL,
    TRANSITIONS,
    Event,
    Pool,
    State,
    next_state,
    pool_of,
    sources,
    states_in,
)

LEGAL = {
    ("PENDING", "claim", "RUNNING"),
    ("PENDING", "skip", "SKIPPED"),
    ("PENDING", "cancel", "CANCELLED"),
    ("PENDING", "expire", "EXPIRED"),
    ("RUNNING", "succeed", "SUCCEEDED"),
    ("RUNNING", "skip", "SKIPPED"),
    ("RUNNING", "cancel", "CANCELLED"),
    ("RUNNING", "fail", "FAILED"),
    ("RUNNING", "retry", "PENDING"),
    ("RUNNING", "snooze", "PENDING"),
    ("RUNNING", "release", "PENDING"),
    ("RUNNING", "rescue", "PENDING"),
    ("SUCCEEDED", "requeue", "PENDING"),
    ("SKIPPED", "requeue", "PENDING"),
    ("CANCELLED", "requeue", "PENDING"),
    ("EXPIRED", "requeue", "PENDING"),
    ("FAILED", "requeue", "PENDING"),
}


def test_the_table_holds_exactly_the_moves_of_the_design() -> None:
    moves = {(s.value, e.value, to.value) for (s, e), to in TRANSITIONS.items()}

    assert moves == LEGAL


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_an_event_leads_where_the_table_says_or_is_refused_by_name(
    state: State, event: Event
) -> None:
    targets = [to for s, e, to in LEGAL if (s, e) == (state, event)]

    if targets:
        assert [next_state(state, event)] == targets
    else:
        with pytest.raises(IllegalTransitionError, match=rf"{event} .* {state}"):
            next_state(state, event)


def test_only_the_claim_leads_to_running() -> None:
    assert [move for move, to in TRANSITIONS.items() if to is State.RUNNING] == [
        (State.PENDING, Event.CLAIM)
    ]


def test_the_only_way_out_of_a_terminal_state_is_requeue() -> None:
    assert {event for (state, event) in TRANSITIONS if state in TERMINAL} == {Event.REQUEUE}


def test_each_state_lies_in_exactly_one_pool() -> None:
    assert {pool: states_in(pool) for pool in Pool} == {
        Pool.PENDING: (State.PENDING, State.RUNNING),
        Pool.COMPLETED: (State.SUCCEEDED, State.SKIPPED, State.CANCELLED, State.EXPIRED),
        Pool.ERROR: (State.FAILED,),
    }
    assert all(state in states_in(pool_of(state)) for state in State)


def test_the_sources_of_an_event_are_the_states_that_admit_it() -> None:
    assert sources(Event.CANCEL) == (State.PENDING, State.RUNNING)
    assert sources(Event.REQUEUE) == TERMINAL
    assert sources(Event.SUCCEED) == (State.RUNNING,)
