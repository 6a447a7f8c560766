"""Breakers: what outcomes lead to, without a database."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tasks_app.domain.flow_control.circuit_breaker import (
    FIRST_RAMP,
    LONGEST_RAMP,
    Breaker,
    BreakerMode,
    BreakerState,
    StoredBreaker,
    check_breaker,
    failures_to_open,
    next_ramp,
    step_after_calls,
    step_after_wait,
)

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
BANK = Breaker("bank", ratio=0.5, least=4, probes=2)


def standing(state: BreakerState, good: int = 0, bad: int = 0, **given: object) -> StoredBreaker:
    values = {"mode": BreakerMode.AUTO, "since": NOON, "at": NOON, **given}
    return StoredBreaker(
        BANK, ["t"], state, look_at=None, good=good, bad=bad, let_through=0, let_at=None,
        reason="", **values,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "good", "bad", "goes_to"),
    [
        (BreakerState.CLOSED, 0, 3, None),
        (BreakerState.CLOSED, 2, 2, BreakerState.OPEN),
        (BreakerState.CLOSED, 3, 2, None),
        (BreakerState.RAMPING, 2, 2, BreakerState.OPEN),
        (BreakerState.PROBING, 1, 0, None),
        (BreakerState.PROBING, 2, 0, BreakerState.RAMPING),
        (BreakerState.PROBING, 5, 1, BreakerState.OPEN),
        (BreakerState.OPEN, 0, 99, None),
        (BreakerState.OPEN, 99, 0, None),
    ],
)
def test_outcomes(state: BreakerState, good: int, bad: int, goes_to: BreakerState | None) -> None:
    step = step_after_calls(standing(state, good, bad))

    assert (step and step.state) == goes_to


@pytest.mark.parametrize("mode", [BreakerMode.OPEN, BreakerMode.CLOSED])
@pytest.mark.parametrize("state", list(BreakerState))
def test_an_operators_word_outranks_all_outcomes(mode: BreakerMode, state: BreakerState) -> None:
    late = standing(state, 5, 99, mode=mode, at=NOON + timedelta(days=1))

    assert step_after_calls(late) is None
    assert step_after_wait(late) is None


def test_an_open_one_probes_when_its_time_is_over() -> None:
    early = standing(BreakerState.OPEN, at=NOON + timedelta(seconds=29))
    late = standing(BreakerState.OPEN, at=NOON + timedelta(seconds=30))

    assert step_after_wait(early) is None
    assert (step := step_after_wait(late)) is not None
    assert step.state is BreakerState.PROBING


def test_the_ramp_doubles_up_to_a_limit() -> None:
    rates = [next_ramp(0)]
    while rates[-1] < LONGEST_RAMP:
        rates.append(next_ramp(rates[-1]))

    assert rates[:3] == [FIRST_RAMP, 2 * FIRST_RAMP, 4 * FIRST_RAMP]
    assert rates[-1] == LONGEST_RAMP == next_ramp(LONGEST_RAMP)


@pytest.mark.parametrize(
    "wrong",
    [
        "a b", "", 7, Breaker("bank", ratio=0), Breaker("bank", ratio=1.1),
        Breaker("bank", least=0), Breaker("bank", probes=0),
        Breaker("bank", window=timedelta(0)), Breaker("bank", open_for=timedelta(days=2)),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"depends_on|bank"):
        check_breaker(wrong)


@pytest.mark.parametrize(("good", "bad"), [(0, 0), (0, 3), (3, 0), (100, 7), (1, 1)])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0])
def test_so_many_failures_open_it_and_one_less_does_not(good: int, bad: int, ratio: float) -> None:
    now = replace(standing(BreakerState.CLOSED, good, bad), breaker=replace(BANK, ratio=ratio))

    left = failures_to_open(now)

    if left == math.inf:
        assert step_after_calls(replace(now, bad=10**9)) is None
    else:
        assert step_after_calls(replace(now, bad=bad + math.ceil(left))) is not None
        assert step_after_calls(replace(now, bad=bad + math.ceil(left) - 1)) is None


def test_what_failures_cannot_open_has_none_left() -> None:
    assert failures_to_open(standing(BreakerState.OPEN, 0, 9)) == math.inf
    assert failures_to_open(standing(BreakerState.CLOSED, mode=BreakerMode.CLOSED)) == math.inf
    assert failures_to_open(standing(BreakerState.PROBING, 1)) == 1
