"""The list of mutants is true: of this tree, and of tests that there are."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from dev.torture.mutants.all import ALL
from dev.torture.mutants.change import Change, Mutant, StaleMutantError, apply, restore
from dev.torture.mutants.trial import Trial
from tests.cases import in_one_test
from tests.conftest import CASES

each = in_one_test("mutant", ALL)


@each
def test_what_it_changes_is_there_and_still_python_afterwards(
    mutant: Mutant, project: Path, tmp_path: Path
) -> None:
    for file in mutant.files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((project / file).read_text())
    before = apply(mutant, tmp_path)
    for file in mutant.files:
        if file.endswith(".py"):
            ast.parse((tmp_path / file).read_text())
        assert (tmp_path / file).read_text() != before[file]
    restore(before, tmp_path)
    assert [(tmp_path / f).read_text() for f in mutant.files] == list(before.values())


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def names_of(node: ast.AST) -> list[str]:
    """A test may be imported from the support module that several test files share."""
    if isinstance(node, ast.ImportFrom):
        return [imported.name for imported in node.names]
    return [getattr(node, "name", "")]


@each
def test_the_tests_that_it_names_are_there(mutant: Mutant, project: Path) -> None:
    assert mutant.tests
    for test in mutant.tests:
        file, *names = test.split("::")
        within: ast.AST = parsed(project / file)
        for name in names:
            found = [
                n for n in ast.iter_child_nodes(within) if name.partition("[")[0] in names_of(n)
            ]
            assert found, f"{test} is not there"
            within = found[0]


def test_so_are_their_cases_as_far_as_this_run_has_collected_them(
    request: pytest.FixtureRequest,
) -> None:
    cases = request.config.stash[CASES]
    by_hand = {each.partition("[")[0] for each in request.config.args if "[" in each}
    collected = {case.partition("[")[0] for case in cases} - by_hand
    named = {test for mutant in ALL for test in mutant.tests if "[" in test}
    looked_at = {test for test in named if test.partition("[")[0] in collected}
    assert looked_at <= cases


def test_there_are_at_least_twenty_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL) >= 20


def test_a_mutant_of_another_tree_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\n")
    mutant = Mutant("m", "r", (Change("a.py", "one", "1"), Change("a.py", "three", "3")), ("t",))
    with pytest.raises(StaleMutantError, match="0 times"):
        apply(mutant, tmp_path)
    assert (tmp_path / "a.py").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("trial", "caught"),
    [
        (Trial((("t", "AssertionError"),), 3, 1.0), True),
        (Trial((("t", "ImportError"), ("u", "ProgrammingError")), 0, 1.0), False),
        (Trial((), 3, 1.0), False),
        (Trial((("t", "AssertionError"),), 3, 1.0, "the tests ran on other code"), False),
    ],
)
def test_only_a_verdict_on_the_products_own_code_counts(trial: Trial, caught: bool) -> None:
    assert trial.caught is caught
