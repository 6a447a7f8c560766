"""How the tests read the documents: code blocks, links, names of tests, tables."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for path in (
        *PROJECT.glob("*.md"),
        *(PROJECT / "docs").glob("*.md"),
        *(PROJECT / "docs" / "decisions").glob("*.md"),
    )
)


def text_of(name: str) -> str:
    """A document of the checkout."""
    return (PROJECT / name).read_text()


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def links(page: str) -> list[tuple[str, str]]:
    """Targets with their titles, of links that stay in the checkout; a title names a test."""
    found = re.findall(r'\]\(([^)\s]+)(?: "([^"]*)")?\)', _prose(page))
    return [(target, title) for target, title in found if "://" not in target]


def named_tests(page: str) -> list[tuple[str, str]]:
    """File and function of every test that a page names."""
    return re.findall(r"(tests/[\w/]+\.py)::(test_\w+)", page)


def models(page: str) -> list[str]:
    """The configurations of the model that a page names."""
    return re.findall(r"model: `([^`]+)`", page)


def section(page: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    return page.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]


def first_column(markdown: str) -> list[str]:
    """The words in backticks that begin the rows of a table."""
    return re.findall(r"^\| `([^`]+)` \|", markdown, re.MULTILINE)


def _prose(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
