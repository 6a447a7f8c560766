"""What operators change of tasks from the dashboard: where they wait, by whom and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tasks_app import NewTask, Settings, TaskContext, create_group, handler
from tasks_app.pool.operations.audit import find
from tasks_app.runtime.handlers.registry import HANDLERS
from tests.dashboard.browser import Browser, dashboard
from tests.dashboard.chromium import MARKS, address, chromium, filled, one, page, posts
from tests.dashboard.test_pages import waiting_task
from tests.runtime.api.bulk_rows import failed_task, make

__all__ = ["address", "chromium", "filled", "page"]
in_chromium = [*MARKS]
WHY = "the bank asks"
ONE = [
    ("reschedule", {"delay": "2h"}, "due_at > now() + interval '119 min'"),
    ("reschedule", {"at": "2031-01-31T09:00+01:00"}, "due_at = '2031-01-31T08:00Z'"),
    ("reprioritise", {"to_priority": "0"}, "priority = 0"),
    ("move", {"to_queue": "slow"}, "queue = 'slow'"),
    ("disable", {}, "NOT enabled"),
]


@pytest.fixture
def known() -> Iterator[None]:
    @handler("t")
    def t(ctx: TaskContext, payload: dict[str, Any]) -> None: ...

    yield
    del HANDLERS.specs["t"]


def row_is(engine: Engine, task_id: int, condition: str) -> bool:
    return bool(one(engine, f"SELECT {condition} FROM task_pending WHERE id = :id", id=task_id))


def reasons(engine: Engine) -> list[tuple[str, str | None]]:
    with engine.connect() as connection:
        return [(line.action, line.why) for line in find(connection)]


@pytest.mark.parametrize(("action", "words", "becomes"), ONE)
def test_one_task_is_changed_with_a_reason(
    engine: Engine, browser: Browser, action: str, words: dict[str, str], becomes: str
) -> None:
    task_id = waiting_task(engine, delay=60)

    browser.act(f"/tasks/{task_id}/{action}", {**words, "why": WHY})

    page = browser.get(f"/tasks/{task_id}").text
    assert f"Done: {action}." in page
    assert f": {WHY}" in page
    assert row_is(engine, task_id, becomes)
    assert reasons(engine) == [(action, WHY)]


@pytest.mark.parametrize(("action", "words", "becomes"), ONE)
def test_a_selection_is_changed_after_a_look(
    engine: Engine, browser: Browser, action: str, words: dict[str, str], becomes: str
) -> None:
    ids = make(engine, 2, delay="1m")

    listed = browser.get("/tasks?pool=pending&name=t").text
    assert f'name="action" value="{action}"' in listed
    assert f"/bulks/new?action={action}&amp;pool=pending&amp;name=t" in listed
    seen = browser.get(f"/bulks/new?action={action}&pool=pending&name=t").text
    assert f"{action.capitalize()} 2 tasks?" in seen
    for name in (*words, "why"):
        assert f'name="{name}"' in seen
    given = {"action": action, "pool": "pending", "name": "t", **words, "why": WHY}
    opened = browser.act("/bulks", given)
    browser.act(f"{opened.headers['location']}/run")

    assert all(row_is(engine, task_id, becomes) for task_id in ids)
    assert reasons(engine) == [(action, WHY)] * 2


def test_it_is_enabled_again(engine: Engine, browser: Browser) -> None:
    task_id = waiting_task(engine, delay=60)
    browser.act(f"/tasks/{task_id}/disable")
    assert f'action="/tasks/{task_id}/enable"' in browser.get(f"/tasks/{task_id}").text
    browser.act(f"/tasks/{task_id}/enable")

    assert row_is(engine, task_id, "enabled")


def test_what_is_held_is_released_at_a_rate(engine: Engine, browser: Browser) -> None:
    ids = make(engine, 3)
    for task_id in ids:
        browser.act(f"/tasks/{task_id}/hold")
    assert 'name="rate"' in browser.get("/bulks/new?action=release&name=t").text
    opened = browser.act("/bulks", {"action": "release", "name": "t", "rate": "1/10s"})
    browser.act(f"{opened.headers['location']}/run")

    query = "SELECT max(due_at) - min(due_at) = interval '20s' FROM task_pending"
    assert one(engine, query) is True


@pytest.mark.parametrize(
    ("action", "words", "problem"),
    [
        ("reschedule", {}, "reschedule needs at or delay. Give one."),
        ("reschedule", {"delay": "soon"}, "is not a duration"),
        ("reschedule", {"at": "tomorrow"}, "an ISO 8601 instant"),
        ("reprioritise", {}, "reprioritise needs to_priority. Give one."),
        ("reprioritise", {"to_priority": "10"}, "less than or equal to 9"),
        ("move", {"to_queue": "a b"}, "a b&#39;"),
        ("requeue", {"why": "x" * 301}, "why: String should have at most 300 characters"),
    ],
)
def test_wrong_words_are_refused_in_a_sentence(
    engine: Engine, browser: Browser, action: str, words: dict[str, str], problem: str
) -> None:
    task_id = waiting_task(engine, delay=60)

    said = browser.act(f"/tasks/{task_id}/{action}", words)

    assert said.status_code in {400, 409}
    assert problem in said.text
    assert "Traceback" not in said.text
    assert reasons(engine) == []


@pytest.mark.usefixtures("known")
def test_requeue_cancel_edit_and_a_group_keep_their_reason(
    engine: Engine, browser: Browser
) -> None:
    with engine.begin() as connection:
        failed = failed_task(connection)
    browser.act(f"/tasks/{failed}/requeue", {"why": WHY})
    edited = {"payload": '{"a": 1}', "why": WHY}
    browser.act(f"/tasks/{failed}/edit", edited)
    browser.act(f"/tasks/{failed}/cancel", {"why": WHY})
    with Session(engine) as session, session.begin():
        group = create_group(session, [NewTask("a"), NewTask("b")])
    browser.act(f"/groups/{group.id}/cancel", {"why": WHY})

    assert reasons(engine) == [(it, WHY) for it in ("cancel", "cancel", "edit", "requeue")]


def test_viewers_may_not(engine: Engine, settings: Settings) -> None:
    task_id = waiting_task(engine, delay=60)
    viewer = Browser(dashboard(settings, role=lambda _: "viewer"))
    shown = viewer.get(f"/tasks/{task_id}").text

    for action, words, _ in ONE:
        assert viewer.act(f"/tasks/{task_id}/{action}", words).status_code == 403
        assert f"/tasks/{task_id}/{action}" not in shown
    assert reasons(engine) == []


def test_another_site_may_not(engine: Engine, browser: Browser) -> None:
    task_id = waiting_task(engine, delay=60)
    for action, words, _ in ONE:
        foreign = {"sec-fetch-site": "cross-site"}
        said = browser.act(f"/tasks/{task_id}/{action}", words, headers=foreign)
        assert said.status_code == 403
        assert browser.ask("POST", f"/tasks/{task_id}/{action}", data=words).status_code == 403
    assert reasons(engine) == []


def test_the_api_takes_the_same_words(engine: Engine, browser: Browser) -> None:
    task_id = waiting_task(engine, delay=60)
    said = browser.ask(
        "POST",
        f"/api/tasks/{task_id}/move",
        json={"to_queue": "slow", "why": WHY},
        headers={"content-type": "application/json"},
    )

    assert said.json() == {"said": "Done: move.", "changed": True}
    assert reasons(engine) == [("move", WHY)]


class TestInChromium:
    """The same, by clicks."""

    pytestmark = in_chromium

    @posts(
        *(
            f"/tasks/{{task_id}}/{word}"
            for word in ("reschedule", "reprioritise", "move", "disable", "enable")
        )
    )
    def test_one_task_by_its_forms(
        self, page: Page, engine: Engine, filled: dict[str, Any]
    ) -> None:
        later = filled["later"]
        page.goto(f"/tasks/{later}")
        for label, fill, becomes in (
            ("Reschedule", {"In": "2d"}, "due_at > now() + interval '47h'"),
            ("Move", {"Queue": "slow"}, "queue = 'slow'"),
        ):
            page.get_by_text(f"{label} …", exact=True).click()
            card = page.locator("details[open]")
            for name, value in {**fill, "Why": WHY}.items():
                card.get_by_label(name, exact=True).fill(value)
            card.get_by_role("button", name=label).click()
            expect(page.get_by_text(f"Done: {label.lower()}.")).to_be_visible()
            assert row_is(engine, later, becomes)
        page.get_by_text("Reprioritise …", exact=True).click()
        page.get_by_label("Priority").fill("0")
        page.get_by_role("button", name="Reprioritise").click()
        expect(page.get_by_text("Done: reprioritise.")).to_be_visible()
        page.get_by_text("With a reason …").click()
        page.locator("details[open]").get_by_label("Why").fill(WHY)
        page.locator("details[open]").get_by_role("button", name="Disable").click()
        expect(page.get_by_text("Done: disable.")).to_be_visible()
        page.get_by_role("button", name="Enable").first.click()
        expect(page.get_by_text("Done: enable.")).to_be_visible()
        assert row_is(engine, later, "enabled AND priority = 0")
        assert reasons(engine)[:5] == [
            ("enable", None),
            ("disable", WHY),
            ("reprioritise", None),
            ("move", WHY),
            ("reschedule", WHY),
        ]
        assert page.get_by_text(WHY).count() >= 3

    @posts("/tasks/{task_id}/unblock")
    def test_those_behind_a_failed_one_go_on(self, page: Page, engine: Engine) -> None:
        with engine.begin() as connection:
            first = failed_task(connection)
            connection.execute(text("UPDATE task_error SET order_key = 'k'"))
        waiting_task(engine, order_key="k")
        page.goto(f"/tasks/{first}")
        page.get_by_role("button", name="Unblock").click()
        expect(page.get_by_text("The tasks behind it go on.")).to_be_visible()
        assert reasons(engine) == [("unblock", None)]

    def test_chosen_tasks_are_moved(
        self, page: Page, engine: Engine, filled: dict[str, Any]
    ) -> None:
        page.goto("/tasks?name=later")
        expect(page.locator("#chosen")).to_be_hidden()
        page.keyboard.press("j")
        page.keyboard.press("x")
        page.get_by_text("Chosen (1)").click()
        page.get_by_role("button", name="Move …").click()
        page.get_by_label("Queue").fill("slow")
        page.get_by_label("Why").fill(WHY)
        page.get_by_role("button", name="Go on").click()
        page.get_by_role("button", name="All").click()
        expect(page.get_by_text("acted on 1")).to_be_visible()
        assert row_is(engine, filled["later"], "queue = 'slow'")
        assert reasons(engine)[0] == ("move", WHY)
