"""The guides and their code blocks: a block whose first line is ``# file.py`` is a whole file."""

from __future__ import annotations

import re

from tests.docs.reading import PROJECT, blocks, text_of

FOLDER = PROJECT / "docs/how-to"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
FILE = re.compile(r"# (\w+\.py)\n")


def page(name: str) -> str:
    """The text of a guide."""
    return text_of(f"docs/how-to/{name}.md")


def files(name: str) -> dict[str, str]:
    """The Python files of a guide."""
    found = {}
    for block in blocks(page(name), "python"):
        first = FILE.match(block)
        assert first is not None, f"{name}: a block has no name: {block[:60]}"
        found[first[1]] = block
    return found
