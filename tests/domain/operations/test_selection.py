"""What an operator may mean."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.operations import MOST_IDS, BulkAction, Selection, parse_selection
from tasks_app.domain.tasks.states import Pool, State


def test_each_action_has_its_pool() -> None:
    assert parse_selection(BulkAction.CANCEL, {"name": "t"}).pool is Pool.PENDING
    assert parse_selection(BulkAction.REQUEUE, {"name": "t"}).pool is Pool.ERROR
    assert (
        parse_selection(BulkAction.REQUEUE, {"name": "t", "state": "cancelled"}).pool
        is Pool.COMPLETED
    )
    assert parse_selection(BulkAction.EDIT, {"name": "t"}).state is State.PENDING
    assert parse_selection(BulkAction.EDIT, {"name": "t", "pool": "error"}).state is None


@pytest.mark.parametrize(
    ("action", "given", "problem"),
    [
        (BulkAction.CANCEL, {}, "selects every task"),
        (BulkAction.CANCEL, {"pool": "pending", "ids": ()}, "selects every task"),
        (BulkAction.CANCEL, {"state": "RUNNING"}, "selects every task"),
        (BulkAction.CANCEL, {"name": "t", "pool": "error"}, "Only tasks of the pool pending"),
        (
            BulkAction.REQUEUE,
            {"name": "t", "state": "PENDING"},
            "Only tasks of the pool error or comp",
        ),
        (BulkAction.REQUEUE, {"name": "t", "pool": "error", "state": "SKIPPED"}, "Only tasks"),
        (BulkAction.EDIT, {"name": "t", "state": "RUNNING"}, "already has its payload"),
        (BulkAction.CANCEL, {"name": "t", "state": "LATE"}, "There is no state"),
        (BulkAction.CANCEL, {"name": "t", "pool": "big"}, "There is no pool"),
        (BulkAction.CANCEL, {"older_than": "soon"}, "older_than is 'soon'"),
        (BulkAction.CANCEL, {"colour": "red"}, "Tasks cannot be selected by colour"),
        (BulkAction.CANCEL, {"ids": range(MOST_IDS + 1)}, "too many"),
    ],
)
def test_what_cannot_be_meant_is_refused(action: BulkAction, given: Any, problem: str) -> None:
    with pytest.raises(InvalidSelectionError, match=problem):
        parse_selection(action, given)


def test_it_is_read_again_as_it_was_written() -> None:
    chosen = parse_selection(
        BulkAction.CANCEL,
        {"name": "t", "older_than": "90m", "newer_than": timedelta(days=2), "ids": [3, 1, 3]},
    )

    assert chosen == parse_selection(BulkAction.CANCEL, chosen.plain())
    assert chosen == Selection(
        Pool.PENDING,
        name="t",
        older_than=timedelta(minutes=90),
        newer_than=timedelta(days=2),
        ids=(1, 3),
    )
