"""The sidebar, and links to pages that only the site has.

What the tables of a README list is below it in the sidebar, in their order. A page that no table
lists is in no sidebar; Sphinx says so, and ``make site`` fails.

Some generated pages are not in git. Pages link to the heading of docs/reference/README.md that says
how to get one without the site; on the site the link leads to the page itself.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_SECTION = re.compile(r"^## ", re.MULTILINE)
_LISTED = re.compile(r"^\|(?:[^|\n]*\|)?? *\[([^\]]+)\]\(([^)#\s]+\.md)\) *\|", re.MULTILINE)
_WORDS = re.compile(r"[A-Za-z]{2}")
OF_THE_SITE = (
    *("actions", "commands", "exports", "figures"),
    *("hooks", "schema", "sql", "test-kit"),
)
"""Pages of docs/reference that are not in git, and the headings that stand in for them."""
_STANDS_IN = re.compile(rf"README\.md#({'|'.join(OF_THE_SITE)})\)")


def entries(page: str, *, own: bool) -> list[tuple[str, str]]:
    """Titles and targets of the pages that tables list; ``own``: those of the same folder only."""
    found = [(title.replace("`", ""), target) for title, target in _LISTED.findall(page)]
    return [(title, target) for title, target in found if not own or "/" not in target]


def on_the_site(page: str) -> str:
    """The page with links to what only the site has."""
    return _STANDS_IN.sub(r"\1.md)", page)


def trees(name: str, page: str) -> str:
    """The page with what Sphinx needs to know of its contents; nothing of it is shown."""
    home = name == "docs/README"
    parts = _SECTION.split(page)
    found = [page]
    for part in parts if home else [page]:
        caption = part.partition("\n")[0] if home and part is not parts[0] else ""
        if listed := entries(part, own=not home):
            found.append(_tree(name, caption, listed))
    return "\n\n".join(found)


def _tree(name: str, caption: str, listed: list[tuple[str, str]]) -> str:
    lines = [_line(name, title, target) for title, target in listed]
    named = [f":caption: {caption}"] if caption else []
    return "\n".join(["```{toctree}", ":hidden:", *named, "", *lines, "```"])


def _line(name: str, title: str, target: str) -> str:
    path = PurePosixPath(name).parent / target.removesuffix(".md")
    page = "/".join(_normal(path.parts))
    return f"{title[0].upper()}{title[1:]} </{page}>" if _WORDS.search(title) else f"/{page}"


def _normal(parts: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for part in parts:
        if part == "..":
            found.pop()
        else:
            found.append(part)
    return found


def _add(app: Sphinx, name: str, content: list[str]) -> None:  # noqa: ARG001
    content[0] = on_the_site(content[0])
    if name.startswith("docs/") and name.endswith("README"):
        content[0] = trees(name, content[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _add)
    return {"parallel_read_safe": True}
