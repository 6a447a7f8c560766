"""The site's search."""

from __future__ import annotations

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    app.config.html_additional_pages = {"search": "search.html"}
    return {"parallel_read_safe": True}
