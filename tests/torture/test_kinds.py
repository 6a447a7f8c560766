"""The kinds of the matrix: many, each with a name of its own, each readable."""

from __future__ import annotations

import re

import pytest

from torture import matrix
from torture.failpoints import read
from torture.kinds import KINDS, Kind


def test_there_are_more_than_forty_and_no_two_have_one_name() -> None:
    names = [kind.name for kind in KINDS]

    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_does_something(kind: Kind) -> None:
    assert re.fullmatch(r"F\d\d ([a-z]|SIG).*", kind.name)
    assert bool(kind.hurt) != bool(read(kind.failpoints))


def test_kinds_are_chosen_by_words_of_their_names() -> None:
    assert matrix.chosen("F17, half of what")
    assert {kind.name[:3] for kind in matrix.chosen("F17,F18")} == {"F17", "F18"}
    assert matrix.chosen("") == list(KINDS)
    assert matrix.chosen("no such thing") == []
