"""The dashboard in a real Chromium: every page is accessible, and people get things done."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from tests.dashboard.browser import one
from tests.dashboard.chromium import (
    MARKS,
    WIDE,
    Filled,
    address,
    chromium,
    done,
    filled,
    page,
    posts,
)
from tests.dashboard.test_pages import waiting_task

__all__ = ["address", "chromium", "filled", "page"]
pytestmark = MARKS
NARROW = {"width": 390, "height": 844}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}


def paths(filled: Filled) -> list[str]:
    task_id, cause = filled["ids"][0], filled["cause"]
    return [
        *("/", "/tasks", f"/tasks/{task_id}", f"/tasks/{task_id}/edit", "/errors"),
        *(f"/errors/{cause}", f"/bulks/new?action=requeue&fingerprint={cause}"),
        *("/schedules", "/schedules/nightly", "/queues", "/queues/money", "/groups"),
        *(f"/groups/{filled['group']}", "/flows", "/batches", "/workers", "/audit"),
        *("/find?q=a", "/find?q=nothing.is.called.so", "/nothing/here"),
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_is_accessible_and_never_wider_than_the_window(
    chromium: Any, address: str, filled: Filled, theme: str, size: dict[str, int]
) -> None:
    context = chromium.new_context(base_url=address, viewport=size, color_scheme=theme)
    page = context.new_page()
    wrong = []
    for path in paths(filled):
        page.goto(path)
        found = Axe().run(page, options=RULES)
        wrong += [
            (path, each["id"], [node["html"][:120] for node in each["nodes"]][:2])
            for each in found.response["violations"]
        ]
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if wide > 0:
            wrong.append((path, "wider", wide))
    context.close()
    assert wrong == []


@posts("/bulks", "/bulks/{token}/run")
def test_from_a_red_number_to_mended_tasks(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto("/")
    page.get_by_role("link", name="Failed, 24 h").click()
    page.get_by_role("link", name="shop.Declined").first.click()
    page.get_by_role("link", name="Requeue 12 …").click()
    page.get_by_role("button", name="Go on").click()
    page.get_by_role("button", name="First 1", exact=True).click()
    expect(page.get_by_text("1 of 1 have not ended yet")).to_be_visible()
    page.get_by_role("button", name="Next 10").click()
    page.get_by_role("button", name="The rest").click()
    expect(page.get_by_text("acted on 12")).to_be_visible()
    assert one(engine, "SELECT array_agg(name) FROM task_error") == ["mail"]
    assert {who for action, who, _ in done(engine)} == {"local (dashboard)"}


@posts(
    *(f"/tasks/{{task_id}}/{word}" for word in ("run-now", "cancel", "requeue", "hold", "release"))
)
def test_one_task_by_its_buttons(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto(f"/tasks/{filled['later']}")
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_text("Done: run-now.")).to_be_visible()
    for label in ("Hold", "Release"):
        page.get_by_role("button", name=label, exact=True).first.click()
        expect(page.get_by_text(f"Done: {label.lower()}.")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("CANCELLED", exact=True).first).to_be_visible()
    page.get_by_role("button", name="Requeue").click()
    expect(page.get_by_text("Done: requeue.")).to_be_visible()
    assert [action for action, _, _ in done(engine)] == [
        *("run-now", "hold", "release", "cancel", "requeue")
    ]


def test_chosen_tasks_by_the_keyboard(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto("/tasks?name=pay")
    for key in ("j", "x", "j", "x"):
        page.keyboard.press(key)
    assert page.locator("input[name=ids]:checked").count() == 2
    page.get_by_text("Chosen (2)").click()
    page.get_by_role("button", name="Requeue …").click()
    page.get_by_role("button", name="Go on").click()
    page.get_by_role("button", name="All").click()
    expect(page.get_by_text("acted on 2")).to_be_visible()
    assert one(engine, "SELECT count(*) FROM task_pending WHERE name = 'pay'") == 2


def test_the_keyboard_leads_everywhere(page: Page, filled: Filled) -> None:
    page.goto("/")
    places = "/tasks /errors /schedules /queues /groups /flows /batches /workers /audit /"
    for key, path in zip("tesqrfbwao", places.split(), strict=True):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"**{path}")
    page.keyboard.press("/")
    page.keyboard.type("order:1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/tasks?biz_key=order%3A1")
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("f")
    expect(page.get_by_label("Name", exact=True)).to_be_focused()


@posts("/queues/{queue:path}/pause", "/queues/{queue:path}/resume")
def test_a_queue_is_paused_and_goes_on(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto("/queues/money")
    page.get_by_text("Pause it …").click()
    page.get_by_role("button", name="Pause").first.click()
    expect(page.get_by_role("status")).to_be_visible()
    assert one(engine, "SELECT queue FROM task_queue_pause")
    page.goto("/queues/money")
    page.get_by_role("button", name="Resume").first.click()
    assert one(engine, "SELECT count(*) FROM task_queue_pause") == 0


@posts(*(f"/schedules/{{name:path}}/{word}" for word in ("run", "pause", "resume")))
def test_a_schedule_is_run_now_and_paused(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto("/schedules")
    page.get_by_role("button", name="Run now").first.click()
    assert one(engine, "SELECT count(*) FROM task_pending WHERE name = 'report'") == 1
    for label in ("Pause", "Resume"):
        page.get_by_role("button", name=f"{label}: nightly").click()
        expect(page.get_by_text(f"{label}d").first).to_be_visible()
    assert [action for action, _, _ in done(engine)] == [
        *("schedule run", "schedule disable", "schedule enable")
    ]


@posts("/groups/{group_id}/cancel")
def test_a_group_is_cancelled(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto(f"/groups/{filled['group']}")
    page.get_by_text("Cancel …").click()
    page.get_by_role("button", name="Cancel 2").click()
    expect(page.get_by_text("2 cancelled, 0 asked to stop.")).to_be_visible()


def test_a_live_part_is_replaced_and_may_rest(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto("/")
    pending = page.locator(".kpi .v").nth(2)
    before = pending.inner_text()
    waiting_task(engine, name="new.one")
    expect(pending).not_to_have_text(before, timeout=30_000)
    page.keyboard.press(" ")
    expect(page.locator("#live")).to_have_attribute("aria-pressed", "false")


def test_three_clicks_from_red_to_the_mended_task(
    page: Page, engine: Engine, filled: Filled
) -> None:
    page.goto("/")
    page.get_by_label("Queues and names").get_by_role("link", name="1", exact=True).click()
    page.get_by_role("link", name="KeyError").click()
    page.get_by_role("button", name="Requeue: task").click()
    expect(page.get_by_text("Done: requeue.")).to_be_visible()
    assert one(engine, "SELECT count(*) FROM task_pending WHERE name = 'mail'") == 1


def test_a_part_in_use_waits_and_others_go_on(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto("/")
    pending, queues = page.locator(".kpi .v").nth(2), page.get_by_label("Queues and names")
    before = pending.inner_text()
    queues.get_by_role("link").first.focus()
    waiting_task(engine, name="while.used")
    expect(pending).not_to_have_text(before, timeout=30_000)
    assert "while.used" not in queues.inner_text()
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    expect(queues).to_contain_text("while.used", timeout=30_000)


def test_each_filter_is_a_chip_that_goes_with_a_click(page: Page, filled: Filled) -> None:
    page.goto("/tasks?name=pay&state=FAILED")
    page.get_by_role("link", name="Leave out state FAILED").click()
    page.wait_for_url("**/tasks?name=pay")
    page.get_by_role("link", name="Leave out name pay").click()
    page.wait_for_url("**/tasks?")
    expect(page.locator(".chip")).to_have_count(0)
