"""The built site, read as a browser would: addresses, anchors, what a page fetches."""

from __future__ import annotations

import functools
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"script", "img", "iframe", "source", "video", "audio", "embed"}


class Page(HTMLParser):
    """Its ids, its links, and what it fetches by itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.ids.update(has[name] for name in ("id", "name") if name in has)
        if tag in FETCHED and "src" in has:
            self.fetched.append(has["src"])
        elif tag == "link" and has.get("rel") not in {"next", "prev", "search", "index"}:
            self.fetched.append(has["href"])
        elif "href" in has and tag != "use":
            self.links.append(has["href"])

    def lost(self) -> list[str]:
        """Links and fetches within the site that lead nowhere."""
        return [link for link in (*self.links, *self.fetched) if not self._leads(link)]

    def _leads(self, link: str) -> bool:
        parts = urlsplit(link)
        if parts.scheme or link in {"#", ""}:
            return True
        there = (self.path.parent / unquote(parts.path)).resolve() if parts.path else self.path
        if not there.is_file():
            return False
        return not parts.fragment or unquote(parts.fragment) in page(there).ids


@functools.cache
def page(path: Path) -> Page:
    return Page(path)


def pages(site: Path) -> list[Page]:
    return [page(path) for path in sorted(site.rglob("*.html"))]
