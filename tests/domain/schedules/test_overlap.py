"""Each overlap policy with one and several instants, nobody there and somebody there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tasks_app.domain.schedules.misfire import Fired, Overlap, OverlapVerdict, judge_overlap

A, B, C = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 2, 3))


@pytest.mark.parametrize(
    ("policy", "busy", "expected"),
    [
        ("allow", False, OverlapVerdict(made=[A, B])),
        ("allow", True, OverlapVerdict(made=[A, B])),
        ("skip", False, OverlapVerdict(made=[A], without={B: Fired.SKIPPED})),
        ("skip", True, OverlapVerdict(without={A: Fired.SKIPPED, B: Fired.SKIPPED})),
        ("queue", False, OverlapVerdict(made=[A], queued=B)),
        ("queue", True, OverlapVerdict(queued=A, without={B: Fired.SKIPPED})),
        ("replace", False, OverlapVerdict(made=[B], without={A: Fired.REPLACED})),
        ("replace", True, OverlapVerdict(made=[B], without={A: Fired.REPLACED}, cancels=True)),
    ],
)
def test_two_instants(policy: str, busy: bool, expected: OverlapVerdict) -> None:
    assert judge_overlap(Overlap(policy), [A, B], None, busy=busy) == expected


@pytest.mark.parametrize(
    ("policy", "busy", "expected"),
    [
        ("allow", True, OverlapVerdict(made=[A, B])),
        ("skip", True, OverlapVerdict(without={A: Fired.SKIPPED, B: Fired.SKIPPED})),
        ("queue", False, OverlapVerdict(made=[A], queued=B)),
        ("queue", True, OverlapVerdict(queued=A, without={B: Fired.SKIPPED})),
        ("replace", True, OverlapVerdict(made=[B], without={A: Fired.REPLACED}, cancels=True)),
    ],
)
def test_one_that_was_queued_goes_first(policy: str, busy: bool, expected: OverlapVerdict) -> None:
    assert judge_overlap(Overlap(policy), [B], A, busy=busy) == expected


@pytest.mark.parametrize("policy", Overlap)
@pytest.mark.parametrize("busy", [True, False])
def test_no_instant_is_lost_and_nothing_is_made_of_nothing(policy: Overlap, busy: bool) -> None:
    instants = [A + n * timedelta(minutes=1) for n in range(5)]

    verdict = judge_overlap(policy, instants, None, busy=busy)

    queued = [] if verdict.queued is None else [verdict.queued]
    assert sorted([*verdict.made, *queued, *verdict.without]) == instants
    assert judge_overlap(policy, [], None, busy=busy) == OverlapVerdict()
