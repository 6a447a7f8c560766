"""Addresses: ``docs/`` is the root of the site, and a README the first page of its folder."""

from __future__ import annotations


def address(page: str) -> str:
    """Where a page lies in the site: of docs/a/README a/index.html."""
    if not page.startswith("docs/"):
        return f"{page}.html"
    folder, _, name = page.removeprefix("docs/").rpartition("/")
    name = "index" if name == "README" else name
    return f"{folder}/{name}.html" if folder else f"{name}.html"
