"""Files of the checkout that pages link to: each becomes a page of its highlighted lines."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_FORMATTER = HtmlFormatter(linenos="inline", lineanchors="line", anchorlinenos=True)


class LinkSources(SphinxTransform):
    """Points links to files and folders at their pages; a title names a test in the file."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        for node in list(self.document.findall(addnodes.download_reference)):
            self._replace(node, node["reftarget"])
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("reftype") != "myst":
                continue
            if node.get("refdomain") != "doc":
                self._replace(node, node["reftarget"].partition("#")[0])
            elif node["reftarget"] not in self.env.found_docs:
                self._replace(node, f"/{node['reftarget']}.md")

    def _replace(self, node: nodes.Element, target: str) -> None:
        _, path = self.env.relfn2path(target, self.env.docname)
        root = Path(self.env.srcdir)
        if not Path(path).exists() or not Path(path).is_relative_to(root):
            return
        name = str(Path(path).relative_to(root))
        linked = _linked(self.app)
        linked.add(name)
        line = _line_of(Path(path), node.get("reftitle", ""))
        uri = self.app.builder.get_relative_uri(self.env.docname, page_of(name))
        reference = nodes.reference("", "", *node.children, internal=True)
        reference["refuri"] = uri + (f"#line-{line}" if line else "")
        if title := node.get("reftitle"):
            reference["reftitle"] = title
        node.replace_self(reference)


def page_of(name: str) -> str:
    """The page of a file; ``source/`` keeps it apart from pages of the same name."""
    return f"source/{name}"


def _linked(app: Sphinx) -> set[str]:
    found: set[str] = app.env.__dict__.setdefault("linked_sources", set())
    return found


def _line_of(path: Path, title: str) -> int:
    if not title.isidentifier() or not path.is_file():
        return 0
    text = path.read_text(errors="replace")
    found = re.search(rf"^ *(?:async )?(?:def|class) {title}\b", text, re.MULTILINE) or re.search(
        rf"\b{title}\b", text
    )
    return text[: found.start()].count("\n") + 1 if found else 0


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    root = Path(app.srcdir)
    waiting, done = sorted(_linked(app)), set[str]()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        path = root / name
        if path.is_dir():
            inside = [file for file in sorted(path.iterdir()) if _shown(file)]
            waiting += [str(file.relative_to(root)) for file in inside]
            body = _folder(app, name, inside)
        else:
            body = f'<div class="highlight source">{_highlighted(path)}</div>'
        context = {"title": name, "body": f"<h1>{html.escape(name)}</h1>\n{body}"}
        yield page_of(name), context, "page.html"


def _shown(path: Path) -> bool:
    if path.is_dir():
        return path.name != "__pycache__"
    return not path.name.startswith(".") and b"\0" not in path.read_bytes()


def _folder(app: Sphinx, name: str, inside: list[Path]) -> str:
    here = page_of(name)
    rows = []
    for path in inside:
        there = app.builder.get_relative_uri(here, page_of(f"{name}/{path.name}"))
        text = html.escape(path.name + "/" * path.is_dir())
        rows.append(f'<li><a href="{there}"><code>{text}</code></a></li>')
    return f"<ul>{''.join(rows)}</ul>"


def _highlighted(path: Path) -> str:
    lexer: Lexer
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    lines: str = highlight(path.read_text(errors="replace"), lexer, _FORMATTER)
    return lines


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(LinkSources)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": False}
