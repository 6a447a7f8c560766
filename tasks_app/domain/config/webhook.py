"""Where alerts are posted: which URLs are taken, and how one is shown."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import SplitResult, urlsplit


def read_webhook(url: str) -> str:
    """Return the URL.

    Raises:
        ValueError: it is none of http or https. The message repeats nothing of it.
    """
    parts: SplitResult | None = None
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.port == 0 or " " in url or not (url.isascii() and url.isprintable()):
            parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("use a URL such as https://host/path")
    if "@" in parts.netloc:
        raise ValueError("write no user and password; a token may stand in the path")
    return url


def shown(url: str) -> str:
    """Return scheme and host alone: path and query are often the secret of a webhook."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"
