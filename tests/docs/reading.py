"""How the tests read the documents: code blocks, links, names of tests, tables."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dev.documents.site.navigation import OF_THE_SITE

PROJECT = Path(__file__).parents[2]
NOT_IN_GIT = {PROJECT / "docs" / "reference" / f"{name}.md" for name in OF_THE_SITE}
DOCUMENTS = sorted({*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")} - NOT_IN_GIT)


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


def lost_links(document: Path, page: str) -> list[str]:
    """Links that lead to no file or heading; only pages of the site may link to those."""
    lost = []
    for target, _ in links(page):
        file, _, anchor = target.partition("#")
        there = document.parent / file if file else document
        there = Path(os.path.normpath(there))
        if there in NOT_IN_GIT - {document}:
            lost += [target] * (document not in NOT_IN_GIT)
        elif there != document and not there.exists():
            lost.append(target)
        elif anchor and there.suffix == ".md":
            text = page if there == document else there.read_text()
            lost += [target] * (anchor not in anchors(text))
    return lost


def named_tests(page: str) -> list[tuple[str, str]]:
    """File and function, or class, of every test that a page names."""
    return re.findall(r"(tests/[\w/]+\.py)::((?:test_|Test)\w+)", page)


def named_files(page: str) -> list[str]:
    """Every file and folder of the checkout that a page names in backticks."""
    tops = {path.name for root in (PROJECT, PROJECT / "tasks_app") for path in root.iterdir()}
    found = re.findall(r"`([\w./-]+)(?:::\w+)?`", page)
    return [each for each in found if each.endswith(".py") or each.partition("/")[0] in tops]


def models(page: str) -> list[str]:
    """The configurations of the model that a page names."""
    return re.findall(r"model: `([^`]+)`", page)


def section(page: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    return page.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]


def first_column(markdown: str) -> list[str]:
    """The words in backticks that begin the rows of a table."""
    return re.findall(r"^\| `([^`]+)` \|", markdown, re.MULTILINE)


def anchors(page: str) -> set[str]:
    """The headings of a page, as links name them."""
    found = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in found)
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


def _prose(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
