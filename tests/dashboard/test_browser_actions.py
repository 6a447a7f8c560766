"""Every button of the dashboard, clicked: what it does is in the database and in the audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, text

from tasks_app import Flow, TaskContext, create_flow, event, handler, locks
from tasks_app.batch.job import JOBS
from tasks_app.dashboard.app import ROUTES
from tasks_app.domain.flow_control.circuit_breaker import Breaker
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control.circuit_breakers import synchronise
from tasks_app.pool.runs.heartbeats import write_heartbeat
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.handlers.registry import HANDLERS
from tests.batch.conftest import bench, yard
from tests.batch.yard import Yard
from tests.dashboard import test_browser
from tests.dashboard.browser import one
from tests.dashboard.chromium import (
    MARKS,
    POSTED,
    Filled,
    address,
    chromium,
    done,
    filled,
    page,
    posts,
)
from tests.dashboard.test_changes import WHY, reasons, row_is
from tests.dashboard.test_pages import waiting_task
from tests.factory import claimed_task, ending
from tests.runtime.api.acts import failed_task

__all__ = ["address", "bench", "chromium", "filled", "page", "yard"]
pytestmark = MARKS
WHO = "local (dashboard)"


def test_every_route_that_changes_something_is_clicked_in_a_browser() -> None:
    changing = {path for path, _, method in ROUTES if method == "POST" and path[:5] != "/api/"}
    assert changing == POSTED.keys()
    tests = {**globals(), **vars(test_browser)}
    assert [name for name in POSTED.values() if name not in tests] == []


def acted(engine: Engine) -> list[str]:
    assert {who for _, who, _ in done(engine)} <= {WHO}
    return [action for action, _, _ in done(engine)]


@pytest.fixture
def known() -> Iterator[None]:
    @handler("pay")
    def pay(ctx: TaskContext, payload: dict[str, Any]) -> None: ...

    yield
    del HANDLERS.specs["pay"]


@posts("/tasks/{task_id}/edit")
@pytest.mark.usefixtures("known")
def test_a_payload_is_edited_after_a_look(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto(f"/tasks/{filled['ids'][0]}")
    page.get_by_role("link", name="Edit …").click()
    page.locator("#payload").fill('{"order": 42}')
    page.get_by_role("button", name="Show the difference").click()
    expect(page.locator(".plus", has_text="42")).to_be_visible()
    page.locator("#payload").fill('{"order": 43}')
    expect(page.get_by_role("button", name="Save and requeue")).to_be_disabled()  # nobody saw it
    page.locator("#payload").fill('{"order": 42}')
    page.get_by_role("button", name="Show the difference").click()
    page.get_by_role("button", name="Save and requeue").click()
    expect(page.get_by_text("Saved and requeued.")).to_be_visible()
    query = "SELECT payload ->> 'order' FROM task_pending WHERE id = :id"
    assert one(engine, query, id=filled["ids"][0]) == "42"
    assert acted(engine) == ["edit", "requeue"]


@posts("/errors/{fingerprint}/known", "/errors/{fingerprint}/unknown")
def test_a_cause_is_marked_and_not_any_more(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto(f"/errors/{filled['cause']}")
    page.get_by_label("Note").fill("the bank's fault")
    page.get_by_label("For").fill("7d")
    page.get_by_role("button", name="Mark as known").click()
    expect(page.get_by_text("Marked as known.")).to_be_visible()
    marked = "SELECT note FROM task_fingerprint WHERE known_by IS NOT NULL"
    assert one(engine, marked) == "the bank's fault"
    page.get_by_role("button", name="Take the mark back").click()
    expect(page.get_by_text("It is not marked any more.")).to_be_visible()
    assert one(engine, marked) is None
    assert acted(engine) == ["error known", "error unknown"]


@posts("/schedules/{name:path}/change", "/schedules/{name:path}/remove")
def test_a_schedule_is_changed_and_removed(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto("/schedules/nightly")
    page.get_by_label("Cron").fill("0 4 * * *")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Nothing is saved yet.")).to_be_visible()
    page.get_by_role("button", name="Save the change").click()
    expect(page.get_by_text("Changed. Code that declares")).to_be_visible()
    assert one(engine, "SELECT expression FROM task_schedule") == "0 4 * * *"
    page.get_by_text("Remove this schedule …").click()
    page.get_by_role("button", name="Remove nightly").click()
    expect(page.get_by_text("Schedule nightly was removed.")).to_be_visible()
    assert one(engine, "SELECT count(*) FROM task_schedule") == 0
    assert acted(engine) == ["schedule change", "schedule remove"]


@posts("/queues/*/pause", "/queues/*/resume")
def test_every_queue_is_paused_and_goes_on(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto("/queues")
    page.get_by_text("Pause every queue …").click()
    page.get_by_label("Why").fill("the database moves")
    page.get_by_role("button", name="Pause every queue").click()
    expect(page.get_by_text("the database moves").first).to_be_visible()
    assert one(engine, "SELECT queue FROM task_queue_pause") == "*"
    page.get_by_role("button", name="Resume all queues").click()
    expect(page.get_by_role("button", name="Resume all queues")).to_have_count(0)
    assert one(engine, "SELECT count(*) FROM task_queue_pause") == 0
    assert acted(engine) == ["pause", "resume"]


@posts("/queues/{queue:path}/change", "/queues/{queue:path}/share", "/queues/{queue:path}/unshare")
def test_settings_and_shares_of_a_queue(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto("/queues/money")
    page.get_by_text("Windows and settings …").click()
    page.get_by_label("Windows, one a line").fill("mon-fri 22:00-06:00 Europe/Berlin")
    page.get_by_label("Attempts").fill("7")
    page.get_by_role("button", name="Save the settings").click()
    expect(page.get_by_role("status")).to_be_visible()
    assert one(engine, "SELECT max_attempts FROM task_queue WHERE queue = 'money'") == 7
    page.get_by_text("Share it by fair key …").click()
    page.get_by_label("Weights, one a line").fill("tenant:1=2")
    page.get_by_role("button", name="Share it", exact=True).click()
    expect(page.get_by_role("status")).to_be_visible()
    assert one(engine, "SELECT queue FROM task_queue_fair") == "money"
    page.get_by_text("Share it by fair key …").click()
    page.get_by_role("button", name="Share it no more").click()
    expect(page.get_by_text("priority and age decide.")).to_be_visible()
    assert one(engine, "SELECT count(*) FROM task_queue_fair") == 0
    assert acted(engine) == ["queue change", "share", "unshare"]


@posts("/limits/set", "/limits/drop")
def test_a_limit_is_set_and_dropped(page: Page, engine: Engine, filled: Filled) -> None:
    page.goto("/queues/money")
    page.get_by_text("Limit it …").click()
    page.get_by_label("At a time").fill("3")
    page.get_by_role("button", name="Set the limit").click()
    expect(page.get_by_role("status")).to_be_visible()
    assert one(engine, "SELECT most FROM task_limit") == 3
    page.get_by_text("Drop …").click()
    page.get_by_role("button", name="Drop").click()
    expect(page.get_by_role("status")).to_be_visible()
    assert one(engine, "SELECT count(*) FROM task_limit") == 0
    assert acted(engine) == ["set limit", "drop limit"]


@posts("/breakers/override")
def test_a_breaker_is_kept_open_and_left_alone(page: Page, engine: Engine, filled: Filled) -> None:
    with engine.begin() as connection:
        synchronise(connection, {Breaker("bank"): ["pay"]}, ["pay"])
    page.goto("/queues")
    page.get_by_role("button", name="Keep open").click()
    expect(page.get_by_text("by an operator").first).to_be_visible()
    assert one(engine, "SELECT state FROM task_breaker") == "open"
    page.get_by_role("button", name="Leave to outcomes").click()
    expect(page.get_by_text("by an operator")).to_have_count(0)
    assert acted(engine) == ["breaker", "breaker"]


@posts("/locks/free")
def test_a_lock_is_freed(page: Page, engine: Engine, filled: Filled) -> None:
    hold = locks.hold(engine, exclusive="warehouse:7")
    hold.__enter__()
    page.goto("/queues")
    page.get_by_text("Free …").click()
    page.get_by_role("button", name="Free").click()
    expect(page.get_by_role("status")).to_be_visible()
    expect(page.get_by_text("warehouse:7", exact=True)).to_have_count(0)
    assert one(engine, "SELECT count(*) FROM task_lock_holder") == 0
    with pytest.raises(locks.LockLostError):
        hold.__exit__(None, None, None)
    assert acted(engine) == ["free lock"]


@pytest.fixture
def job(yard: Yard) -> Iterator[Yard]:
    """A job of which every row fails."""

    def broken(ctx: Any, rows: Any) -> None:
        raise ValueError("row")

    yard.rows(100)
    JOBS["job"] = yard.job(yard.step(broken, max_attempts=1))
    yield yard
    JOBS.pop("job", None)


@posts("/batches/{batch_id}/stop", "/batches/{batch_id}/restart", "/batches/{batch_id}/abandon")
def test_a_batch_is_stopped_goes_on_and_is_given_up(job: Yard, page: Page, engine: Engine) -> None:
    batch_id = job.start(JOBS["job"]).batch_id
    job.bench.drain()
    page.goto(f"/batches/{batch_id}")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("It goes on, run 2.")).to_be_visible()
    page.get_by_text("Stop …").click()
    page.get_by_role("button", name="Stop at the next chunks").click()
    expect(page.get_by_text("Stopping.")).to_be_visible()
    job.bench.drain()
    page.get_by_text("Abandon …").click()  # it comes by itself
    page.get_by_role("button", name="Never let it go on").click()
    expect(page.get_by_text("Abandoned.")).to_be_visible()
    with engine.connect() as connection:
        row = connection.execute(text("SELECT status, run FROM task_batch")).one()
    assert tuple(row) == ("ABANDONED", 2)
    assert acted(engine) == ["restart batch", "stop batch", "abandon batch"]


@posts(
    *(
        f"/tasks/{{task_id}}/{word}"
        for word in ("reschedule", "reprioritise", "move", "disable", "enable")
    )
)
def test_one_task_by_its_forms(page: Page, engine: Engine, filled: Filled) -> None:
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
def test_those_behind_a_failed_one_go_on(page: Page, engine: Engine) -> None:
    with engine.begin() as connection:
        first = failed_task(connection)
        connection.execute(text("UPDATE task_error SET order_key = 'k'"))
    waiting_task(engine, order_key="k")
    page.goto(f"/tasks/{first}")
    page.get_by_role("button", name="Unblock").click()
    expect(page.get_by_text("The tasks behind it go on.")).to_be_visible()
    assert reasons(engine) == [("unblock", None)]


def test_chosen_tasks_are_moved(page: Page, engine: Engine, filled: Filled) -> None:
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


@posts("/events/{key:path}/send")
def test_an_event_is_approved_and_another_one_sent(page: Page, engine: Engine) -> None:
    flow = Flow("order")
    flow.step("ship", "t", needs=[event("order:7/fraud"), event("order:7/limit")])
    with engine.begin() as connection:
        made = create_flow(connection, flow)
    page.goto(f"/flows/{made.id}")
    page.locator(".decide").first.get_by_label("Why").first.fill(WHY)
    page.get_by_role("button", name="Approve order:7/fraud").click()
    expect(page.get_by_text("It is sent; 1 task waits for it.")).to_be_visible()
    page.goto(f"/tasks/{made.task_ids['ship']}")
    page.locator(".decide summary").click()
    page.locator(".decide").get_by_label("Payload").fill('{"limit": 100}')
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_text("It is sent; 1 task waits for it.")).to_be_visible()
    sent = "SELECT string_agg(key || payload || coalesce(why, ''), ' ' ORDER BY key)"
    assert one(engine, f"{sent} FROM task_event") == (
        f'order:7/fraud{{"approved": true}}{WHY} order:7/limit{{"limit": 100}}'
    )
    assert acted(engine) == ["send event"] * 2


@posts("/flows/{flow_id}/rerun", "/flows/{flow_id}/undo")
@pytest.mark.usefixtures("known")
def test_a_flow_runs_again_with_another_payload_and_is_undone(page: Page, engine: Engine) -> None:
    flow = Flow("order")
    flow.step("pay", "pay", {"order": 7}, undo="refund")
    with engine.begin() as connection:
        made = create_flow(connection, flow)
        task = claimed_task(connection, int(made.task_ids["pay"]), name="pay")
        settle_one(connection, ending(task, Event.SUCCEED))
    page.goto(f"/flows/{made.id}")
    page.get_by_role("link", name="Rerun from pay …").click()
    page.locator("#payload").fill('{"order": 8}')
    expect(page.get_by_role("button", name="Run 1 step again")).to_be_disabled()
    page.get_by_role("button", name="Show the difference").click()
    expect(page.locator(".plus", has_text="8")).to_be_visible()
    page.get_by_label("Why").fill(WHY)
    page.get_by_role("button", name="Run 1 step again with this payload").click()
    expect(page.get_by_text("1 step will run again: pay.")).to_be_visible()
    page.get_by_role("link", name="Undo …").click()
    page.get_by_role("button", name="Undo the flow").click()
    expect(page.get_by_text("0 steps will be undone.")).to_be_visible()
    assert one(engine, "SELECT payload ->> 'order' FROM task_all WHERE name = 'pay'") == "8"
    assert acted(engine)[:2] == ["edit", "requeue"]


@posts("/workers/stacks")
def test_a_worker_is_asked_for_its_stacks(page: Page, engine: Engine) -> None:
    with engine.begin() as connection:
        write_heartbeat(connection, owner="w:1", node="w", queues=["default"], handlers=["t"])
    page.goto("/workers")
    page.get_by_role("button", name="Stacks").click()
    expect(page.get_by_text("has not answered")).to_be_visible()
    assert one(engine, "SELECT asks FROM task_worker") is True
    assert acted(engine) == ["stacks"]
