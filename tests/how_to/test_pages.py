"""Every guide is in the contents, is short, says what happens when it fails, and is tested."""

from __future__ import annotations

import re

import pytest

from tests.docs.reading import PROJECT
from tests.how_to.pages import FOLDER, PAGES, files, page

TESTS = "\n".join(path.read_text() for path in (PROJECT / "tests/how_to").glob("test_*.py"))
CONTENTS = (FOLDER / "README.md").read_text()

each = pytest.mark.parametrize("name", PAGES)


@each
def test_it_is_in_the_contents(name: str) -> None:
    assert f"]({name}.md)" in CONTENTS


@each
def test_it_is_short_and_says_what_happens_when_it_fails(name: str) -> None:
    text = page(name)
    assert len(text.splitlines()) <= 120
    assert "\n## When it fails\n" in text
    assert "\nRead on: " in text


@each
def test_each_of_its_files_is_loaded_by_a_test(name: str) -> None:
    assert [file for file in files(name) if f'"{name}/{file}"' not in TESTS] == []


@each
def test_it_has_no_block_of_a_kind_that_nobody_tests(name: str) -> None:
    tested = {"python", "bash", "console", "ini", "yaml", "sql"}
    assert set(re.findall(r"^```(\w*)$", page(name), re.MULTILINE)) - {""} <= tested


@each
def test_blocks_other_than_python_are_read_by_its_own_test(name: str) -> None:
    kinds = set(re.findall(r"^```(ini|yaml|sql)$", page(name), re.MULTILINE))
    own = PROJECT / "tests/how_to" / f"test_{name.replace('-', '_')}.py"
    assert not kinds or all(f'"{kind}"' in own.read_text() for kind in kinds)
