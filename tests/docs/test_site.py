"""`make site`: links lead somewhere, nothing comes from elsewhere, questions find their page."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page as Window
from playwright.sync_api import expect

from dev.documents.site.navigation import entries
from tests.dashboard.chromium import CHROMIUM, chromium
from tests.docs.reading import PROJECT, Page, page, pages, text_of
from tests.releases import NO_INDEX

__all__ = ["chromium"]
pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600, method="thread")]
in_a_browser = pytest.mark.skipif(
    not CHROMIUM, reason="No Chromium was found. Run: apt-get install chromium"
)
HTML = PROJECT / ".tasks_app" / "site" / "html"
READY = ".tasks_app/site/.venv/.ready"

RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21aa"],
    "rules": {
        "aria-required-attr": {"enabled": False},  # Sphinx's captions of the sidebar have no level
        "scrollable-region-focusable": {"enabled": False},  # browsers make them so
    },
}
QUESTIONS = {
    "celery/celery#2856": ("two celery beat instances generate duplicated tasks", "schedules.html"),
    "celery/celery#5935": (
        "Long running jobs redelivering after broker visibility timeout with celery and redis",
        "operations/brokers.html",
    ),
    "celery/celery#1881": (
        "Chords need a way for executing a callback even if a task in the task group fails",
        "groups.html#groups",
    ),
    "janbjorge/pgqueuer#475": (
        "Stuck jobs after non-gracefull shutdown",
        "operations/stopping.html",
    ),
    "procrastinate-org/procrastinate#307": (
        "When worker restarts, interrupted jobs are forever lost",
        "operations/stopping.html",
    ),
    "que-rb/que#353": (
        "Rate limiting the number of processed jobs concurrently",
        "operations/limits.html#rate-and-concurrency-limits",
    ),
    "rails/solid_queue#278": ("Best way to delete finished jobs", "operations/maintenance.html"),
    "sidekiq/sidekiq#510": (
        "Custom exponential backoff / retry delay",
        "retries.html#how-long-to-wait",
    ),
    "timgit/pg-boss#551": ("possible to pause a queue?", "operations/pause.html#pause"),
}
"""Titles of threads in the trackers of other systems, as people wrote them, and who answers."""


def _make(target: str) -> subprocess.CompletedProcess[str]:
    command = ["make", target]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site() -> Path:
    made = _make(READY)
    if made.returncode:
        pytest.skip(NO_INDEX)
    built = _make("site")
    assert built.returncode == 0, built.stderr
    return HTML


def test_no_link_leads_nowhere(site: Path) -> None:
    lost = {str(each.path.relative_to(site)): each.lost() for each in pages(site)}
    assert {name: links for name, links in lost.items() if links} == {}


def test_a_lost_link_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1>')
    links = ["b.html#here", "b.html", "#x", "b.html#gone", "c.html", "https://example.org/"]
    (tmp_path / "a.html").write_text(
        "".join(f'<a href="{link}">' for link in links) + '<p id="x"><img src="d.png">'
    )
    assert Page(tmp_path / "a.html").lost() == ["b.html#gone", "c.html", "d.png"]


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    fetched = {link for each in pages(site) for link in each.fetched}
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert {link for link in fetched if urlsplit(link).netloc} == set()
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*|@import[^;]*", styles) == []


def test_a_proof_leads_to_the_line_of_its_test(site: Path) -> None:
    link = next(each for each in page(site / "README.html").links if "test_create.py" in each)
    there, _, line = link.partition("#")
    shown = (site / there).read_text().partition(f'id="{line}"')[2].partition("\n")[0]
    assert "test_a_rollback_leaves_nothing" in re.sub(r"<[^>]+>", "", shown)


def test_a_folder_that_is_linked_shows_its_files(site: Path) -> None:
    shown = page(site / "source" / "examples" / "django_shop.html")
    assert any(link.endswith("manage.py.html") for link in shown.links)


def test_every_page_has_the_sidebar_that_the_readme_lists(site: Path) -> None:
    titles = [title for title, _ in entries(text_of("docs/README.md"), own=False)]
    for name in ("index.html", "operations/stopping.html", "source/examples/script.py.html"):
        shown = re.findall(
            r"<a class=\"[^\"]*reference internal[^>]*>([^<]*)</a>", (site / name).read_text()
        )
        assert {title.lower() for title in titles} - {each.lower() for each in shown} == set(), name


@pytest.fixture
def window(chromium: Any, site: Path) -> Iterator[Window]:
    """Opens pages from the disk; whatever its console complains of fails the test."""
    context = chromium.new_context(viewport={"width": 360, "height": 740})
    window = context.new_page()
    said: list[str] = []
    window.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
    window.on("pageerror", lambda error: said.append(str(error)))
    window.on(
        "request", lambda asked: None if asked.url.startswith("file:") else said.append(asked.url)
    )
    yield window
    context.close()
    assert said == []


@in_a_browser
@pytest.mark.parametrize("thread", QUESTIONS)
def test_a_question_finds_its_page_first(window: Window, site: Path, thread: str) -> None:
    question, answer = QUESTIONS[thread]
    window.set_viewport_size({"width": 1440, "height": 900})
    window.goto((site / "index.html").as_uri())
    window.locator(".sidebar-search").press_sequentially(question)
    window.keyboard.press("Enter")
    expect(window.locator("#results a").first).to_have_attribute("href", answer)
    window.locator("#results a").first.click()
    assert window.url == f"{site.as_uri()}/{answer}"


@in_a_browser
def test_a_search_follows_the_keys_and_says_when_nothing_is_found(
    window: Window, site: Path
) -> None:
    window.goto((site / "search.html").as_uri())
    window.locator("#question").fill("pgbouncer")
    expect(window.locator("#results li").first).to_contain_text("PgBouncer")
    window.locator("#question").fill("<b>xyzzy</b>")
    expect(window.locator("#found")).to_contain_text("No page has these words.")
    expect(window.locator("#results li")).to_have_count(0)


@in_a_browser
def test_every_hit_of_the_index_is_a_place_of_its_page(window: Window, site: Path) -> None:
    window.goto((site / "search.html").as_uri())
    places = window.evaluate("INDEX.sections.map(([url, , , , anchor]) => [url, anchor])")
    assert len(places) > 500
    assert [
        (url, anchor) for url, anchor in places if anchor and anchor not in page(site / url).ids
    ] == []


@in_a_browser
def test_no_page_is_wider_than_a_telephone(window: Window, site: Path) -> None:
    wide = []
    for path in sorted(site.rglob("*.html")):
        if "source" not in path.relative_to(site).parts or path.stem == "test_create.py":
            window.goto(path.as_uri())
            if window.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(str(path.relative_to(site)))
    assert wide == []


@in_a_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible(chromium: Any, site: Path, theme: str) -> None:
    context = chromium.new_context(color_scheme=theme)
    window = context.new_page()
    wrong = []
    for path in ("index.html", "search.html?q=retry", "producing.html", "reference/settings.html"):
        window.goto(f"{site.as_uri()}/{path}")
        found = Axe().run(window, options=RULES)
        wrong += [
            (path, each["id"], [node["html"][:120] for node in each["nodes"]][:2])
            for each in found.response["violations"]
        ]
    context.close()
    assert wrong == []
