"""What may be asked for, and in which order."""

from __future__ import annotations

import pytest

from tasks_app.domain.locks import MOST_RESOURCES, LockMode, LockPart, lock_parts
from tasks_app.locks import InvalidLockError


def test_a_group_is_in_one_order_whoever_names_it() -> None:
    one = lock_parts(["b", "ä", "B"], ["a"], {"c": 3})
    other = lock_parts(("B", "b", "ä"), "a", {"c": 3})

    assert one == other
    assert [part.resource for part in one] == ["B", "a", "b", "c", "ä"]
    assert one[3] == LockPart("c", LockMode.COUNTED, 3)


def test_a_text_is_one_name() -> None:
    assert lock_parts("account:7") == (LockPart("account:7", LockMode.EXCLUSIVE),)


@pytest.mark.parametrize(
    ("group", "says"),
    [
        ({}, "locks name no resource. Allowed: at least one."),
        ({"exclusive": [""]}, "exclusive has '' in it"),
        ({"shared": ["x" * 256]}, "shared has 'xxxx"),
        ({"exclusive": ["a\0b"]}, "exclusive has 'a"),
        ({"exclusive": ["\ud800"]}, "exclusive has"),
        ({"exclusive": [7]}, "exclusive has a int in it"),
        ({"exclusive": ["a"], "shared": ["a"]}, "shared names 'a' again"),
        ({"exclusive": ["a", "a"]}, "exclusive names 'a' again"),
        ({"counted": {"a": 0}}, r"counted\['a'\] is not a number of holders"),
        ({"counted": {"a": True}}, r"counted\['a'\] is not a number of holders"),
        ({"counted": {"a": 1.5}}, r"counted\['a'\] is not a number of holders"),
        ({"exclusive": map(str, range(MOST_RESOURCES + 1))}, "locks name 101 resources"),
    ],
)
def test_what_cannot_be_is_refused_by_name(group: dict, says: str) -> None:
    with pytest.raises(InvalidLockError, match=says):
        lock_parts(**group)
