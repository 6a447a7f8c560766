"""Takes the pictures. The browser writes WebP itself: no other program is needed."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

MOST_BYTES = 60_000
SIZES = {"wide": (1440, 960), "narrow": (390, 844)}
THEMES = ("light", "dark")
_AS_WEBP = """async ([png, quality]) => {
    const image = new Image();
    image.src = "data:image/png;base64," + png;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.width; canvas.height = image.height;
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", quality).split(",")[1];
}"""
_HEIGHT = "document.querySelector('footer').getBoundingClientRect().bottom"
_OVERFLOW = "document.documentElement.scrollWidth - innerWidth"


def find_chromium() -> str:
    found = os.environ.get("TASKS_APP_TEST_CHROMIUM") or shutil.which("chromium")
    if not found:
        raise SystemExit("No Chromium was found. Run: apt-get install chromium")
    return found


class Camera:
    """One browser, and an empty page of it that compresses."""

    def __init__(self, browser: Any, address: str, login: dict[str, str], folder: Path) -> None:
        self._browser, self._address, self._login = browser, address, login
        self._folder = folder
        self._compressor = browser.new_page()
        self.plain: Path | None = None
        """Where uncompressed pictures go, too."""

    def take(self, pages: dict[str, str]) -> Iterator[tuple[str, int]]:
        """Take each page by its name in both themes and sizes; say how many bytes each has."""
        for theme, (size, (width, height)) in product(THEMES, SIZES.items()):
            context = self._browser.new_context(
                base_url=self._address,
                viewport={"width": width, "height": height},
                color_scheme=theme,
                http_credentials=self._login,
            )
            page = context.new_page()
            for name, path in pages.items():
                page.goto(path, wait_until="networkidle" if path == "/" else "load")
                wider = page.evaluate(_OVERFLOW)
                if wider > 0:
                    raise SystemExit(f"{path} is {wider} px wider than the {size} window.")
                yield self._save(f"{name}-{theme}-{size}", self._shot(page, width, height))
            context.close()

    def _shot(self, page: Any, width: int, height: int) -> bytes:
        """Take what fits in a window, and no emptiness under a short page."""
        shown = min(height, max(200, int(page.evaluate(_HEIGHT))))
        return bytes(page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": shown}))

    def _save(self, name: str, png: bytes) -> tuple[str, int]:
        if self.plain:
            (self.plain / f"{name}.png").write_bytes(png)
        webp, given = b"", base64.b64encode(png).decode()
        for quality in (0.9, 0.8, 0.7, 0.55, 0.4, 0.3):
            webp = base64.b64decode(self._compressor.evaluate(_AS_WEBP, [given, quality]))
            if len(webp) <= MOST_BYTES:
                break
        (self._folder / f"{name}.webp").write_bytes(webp)
        return name, len(webp)


@contextmanager
def camera(address: str, login: dict[str, str], folder: Path) -> Iterator[Camera]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox", "--hide-scrollbars"]
        )
        yield Camera(browser, address, login, folder)
        browser.close()
