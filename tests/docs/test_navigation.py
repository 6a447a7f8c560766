"""Every page of docs/ is listed by a table of its folder's README: so the site's sidebar has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev.documents.site.address import address
from dev.documents.site.navigation import OF_THE_SITE, entries, on_the_site, trees
from tests.docs.reading import DOCUMENTS, PROJECT, text_of

DOCS = PROJECT / "docs"
FOLDERS = sorted({path.parent for path in DOCS.rglob("*.md")})


def listed(folder: Path) -> set[Path]:
    readme = folder / "README.md"
    if not readme.exists():
        return set()
    found = entries(readme.read_text(), own=folder != DOCS)
    return {(folder / target).resolve() for _, target in found}


@pytest.mark.parametrize("folder", FOLDERS, ids=[str(f.relative_to(PROJECT)) for f in FOLDERS])
def test_a_readme_lists_the_pages_of_its_folder(folder: Path) -> None:
    pages = {path for path in DOCUMENTS if path.parent == folder and path.name != "README.md"}
    below = {path / "README.md" for path in folder.iterdir() if (path / "README.md").exists()}

    assert (pages | below) - listed(folder) - listed(DOCS) == set()


def test_the_readme_of_docs_lists_what_only_the_site_has() -> None:
    found = entries(on_the_site(text_of("docs/README.md")), own=False)

    assert {f"reference/{name}.md" for name in OF_THE_SITE} <= {target for _, target in found}


def test_the_readme_of_docs_lists_pages_under_its_headings() -> None:
    shown = trees("docs/README", text_of("docs/README.md"))
    captions = re.findall(r"^:caption: (.*)$", shown, re.MULTILINE)

    assert captions == re.findall(r"^## (.*)$", text_of("docs/README.md"), re.MULTILINE)
    assert "Producing tasks </docs/producing>" in shown
    assert "Overview </README>" in shown


def test_a_page_that_is_listed_by_number_has_its_own_title_in_the_sidebar() -> None:
    table = "# Decisions\n\n| | decision |\n|---|---|\n| [0001](0001-a.md) | A |\n"

    assert "\n/docs/decisions/0001-a\n" in trees("docs/decisions/README", table)


@pytest.mark.parametrize(
    ("page", "there"),
    [
        ("docs/README", "index.html"),
        ("docs/producing", "producing.html"),
        ("docs/from/README", "from/index.html"),
        ("README", "README.html"),
        ("source/tests/conftest.py", "source/tests/conftest.py.html"),
    ],
)
def test_docs_is_the_root_of_the_site(page: str, there: str) -> None:
    assert address(page) == there
