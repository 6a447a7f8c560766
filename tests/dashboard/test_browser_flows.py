"""Flows in a real Chromium: their graphs can be read, light and dark, wide and narrow."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from tasks_app import CreatedFlow, Flow, create_flow, ended, event, failed, send_event
from tasks_app.domain.tasks.states import Event
from tests.dashboard.chromium import MARKS, WIDE, address, chromium, page
from tests.dashboard.flows import ends, made_flow, runs
from tests.dashboard.test_browser import NARROW, RULES

__all__ = ["address", "chromium", "page"]
pytestmark = MARKS
LEAST_CONTRAST = 4.5
# Axe leaves out what SVG draws. Of each text the lowest contrast with the box behind it.
CONTRASTS = """() => {
    const light = (color) => {
        const [r, g, b] = color.match(/[0-9.]+/g).slice(0, 3).map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    return [...document.querySelectorAll(".graph text")].map((text) => {
        const box = text.parentNode.querySelector(":scope > .box");
        const style = getComputedStyle(box || text);
        const [x, y] = [light(getComputedStyle(text).fill), light(box ? style.fill : style.stroke)];
        return [text.textContent, (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05)];
    });
}"""


def order(engine: Engine) -> CreatedFlow:
    """Every state of a step."""
    needs = {"check": (), "pay": "check", "pack": "check", "ship": ("pay", "pack"), "spare": ()}
    needs |= {"sorry": failed("pay"), "log": ended("ship"), "alarm": failed("check")}
    made = made_flow(engine, "order", key="order:7", **needs)
    ends(engine, made, "check")
    ends(engine, made, "pay", event=Event.FAIL)
    ends(engine, made, "spare", event=Event.CANCEL)
    runs(engine, made, "sorry")
    return made


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_graph_is_accessible_and_never_wider_than_the_window(
    chromium: Any, engine: Engine, address: str, theme: str, size: dict[str, int]
) -> None:
    large = made_flow(
        engine, "large", **{f"step_{n}": f"step_{n - 1}" if n else () for n in range(30)}
    )
    context = chromium.new_context(base_url=address, viewport=size, color_scheme=theme)
    page = context.new_page()
    wrong: list[Any] = []
    asked = Flow("asked")
    asked.step("ship", "t", needs=[event("order:7/fraud"), event("order:7/limit")], undo="t")
    asked.step("spare", "t", undo="t")
    with engine.begin() as connection:
        asks = create_flow(connection, asked)
        send_event(connection, "order:7/limit", {"limit": 100}, by="ann", why="called them")
    ends(engine, asks, "spare")
    looks = [f"/flows/{asks.id}/rerun?step=spare", f"/flows/{asks.id}/undo"]
    looks += ["/events?key=order:7/fraud", f"/tasks/{asks.task_ids['ship']}"]
    boxes = {f"/flows/{flow.id}": len(flow.task_ids) for flow in (order(engine), large)}
    for path, number in {**boxes, f"/flows/{asks.id}": 4, **dict.fromkeys(looks, 0)}.items():
        page.goto(path)
        assert page.locator(".graph a").count() == number
        found = Axe().run(page, options=RULES).response["violations"]
        wrong += [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in found]
        wrong += [each for each in page.evaluate(CONTRASTS) if each[1] < LEAST_CONTRAST]
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        wrong += [("wider", path, wide)] if wide > 0 else []
    context.close()
    assert wrong == []


def test_a_graph_leads_to_a_task_and_stays_where_it_was_scrolled_to(
    page: Page, engine: Engine
) -> None:
    chain = {f"step_{n}": f"step_{n - 1}" if n else () for n in range(12)}
    made = made_flow(engine, "chain", **chain)
    page.goto(f"/flows/{made.id}")
    scroll = "document.querySelector('.graph').scrollLeft"
    page.evaluate(f"{scroll} = 300")
    ends(engine, made, "step_0")
    expect(page.locator(".graph svg.ok")).to_have_count(1, timeout=30_000)
    assert page.evaluate(scroll) == 300
    page.locator(".graph").get_by_role("link", name="step_3: WAITING").click()
    page.wait_for_url(f"**/tasks/{made.task_ids['step_3']}")
    page.get_by_role("link", name=f"flow {made.id}").click()
    page.wait_for_url(f"**/flows/{made.id}")
