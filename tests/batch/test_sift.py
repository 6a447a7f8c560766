"""Halving finds the rows that fail, and does all others once, in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_app.batch.execution.chunk import process_by_halves


@given(st.integers(0, 70), st.sets(st.integers(0, 69), max_size=8))
def test_all_rows_but_the_bad_ones_are_done_once_and_in_order(number: int, bad: set[int]) -> None:
    done: list[int] = []
    judged: list[int] = []
    calls = 0

    def do(part: Sequence[int]) -> None:
        nonlocal calls
        calls += 1
        if bad.intersection(part):
            raise LookupError
        done.extend(part)

    process_by_halves(range(number), do, lambda row, _: judged.append(row), lambda _: True)

    assert done == [row for row in range(number) if row not in bad]
    assert judged == sorted(bad.intersection(range(number)))
    assert calls <= 1 + 2 * 7 * len(judged)  # of each bad row, its halves down to itself


def test_what_no_row_is_to_blame_for_comes_out_at_once() -> None:
    calls = []

    def do(part: Sequence[int]) -> None:
        calls.append(part)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        process_by_halves(
            [1, 2, 3], do, lambda *_: None, lambda error: not isinstance(error, ConnectionError)
        )
    assert len(calls) == 1


def test_what_the_judge_raises_comes_out() -> None:
    def do(part: Sequence[int]) -> None:
        if 2 in part:
            raise LookupError

    def judge(row: int, error: Exception) -> None:
        raise KeyError(row) from error

    with pytest.raises(KeyError):
        process_by_halves([1, 2, 3], do, judge, lambda _: True)
