"""Weights, floors and work conservation, without a database."""

from __future__ import annotations

from collections import Counter

import pytest

from tasks_app.domain.flow_control.admission import EVERY, FairQueueKey, Shares


def waiting(**keys: int | dict[int, int]) -> dict[FairQueueKey, list[int]]:
    """So many ids of each key, of priority 5 or of each priority; those of a line are in order."""
    lines: dict[FairQueueKey, list[int]] = {}
    first = 1
    for key, numbers in keys.items():
        for priority, number in ({5: numbers} if isinstance(numbers, int) else numbers).items():
            lines[FairQueueKey(key, priority)] = list(range(first, first + number))
            first += number
    return lines


def keys_of(shares: Shares, lines: dict[FairQueueKey, list[int]], most: int) -> list[str]:
    picks = shares.order(lines, most)
    shares.went(picks)
    for pick in picks:
        lines[pick.line].remove(pick.id)
    return [pick.line.key for pick in picks]


def test_keys_take_turns() -> None:
    assert "".join(keys_of(Shares(), waiting(a=9, b=9, c=9), 9)) == "abcabcabc"


def test_weights_are_shares_of_what_is_done() -> None:
    shares = Shares({"a": 3.0, "b": 0.5})

    went = Counter(keys_of(shares, waiting(a=1000, b=1000, c=1000), 900))

    assert went == {"a": 600, "b": 100, "c": 200}
    assert shares.share("a", ["a", "b", "c"]) == pytest.approx(600 / 900)


def test_what_one_leaves_the_others_have() -> None:
    """Work-conserving: nobody's share is kept for him while he has nothing to do."""
    assert Counter(keys_of(Shares({"a": 9.0}), waiting(a=5, b=100), 50)) == {"a": 5, "b": 45}


def test_who_was_idle_has_saved_nothing_up() -> None:
    shares = Shares()
    keys_of(shares, waiting(a=10_000), 1_000)

    assert Counter(keys_of(shares, waiting(a=100, b=100), 20)) == {"a": 10, "b": 10}


def test_a_new_key_does_not_wait_for_those_before_it() -> None:
    shares = Shares()
    lines = waiting(a=100_000)
    keys_of(shares, lines, 5_000)

    assert "b" in keys_of(shares, {**lines, FairQueueKey("b", 5): [10**6]}, 2)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_shares_hold_however_few_go_at_a_time(step: int) -> None:
    shares, lines, went = Shares({"a": 2.0}), waiting(a=900, b=900), Counter[str]()
    for _ in range(0, 900, step):
        went.update(keys_of(shares, lines, step))

    assert abs(went["a"] - 2 * went["b"]) <= 3


def test_who_was_picked_and_did_not_go_is_not_charged() -> None:
    shares, lines = Shares(), waiting(a=100, b=100)
    first = shares.order(lines, 10)
    shares.went(first[:1])

    assert [pick.line.key for pick in shares.order(waiting(a=100, b=100), 3)] == ["b", "a", "b"]


def test_a_key_s_better_priority_goes_first() -> None:
    picks = Shares().order(waiting(a={0: 5, 9: 5}), 5)

    assert {pick.line.priority for pick in picks} == {0}


def test_a_priority_of_one_key_is_nothing_to_another_key() -> None:
    assert Counter(keys_of(Shares(), waiting(a={0: 100}, b={9: 100}), 20)) == {"a": 10, "b": 10}


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_lowest_priority_gets_its_floor(step: int) -> None:
    """All ten wait all the time: each of the nine behind the first has one of EVERY."""
    shares, went = Shares(), Counter[int]()
    lines = waiting(a=dict.fromkeys(range(10), 2_000))
    for _ in range(0, 1_000, step):
        picks = shares.order(lines, step)
        shares.went(picks)
        for pick in picks:
            lines[pick.line].remove(pick.id)
            went[pick.line.priority] += 1

    total = went.total()
    assert all(went[priority] >= total // EVERY - 1 for priority in range(1, 10))
    assert went[0] >= total * (1 - 9 / EVERY) - 1


def test_a_floor_is_of_what_its_key_gets() -> None:
    shares, lines = Shares(), waiting(a={0: 5_000, 9: 5_000}, b=5_000)
    picks = shares.order(lines, 2_000)

    went = Counter(pick.line for pick in picks)
    assert went[FairQueueKey("b", 5)] == 1_000
    assert went[FairQueueKey("a", 9)] == pytest.approx(1_000 / EVERY, abs=1)


def test_what_did_not_have_to_wait_is_owed_nothing() -> None:
    shares = Shares()
    shares.went(shares.order(waiting(a={0: 100}), 100))

    picks = shares.order(waiting(a={0: 100, 9: 100}), EVERY - 1)

    assert {pick.line.priority for pick in picks} == {0}


def test_not_every_key_that_ever_was_is_remembered() -> None:
    shares = Shares(remembered=10)
    for number in range(100):
        shares.went(shares.order({FairQueueKey(f"k{number}", 5): [number]}, 1))

    assert len(shares._had) <= 10
