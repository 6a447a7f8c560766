"""The site's search: what static/search.js ranks, as a script, so that it also works from a disk.

Sphinx's own search and Pagefind find pages that have all words of a question: mostly none.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sphinx
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

from dev.documents.site.address import address

STEMMER = ("base-stemmer.js", "english-stemmer.js")
"""Of Snowball (BSD-3-Clause), as Sphinx brings it."""
FOR_MAINTAINERS = re.compile(
    r"docs/(decisions/|(architecture|performance|scaling|reference/(actions|figures|schema|sql))$)"
    r"|(CHANGELOG|CONTRIBUTING)$"
)
"""Pages that seldom answer a user's question: below others where both have its words."""


def _sections(app: Sphinx) -> Iterator[list[Any]]:
    for page in sorted(app.env.found_docs):
        weight = 0.4 if FOR_MAINTAINERS.match(page) else 1
        title = app.env.titles[page].astext()
        for section in app.env.get_doctree(page).findall(nodes.section):
            heading = section.next_node(nodes.title)
            text = " ".join(_text(each) for each in section.children if _is_text(each))
            anchor = "" if heading and heading.astext() == title else section["ids"][0]
            heading_text = heading.astext() if heading else ""
            yield [address(page), weight, title, heading_text, anchor, text]


def _text(node: nodes.Node) -> str:
    text = node.astext()
    if isinstance(node, nodes.table):
        text = text.replace("\n\n", " · ")
    return re.sub(r"\s+", " ", text)


def _is_text(node: nodes.Node) -> bool:
    return not isinstance(node, nodes.section | nodes.title | nodes.comment)


def _words_of_others(app: Sphinx) -> Iterator[list[str]]:
    """What other systems say, with our words for it: the last table of the glossary."""
    table = list(app.env.get_doctree("docs/glossary").findall(nodes.tbody))[-1]
    for row in table.findall(nodes.row):
        theirs, ours = (cell.astext().replace("/", " ") for cell in row.children)
        for word in theirs.split(", "):
            yield [word, *ours.replace(",", "").split()]


def _write(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.name != "site":
        return
    index = {
        "sections": list(_sections(app)),
        "others": list(_words_of_others(app)),
        "stopwords": sorted(SearchEnglish({}).stopwords),
    }
    static = Path(app.outdir) / "_static"
    (static / "search-index.js").write_text(f"const INDEX = {json.dumps(index)};\n")
    for name in STEMMER:
        shutil.copy(Path(sphinx.package_dir) / "search" / "minified-js" / name, static)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect(
        "config-inited", lambda _, config: config.html_additional_pages.update(search="search.html")
    )
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}
