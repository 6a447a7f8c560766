"""Documents as tests read them."""

from __future__ import annotations

import functools
import os
import re
import unittest
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.orm import Session

import tasks_app
import tasks_app.testing
from dev.documents.site.navigation import OF_THE_SITE
from tasks_app import BatchJob, Step, Table, create_task, handler, start_job, stop_job
from tasks_app.batch.job import JOBS
from tasks_app.runtime.handlers.middleware import MIDDLEWARE
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.hooks import HOOKS
from tasks_app.testing import drain, fail_next
from tasks_app.testing.draining import FAULTS

PROJECT = Path(__file__).parents[2]
NOT_IN_GIT = {PROJECT / "docs" / "reference" / f"{name}.md" for name in OF_THE_SITE}
DOCUMENTS = sorted({*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")} - NOT_IN_GIT)


def text_of(name: str) -> str:
    """A document of the checkout."""
    return (PROJECT / name).read_text()


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def links(page: str) -> list[tuple[str, str]]:
    """Targets with their titles, of links that stay in the checkout; a title names a test."""
    found = re.findall(r'\]\(([^)\s]+)(?: "([^"]*)")?\)', _prose(page))
    return [(target, title) for target, title in found if "://" not in target]


def lost_links(document: Path, page: str) -> list[str]:
    """Links that lead to no file or heading; only pages of the site may link to those."""
    lost = []
    for target, _ in links(page):
        file, _, anchor = target.partition("#")
        there = document.parent / file if file else document
        there = Path(os.path.normpath(there))
        if there in NOT_IN_GIT - {document}:
            lost += [target] * (document not in NOT_IN_GIT)
        elif there != document and not there.exists():
            lost.append(target)
        elif anchor and there.suffix == ".md":
            text = page if there == document else there.read_text()
            lost += [target] * (anchor not in anchors(text))
    return lost


def named_tests(page: str) -> list[tuple[str, str]]:
    """File and function, or class, of every test that a page names."""
    return re.findall(r"(tests/[\w/]+\.py)::((?:test_|Test)\w+)", page)


def named_files(page: str) -> list[str]:
    """Every file and folder of the checkout that a page names in backticks."""
    tops = {path.name for root in (PROJECT, PROJECT / "tasks_app") for path in root.iterdir()}
    found = re.findall(r"`([\w./-]+)(?:::\w+)?`", page)
    return [each for each in found if each.endswith(".py") or each.partition("/")[0] in tops]


def models(page: str) -> list[str]:
    """The configurations of the model that a page names."""
    return re.findall(r"model: `([^`]+)`", page)


def section(page: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    return page.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]


def first_column(markdown: str) -> list[str]:
    """The words in backticks that begin the rows of a table."""
    return re.findall(r"^\| `([^`]+)` \|", markdown, re.MULTILINE)


def anchors(page: str) -> set[str]:
    """The headings of a page, as links name them."""
    found = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in found)
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


def _prose(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


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


ROOMS = {tasks_app: tasks_app.__all__, tasks_app.testing: tasks_app.testing.__all__}
PUBLIC: dict[str, Any] = {
    name: getattr(room, name) for room, names in ROOMS.items() for name in names
}
"""By name; the kit has no name that the front door has, too."""


@contextmanager
def declared() -> Iterator[dict[str, Any]]:
    """Handlers and a job of the examples; what these declare is forgotten with them."""
    kept = [(each, each.copy()) for each in (HANDLERS.specs, HANDLERS.schedules, JOBS, MIDDLEWARE)]
    listening = HOOKS._subscribers
    # A drain would create schedules of guides that were read before; the shop has these names, too.
    HANDLERS.schedules.clear()
    HANDLERS.specs.clear()

    @handler("mail.send", retry="1d")  # or a drain may meet the next attempt
    def send_mail(ctx, payload: dict) -> dict:
        return {"sent": payload["to"]}

    @handler("card.charge", max_attempts=1)
    def charge_card(ctx, payload: dict) -> None:
        raise ConnectionRefusedError("no bank")

    def pay(ctx, rows) -> None:
        pass

    payroll = BatchJob("payroll", [Step("pay", Table("employee"), chunk=pay, retry="1d")])
    try:
        yield {"send_mail": send_mail, "charge_card": charge_card, "payroll": payroll}
    finally:
        HOOKS._subscribers = listening
        FAULTS.clear()
        for now, before in kept:
            now.clear()
            with suppress(AttributeError):
                now.extend(before)
            with suppress(AttributeError):
                now.update(before)


def prepared(connection: Connection, names: dict[str, Any]) -> dict[str, int]:
    """Commit a task that failed, one that waits, a job that was stopped, and one that runs."""
    connection.execute(text("DROP TABLE IF EXISTS employee"))
    connection.execute(text("CREATE TABLE employee (id int PRIMARY KEY, mail text)"))
    connection.execute(text("INSERT INTO employee SELECT id FROM generate_series(1, 40) AS id"))
    failed_id = create_task(connection, names["charge_card"], {"order": 7})
    stopped = start_job(connection, names["payroll"], {"month": "2029-11"})
    stop_job(connection, stopped.batch_id)
    running = start_job(connection, names["payroll"], {"month": "2029-12"})
    fail_next("payroll:pay", ConnectionError, when="before")
    drain(connection)
    mail = {"to": "a@example.org"}
    task_id = create_task(connection, names["send_mail"], mail, biz_key="order:7")
    return {
        "failed_id": failed_id, "task_id": task_id,
        "stopped_id": stopped.batch_id, "running_id": running.batch_id,
    }  # fmt: skip


@contextmanager
def world(engine: Engine) -> Iterator[dict[str, Any]]:
    """Yield what an example may name; what it does on ``session`` is rolled back."""
    url = make_url(engine.url).set(drivername="postgresql")
    with declared() as names:
        with engine.begin() as connection:
            ids = prepared(connection, names)
        with (
            engine.connect() as connection,
            connection.begin(),
            Session(connection, join_transaction_mode="create_savepoint") as session,
        ):
            yield {
                **PUBLIC, **names, **ids, "session": session, "engine": engine,
                "url": url.render_as_string(hide_password=False), "psycopg": psycopg,
                "date": date, "timedelta": timedelta, "text": text, "unittest": unittest,
            }  # fmt: skip
            connection.rollback()
