"""Each end of a run is an outcome, and its number stays."""

from __future__ import annotations

import pytest

from tasks_app.domain.statistics import FINAL, CountedOutcome, outcome_of, state_of
from tasks_app.domain.tasks.states import TERMINAL, TRANSITIONS, Event, State


def test_the_numbers_are_those_that_are_stored() -> None:
    assert {outcome.name: outcome.value for outcome in CountedOutcome} == {
        "DONE": 1,
        "SKIPPED": 2,
        "CANCELLED": 3,
        "EXPIRED": 4,
        "FAILED": 5,
        "RETRIED": 6,
        "RELEASED": 7,
        "RESCUED": 8,
        "SNOOZED": 9,
        "STALE": 11,
        "DUPLICATE": 12,
        "UNKEPT": 13,
        "LEFT": 14,
    }


@pytest.mark.parametrize(
    ("event", "state"),
    [(event, to) for (source, event), to in TRANSITIONS.items() if source is State.RUNNING],
)
def test_every_way_out_of_running_is_counted(event: Event, state: State) -> None:
    assert outcome_of(state, event) in CountedOutcome


def test_a_task_that_was_cancelled_meanwhile_is_cancelled() -> None:
    assert outcome_of(State.CANCELLED, Event.RETRY) is CountedOutcome.CANCELLED


def test_the_final_ones() -> None:
    assert [state_of(outcome) for outcome in FINAL] == list(TERMINAL)
    assert state_of(CountedOutcome.RETRIED) is None
