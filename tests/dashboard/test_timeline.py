"""The timeline of a task's page: every known transition, in order, and who was behind it."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tasks_app import (
    Settings,
    Snooze,
    cancel_task,
    create_schedule,
    create_task,
    requeue_task,
    run_schedule,
)
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.scoreboard import Scoreboard
from tasks_app.runtime.worker.standalone import run_work
from tests.dashboard.browser import Browser, text_of
from tests.dashboard.test_pages import failed_task

EVIL = "<script>alert(1)</script>"
Work = Callable[..., None]


@pytest.fixture
def work(engine: Engine, database_url: str, tmp_path: Path) -> Any:
    """Run what is due, with these settings."""
    registry = Registry()

    @handler("shop.order", registry=registry, retry="0s,0s")
    def order(ctx: Any) -> str:
        ctx.log.warning("attempt %s of %s", ctx.attempt, EVIL)
        if ctx.attempt == 1:
            raise Snooze("0s", "too early")
        if ctx.attempt in (2, 3):
            raise ConnectionError("the provider is away")
        return "done"

    def run(**options: Any) -> None:
        settings = Settings(database_url=database_url, **options)
        run_work(settings, registry=registry, drain=True, slots=Scoreboard(tmp_path / "slots"))

    yield run
    LOG.level = Logged.OFF


def moments(browser: Browser, task_id: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.get(f"/api/tasks/{task_id}").json()["timeline"]
    return found


def words(browser: Browser, task_id: int) -> list[str]:
    return [f"{m['what']} {m['attempt'] or ''}".strip() for m in moments(browser, task_id)]


def ordered(engine: Engine, **options: Any) -> int:
    with Session(engine) as session, session.begin():
        return int(create_task(session, "shop.order", **options))


FAILED = "failed, comes back"
WHOLE = [
    *("created", "claimed 1", "snoozed 1", "claimed 2", f"{FAILED} 2"),
    *("claimed 3", f"{FAILED} 3", "claimed 4", "succeeded 4"),
]


@pytest.mark.test_all
def test_with_the_log_nothing_is_missing(engine: Engine, browser: Browser, work: Work) -> None:
    task_id = ordered(engine)
    work(transitions="all", log_lines=10)
    with Session(engine) as session, session.begin():
        requeue_task(session, task_id, by="ann")
    work(transitions="all", log_lines=10)

    assert words(browser, task_id) == [*WHOLE, "requeue", "claimed 5", "succeeded 5"]
    told = moments(browser, task_id)
    assert told == sorted(told, key=lambda m: m["at"])
    assert told[9]["by"] == "ann"
    by = {m["by"] for m in told if m["attempt"]}
    assert None not in by
    snoozed, failed = told[2], told[6]
    assert (snoozed["state"], snoozed["due_at"] is not None) == ("PENDING", True)
    assert (failed["kind"], failed["message"]) == ("ConnectionError", "the provider is away")
    assert "in order" in failed["traceback"]
    assert (told[4]["traceback"], told[4]["traceback_of"]) == (None, 3)
    lines = {m["attempt"]: [line["text"] for line in m["lines"]] for m in told if m["lines"]}
    assert lines == {n: [f"attempt {n} of {EVIL}"] for n in range(1, 6)}


def test_without_it_row_history_and_audit_tell(
    engine: Engine, browser: Browser, work: Work
) -> None:
    task_id = ordered(engine)
    work()
    assert words(browser, task_id) == [each for each in WHOLE if each[-1] != "1"]


def test_the_page_shows_it_and_runs_no_line(engine: Engine, browser: Browser, work: Work) -> None:
    task_id = ordered(engine)
    work(transitions="failures", log_lines=10)

    page = browser.get(f"/tasks/{task_id}").text
    assert "<script>alert" not in page
    shown = text_of(page)
    at = [
        shown.index(f"{what.capitalize()} , attempt {attempt}")
        for what, _, attempt in (each.rpartition(" ") for each in WHOLE[1:])
    ]
    assert at == sorted(at)
    assert f"attempt 4 of {escape(EVIL)}" in shown
    assert "Its traceback is that of attempt 3." in shown


def test_who_created_and_who_cancelled(engine: Engine, browser: Browser) -> None:
    with Session(engine) as session, session.begin():
        create_schedule(session, "nightly", "report", every="1d", enabled=False)
        task_id = run_schedule(session, "nightly", by="bob")
        assert task_id is not None
        cancel_task(session, task_id, by="ann")

    told = moments(browser, task_id)
    assert [(m["what"], m["by"]) for m in told if m["by"]] == [
        ("created", "schedule nightly"),
        ("schedule run", "bob"),
        ("cancel", "ann"),
    ]
    assert "cancelled" in [m["what"] for m in told]


def test_a_failure_for_good_is_told_once(engine: Engine, browser: Browser) -> None:
    task_id = failed_task(engine)
    told = moments(browser, task_id)
    assert [m["what"] for m in told] == ["created", "claimed", "failed"]
    assert told[-1]["state"] == "FAILED"
    assert told[-1]["traceback"] == "Traceback: boom"


def test_a_failure_for_good_stays_one_when_it_is_requeued(engine: Engine, browser: Browser) -> None:
    task_id = failed_task(engine)
    with engine.begin() as connection:
        requeue_task(connection, task_id, by="ann")
    told = [(m["what"], m["state"]) for m in moments(browser, task_id)]
    assert told[2:] == [("failed", "FAILED"), ("requeue", None)]


@pytest.mark.parametrize("given", ["00-" + "a" * 32 + "-" + "b" * 16 + "-01", EVIL, 7, None])
def test_the_trace_is_named_if_it_is_one(engine: Engine, browser: Browser, given: Any) -> None:
    task_id = ordered(engine, headers={"traceparent": given})
    model = browser.get(f"/api/tasks/{task_id}").json()
    is_one = isinstance(given, str) and given.startswith("00-")
    assert model["trace_id"] == ("a" * 32 if is_one else None)
    assert ("<dt>Trace</dt>" in browser.get(f"/tasks/{task_id}").text) is is_one


def test_openapi_describes_it(browser: Browser) -> None:
    known = browser.get("/api/openapi.json").json()["components"]["schemas"]
    assert {"what", "by", "lines", "traceback_of"} <= known["TaskPage.Moment"]["properties"].keys()
