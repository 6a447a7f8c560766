"""What is said to go is what warns."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.reading import PROJECT, section, text_of

PAGE = text_of("docs/reference/deprecation.md")


def warned(files: list[Path]) -> list[str]:
    """Files whose code tells somebody that a name goes."""
    mark = re.compile(r"DeprecationWarning|typing_extensions import .*deprecated|deprecated=True")
    return [str(file.relative_to(PROJECT)) for file in files if mark.search(file.read_text())]


def test_what_warns_is_on_the_page() -> None:
    files = warned(sorted((PROJECT / "tasks_app").rglob("*.py")))
    listed = section(PAGE, "Deprecated now").strip()

    assert files == [] if listed == "Nothing." else files != []


def test_the_changelog_has_a_section_for_each_thing_that_is_listed() -> None:
    newest = text_of("CHANGELOG.md").partition("\n## [")[0]
    nothing = section(PAGE, "Deprecated now").strip() == "Nothing."

    assert ("\n### Deprecated" in newest) is not nothing
