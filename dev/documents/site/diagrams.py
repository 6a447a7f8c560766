"""Diagrams are shown as their source: a picture would need a browser to draw it."""

from __future__ import annotations

from pygments.lexers import TextLexer
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_lexer("mermaid", TextLexer)
    return {"parallel_read_safe": True}
