"""Builds HTML at the addresses of the site."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

from dev.documents.site.address import address


class SiteBuilder(StandaloneHTMLBuilder):
    """HTML with these addresses and a search of our own."""

    name = "site"
    search = False

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:  # noqa: ARG002
        return address(docname)

    def get_output_path(self, page_name: str, /) -> Any:
        return self.outdir / address(page_name)

    def get_outfilename(self, pagename: str) -> Any:
        return self.get_output_path(pagename)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_builder(SiteBuilder)
    return {"parallel_read_safe": True}
