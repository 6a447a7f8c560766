"""The kinds of the matrix: many, each with a name of its own, each readable."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import dev.torture.__main__ as command
from dev.torture import matrix
from dev.torture.failpoints import read
from dev.torture.kinds import KINDS, OF_A_POOLER, OF_BATCHES, Kind, together
from dev.torture.surroundings import Surroundings
from tests.cases import in_one_test


def test_there_are_more_than_forty_and_no_two_have_one_name() -> None:
    names = [kind.name for kind in (*KINDS, *OF_A_POOLER, *OF_BATCHES)]

    assert len(set(names)) == len(names) >= 40


@in_one_test("kind", [*KINDS, *OF_A_POOLER, *OF_BATCHES])
def test_each_kind_does_something(kind: Kind) -> None:
    assert re.fullmatch(r"F\d\d ([a-z]|SIG).*", kind.name)
    assert bool(kind.hurt) != bool(read(kind.failpoints))


@pytest.mark.parametrize("page", ["Makefile", "docs/guarantees.md"])
def test_what_is_told_of_their_number_is_true(project: Path, page: str) -> None:
    told = re.findall(r"(\d+) kinds\s+of\s+faults", (project / page).read_text())

    assert told == [str(len(KINDS))]


def test_kinds_are_chosen_by_words_of_their_names() -> None:
    usual = Surroundings()

    assert matrix.chosen("F17, half of what", usual)
    assert {kind.name[:3] for kind in matrix.chosen("F17,F18", usual)} == {"F17", "F18"}
    assert matrix.chosen("", usual) == list(KINDS)
    assert matrix.chosen("no such thing", usual) == []
    assert matrix.chosen("", usual, batches=True) == [*KINDS, *OF_BATCHES]


def test_what_happens_to_a_pooler_is_drawn_only_where_there_is_one() -> None:
    names = {kind.name for kind in OF_A_POOLER if kind.hurt}

    for surroundings in (Surroundings(), Surroundings(pgbouncer=True)):
        drawn = {name for name, _ in together(surroundings, engine=False, rarer=1)[0]}
        there = names if surroundings.pgbouncer else set()

        assert drawn & names == there
        assert {kind.name for kind in matrix.chosen("", surroundings)} & names == there


def test_a_page_names_what_its_runs_stood_on_and_how_to_have_it_again() -> None:
    surroundings = Surroundings(16, pgbouncer=True, rabbitmq=True)

    assert surroundings.options == " --postgres 16 --pgbouncer --rabbitmq"
    assert (
        "a PostgreSQL 16 behind a PgBouncer in transaction mode, a RabbitMQ" in surroundings.words
    )
    assert Surroundings().options == ""


def test_words_that_name_no_kind_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["torture", "matrix", "--only", "F17 F18"])

    assert command.main() == 2

    assert "Separate words by commas" in capsys.readouterr().err
