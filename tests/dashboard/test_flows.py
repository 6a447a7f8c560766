"""Flows: their list, the page of one, and what people do there."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tasks_app import (
    CreatedFlow,
    Fail,
    Flow,
    Settings,
    TaskContext,
    create_flow,
    ended,
    event,
    failed,
    send_event,
)
from tasks_app.dashboard import graph
from tasks_app.domain.tasks.states import Event
from tasks_app.monitor.pages import flows as flows_page
from tasks_app.pool.flows import task_ids
from tasks_app.pool.runs.settle import settle_one
from tests.dashboard.browser import (
    EVIL,
    Browser,
    browser_of,
    is_inert,
    is_one_sentence,
    one,
    shows,
    text_of,
    write,
)
from tests.dashboard.flows import ends, made_flow, runs
from tests.factory import claimed_task, ending
from tests.runtime.bench import Bench
from tests.runtime.conftest import bench

__all__ = ["bench"]


def order(engine: Engine, **options: object) -> CreatedFlow:
    """Pay fails: what needs it waits, and a mail is due."""
    needs = {
        "check": (),
        "pay": "check",
        "ship": "pay",
        "sorry": failed("pay"),
        "log": ended("pay"),
    }
    made = made_flow(engine, "order", **options, **needs)
    ends(engine, made, "check", result='{"ok": true}')
    ends(engine, made, "pay", event=Event.FAIL)
    return made


def states(browser: Browser, flow: CreatedFlow) -> dict[str, str]:
    model = browser.get(f"/api/flows/{flow.id}").json()
    return {line["step"]["name"]: line["state"] for line in model["steps"]}


def requeue(browser: Browser, flow: CreatedFlow, **selection: str) -> str:
    opened = browser.act("/bulks", {"action": "requeue", "group": flow.id, **selection})
    done = browser.act(f"{opened.headers['location']}/run")
    return browser.get(done.headers["location"]).text


def test_a_flow_and_its_steps(engine: Engine, browser: Browser) -> None:
    made = order(engine, key="order:7")
    stand = ["SUCCEEDED", "FAILED", "WAITING", "PENDING", "PENDING"]
    assert list(states(browser, made).values()) == stand
    model = browser.get(f"/api/flows/{made.id}").json()
    assert (model["flow"]["state"], model["flow"]["key"]) == ("running", "order:7")
    page = browser.get(f"/flows/{made.id}").text
    for step, task_id in made.task_ids.items():
        assert page.count(f'<a href="/tasks/{task_id}"><title>{step}: ') == 1
    assert page.count('<path class="edge"') == 2
    assert page.count('<path class="edge dashed"') == 2
    shows(page, ">on failure</text>", ">at its end</text>")
    words = text_of(page)
    shows(words, "1 succeeded, 1 failed of 5", "Other steps go on", "failure of pay", "pay (open)")
    shows(words, "&#34;ok&#34;: true", "ValueError: canary-4711 is refused")


def test_an_event_is_sent_from_the_page_of_its_flow(engine: Engine, browser: Browser) -> None:
    needs = ("check", event("order:7/ok", timeout="2d"))
    made = made_flow(engine, "order", check=(), pay=needs)
    ends(engine, made, "check")
    assert states(browser, made)["pay"] == "WAITING"
    page = browser.get(f"/flows/{made.id}").text
    shows(text_of(page), "event order:7/ok (open, time-out in")
    shows(page, "Send order:7/ok", 'action="/events/order%3A7%2Fok/send"')
    done = browser.act("/events/order%3A7%2Fok/send", {"payload": "{}", "why": "called"})
    shows(browser.get(done.headers["location"]).text, "It is sent; 1 task waits for it.")
    assert states(browser, made)["pay"] == "PENDING"
    again = browser.act("/events/order%3A7%2Fok/send", {"payload": "{}"})
    shows(browser.get(again.headers["location"]).text, "it was sent before")


@pytest.mark.parametrize(
    ("end", "word"), [(Event.SKIP, "SKIPPED"), (Event.CANCEL, "CANCELLED"), (None, "RUNNING")]
)
def test_a_step_says_how_it_stands(
    engine: Engine, browser: Browser, end: Event | None, word: str
) -> None:
    made = made_flow(engine, a=(), b=failed("a"))
    if end is None:
        runs(engine, made, "a")
    else:
        ends(engine, made, "a", event=end)
    assert states(browser, made)["a"] == word
    assert states(browser, made)["b"] == {"SKIPPED": "NOT NEEDED", "CANCELLED": "PENDING"}.get(
        word, "WAITING"
    )


def test_what_is_pruned_or_held_is_told(engine: Engine, browser: Browser) -> None:
    made = made_flow(engine, a=(), b="a", c=())
    ends(engine, made, "a")
    write(engine, "DELETE FROM task_completed")
    browser.act(f"/tasks/{made.task_ids['c']}/hold")
    assert states(browser, made) == {"a": "SUCCEEDED", "b": "PENDING", "c": "HELD"}
    assert "Requeue" not in browser.get(f"/flows/{made.id}").text


def test_what_failed_is_requeued_and_the_flow_goes_on(engine: Engine, browser: Browser) -> None:
    made = made_flow(engine, a=(), b="a")
    ends(engine, made, "a", event=Event.FAIL)
    page = browser.get(f"/flows/{made.id}").text
    shows(text_of(page), "STALLED", "Requeue 1 failed and go on …", "Failed: a . Nothing goes on")
    link = f"/bulks/new?action=requeue&amp;group={made.id}&amp;state=FAILED"
    assert link in page
    assert "Requeue 1 task?" in browser.get(link.replace("&amp;", "&")).text
    page = requeue(browser, made, state="FAILED")
    assert f'<a href="/groups/{made.id}">{made.id}</a>' in page
    assert states(browser, made) == {"a": "PENDING", "b": "WAITING"}
    ends(engine, made, "a", "b")
    assert one(engine, "SELECT outcome FROM task_group") == "SUCCEEDED"


def test_what_failed_in_a_flow_that_was_undone_is_not_requeued(
    bench: Bench, browser: Browser, settings: Settings
) -> None:
    @bench.handler("t", max_attempts=1)
    def t(ctx: TaskContext, payload: dict[str, str]) -> None:
        if payload["step"] == "b":
            raise Fail("no")

    flow = Flow("f")
    flow.step("a", "t", {"step": "a"}, undo="u")
    flow.step("b", "t", {"step": "b"})
    made = bench.do(create_flow, flow, on_failure="undo")
    bench.drain()
    steps = dict(states(browser, made))
    assert (steps["b"], steps["undo"]) == ("FAILED", "SUCCEEDED")
    assert "Requeue" not in browser.get(f"/flows/{made.id}").text
    with bench.engine.begin() as connection:
        undo = task_ids(connection, made.id)["undo:a"]
        settle_one(connection, ending(claimed_task(connection, undo, name="u"), Event.FAIL))
    with bench.engine.connect() as connection:
        page = flows_page.flow_page(connection, made.id)
    assert page is not None
    assert {state: [step.name for step in of] for state, of in page.failed.items()} == {
        "FAILED": ["undo:a"]
    }


def test_what_a_failure_cancelled_is_requeued_too(
    bench: Bench, browser: Browser, settings: Settings
) -> None:
    broken = {"a"}

    @bench.handler("t", max_attempts=1)
    def t(ctx: TaskContext, payload: dict[str, str]) -> None:
        if payload["step"] in broken:
            raise Fail("no")

    flow = Flow("f")
    for step, needs in (("a", ()), ("b", "a"), ("c", "b"), ("sorry", failed("b"))):
        flow.step(step, "t", {"step": step}, needs=needs)
    made = bench.do(create_flow, flow, on_failure="cancel")
    bench.drain()
    page = browser.get(f"/flows/{made.id}").text
    shows(page, "NOT NEEDED", "a failure cancels the rest", "requeue them, too …")
    assert f"pool=completed&amp;group={made.id}&amp;state=SKIPPED" in page
    broken.clear()
    requeue(browser, made, pool="completed", state="SKIPPED")
    requeue(browser, made, state="FAILED")
    bench.drain()
    assert one(bench.engine, "SELECT outcome FROM task_group") == "SUCCEEDED"
    ran = {"a": "SUCCEEDED", "b": "SUCCEEDED", "c": "SUCCEEDED", "sorry": "NOT NEEDED"}
    assert states(browser_of(settings, "viewer"), made) == ran


def test_cancelled_steps_are_requeued(engine: Engine, browser: Browser) -> None:
    made = made_flow(engine, a=(), b="a")
    browser.act(f"/tasks/{made.task_ids['a']}/cancel")
    page = browser.get(f"/flows/{made.id}").text
    shows(text_of(page), "STALLED", "Requeue 1 cancelled and go on …", "Cancelled: a . Nothing")
    requeue(browser, made, state="CANCELLED")
    assert states(browser, made) == {"a": "PENDING", "b": "WAITING"}


def test_a_flow_that_has_only_to_skip_is_not_stalled(engine: Engine, browser: Browser) -> None:
    made = made_flow(engine, a=(), sorry=failed("a"))
    ends(engine, made, "a")
    assert browser.get(f"/api/flows/{made.id}").json()["flow"]["state"] == "running"


def test_a_flow_is_cancelled_and_shown_again(engine: Engine, browser: Browser) -> None:
    made = order(engine)
    assert f'action="/groups/{made.id}/cancel"' in browser.get(f"/flows/{made.id}").text
    answer = browser.act(f"/groups/{made.id}/cancel")
    answer = browser.get(answer.headers["location"])
    assert answer.headers["location"] == f"/flows/{made.id}"
    page = text_of(browser.get(f"/flows/{made.id}").text)
    shows(page, "3 cancelled, 0 asked to stop.", "FAILED", "The flow is over;")
    assert "Cancel …" not in page


def test_flows_by_name_key_and_state(
    engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "There are no flows yet" in browser.get("/flows?before=1").text
    made = {
        "running": made_flow(engine, "order", key="order:7", a=(), b="a"),
        "stalled": made_flow(engine, "order", a=(), b="a"),
        "failed": made_flow(engine, "order", a=()),
        "succeeded": made_flow(engine, "return", a=()),
    }
    ends(engine, made["running"], "a")
    ends(engine, made["stalled"], "a", event=Event.FAIL)
    ends(engine, made["failed"], "a", event=Event.FAIL)
    ends(engine, made["succeeded"], "a")
    named = {flow.id: state for state, flow in made.items()}

    def found(query: str) -> list[str]:
        return [named[flow["id"]] for flow in browser.get(f"/api/flows?{query}").json()["flows"]]

    assert found("") == ["succeeded", "failed", "stalled", "running"]
    for state in made:
        assert found(f"state={state}") == [state]
    assert found("name=return") == ["succeeded"]
    assert found("key=order:7") == ["running"]
    monkeypatch.setattr(flows_page, "PAGE", 2)
    older = browser.get("/api/flows?name=order").json()["older"]
    assert found(f"name=order&before={older}") == ["running"]
    assert f"before={older}&amp;name=order" in browser.get("/flows?name=order").text
    page = text_of(browser.get("/flows?state=stalled").text)
    shows(page, "STALLED", "order", "1 of 2")
    assert "No flow fits" in browser.get("/flows?key=x").text
    assert browser.get("/flows?state=x").status_code == 400
    is_one_sentence(browser.get("/flows/4711"), 404)


def test_tasks_and_groups_lead_to_their_flow(engine: Engine, browser: Browser) -> None:
    made = order(engine)
    page = browser.get(f"/tasks/{made.task_ids['ship']}").text
    assert f'<dd>step ship of <a href="/flows/{made.id}">flow {made.id}</a>' in page
    assert f'<a href="/flows/{made.id}">order</a>' in browser.get("/groups").text


def test_a_large_flow_is_a_table(
    engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "MOST_NODES", 4)
    page = browser.get(f"/flows/{order(engine).id}").text
    assert "would be too large to read" in page
    assert "<marker" not in page
    assert page.count("<tr data-href") == 5


def items_of(bench: Bench, number: int, *, broken: int = 0) -> CreatedFlow:
    """Return a flow whose map has this many items, of which the first are broken."""

    @bench.handler("list")
    def list_(ctx: TaskContext) -> list[int]:
        return list(range(number))

    @bench.handler("item", max_attempts=1)
    def item(ctx: TaskContext, payload: int) -> int:
        if payload < broken:
            raise Fail("canary is refused")
        return payload

    flow = Flow("f")
    flow.step("sum", "list", needs=flow.map("label", "item", over=flow.step("all", "list")))
    made = bench.do(create_flow, flow)
    bench.drain()
    return made


@pytest.mark.parametrize("broken", [3, 70])
def test_items_are_folded_into_their_map(bench: Bench, browser: Browser, broken: int) -> None:
    made = items_of(bench, 200, broken=broken)
    page = browser.get(f"/flows/{made.id}").text
    words = text_of(page)
    shows(words, f"{200 - broken} of 200 items, {broken} failed", "150 more items", "WAITING")
    assert page.count('<path class="edge"') == 2
    assert page.count('width="184"') == 3
    assert f'<text class="items" x="172" y="36">{200 - broken} of 200</text>' in page
    listed = list(states(browser, made).items())
    assert listed[3:6] == [(f"label[{n}]", "FAILED") for n in range(3)]
    assert len(listed) == 53
    shows(words, "Requeue 3 failed and go on …" if broken == 3 else "Requeue failed and go on …")


def test_rules_mask_results_and_errors(
    engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_flow(engine, a=(), b="a", c=(), d=())
    ends(engine, made, "a", result='{"card": "canary-4711", "password": "canary-4712"}')
    ends(engine, made, "b", event=Event.FAIL)
    ends(engine, made, "c", event=Event.FAIL)
    ends(engine, made, "d", event=Event.CANCEL)
    monkeypatch.setenv("TASKS_APP_MASKED_PATHS", "card")
    for path in (f"/flows/{made.id}", f"/api/flows/{made.id}"):
        page = browser.get(path).text
        assert "canary" not in page
        shows(page, "***", "*** is refused")
    [a, *_] = browser.get(f"/api/flows/{made.id}").json()["steps"]
    assert a["step"]["result"] == {"card": "***", "password": "***"}


def test_markup_is_inert_and_viewers_get_no_buttons(engine: Engine, settings: Settings) -> None:
    viewer = browser_of(settings, "viewer")
    made = made_flow(engine, EVIL, key=EVIL, **{EVIL: (), "b": EVIL})
    ends(engine, made, EVIL, event=Event.FAIL)
    for path in ("/flows", f"/flows/{made.id}", f"/tasks/{made.task_ids['b']}", "/groups"):
        page = viewer.get(path)
        assert page.status_code == 200, path
        is_inert(page.text, path)
        assert 'method="post"' not in page.text, path
        assert "Requeue" not in page.text, path
    assert one(engine, "SELECT count(*) FROM task_audit") == 0


def checked(engine: Engine, key: str = "order:7/fraud", name: str = "f") -> CreatedFlow:
    """Ship waits for an event."""
    flow = Flow(name)
    flow.step("ship", "t", needs=event(key))
    with engine.begin() as connection:
        return create_flow(connection, flow)


@pytest.mark.parametrize(("word", "approved"), [("Approve", True), ("Reject", False)])
def test_an_operator_decides_on_an_event(
    engine: Engine, settings: Settings, word: str, approved: bool
) -> None:
    made = checked(engine)
    operator = browser_of(settings, "operator")
    for path in (f"/flows/{made.id}", f"/tasks/{made.task_ids['ship']}"):
        page = operator.get(path).text
        action = '<form class="filters" method="post" action="/events/order%3A7%2Ffraud/send">'
        assert page.count(action) == 2, path
        payload = f'{{"approved": {str(approved).lower()}}}'
        button = f'name="payload" value=\'{payload}\' aria-label="{word} order:7/fraud">{word}<'
        shows(page, button, '<textarea name="payload"', f'name="page" value="{path[1:]}"')
        assert "/events/" not in browser_of(settings, "viewer").get(path).text
    given = {"payload": payload, "why": "called them", "page": f"flows/{made.id}"}
    answer = operator.act("/events/order%3A7%2Ffraud/send", given)
    assert answer.headers["location"] == f"/flows/{made.id}"
    page = operator.get(answer.headers["location"]).text
    shows(
        text_of(page),
        "It is sent; 1 task waits",
        "SENT",
        "bob (dashboard)",
        "called them",
        "approved&#34;:",
    )
    assert "/events/" not in page
    facts = text_of(operator.get(f"/tasks/{made.task_ids['ship']}").text)
    shows(facts, "order:7/fraud: sent", "by bob (dashboard): called them")
    [sent] = operator.get(f"/api/flows/{made.id}").json()["events"]
    assert (sent["payload"], sent["by"]) == ({"approved": approved}, "bob (dashboard)")
    audited = "SELECT action || ' by ' || who FROM task_audit"
    assert one(engine, audited) == "send event by bob (dashboard)"
    again = operator.get(operator.act("/events/order%3A7%2Ffraud/send").headers["location"])
    shows(again.text, "Nothing was changed: it was sent before.")


def test_a_viewer_sends_nothing_and_nobody_is_led_away(
    engine: Engine, browser: Browser, settings: Settings
) -> None:
    checked(engine)
    path = "/events/order%3A7%2Ffraud/send"
    assert browser_of(settings, "viewer").act(path).status_code == 403
    wrong = browser.act(path, {"payload": "{", "page": "flows/1"})
    is_one_sentence(wrong, 409)
    answer = browser.act(path, {"page": "/evil.example"})
    assert answer.headers["location"] == "/events"


def test_events_are_drawn_and_told(engine: Engine, browser: Browser) -> None:
    flow = Flow("f")
    needs = [event("late", timeout="1s"), event("order:7/ok")]
    flow.step("ship", "t", needs=needs)
    flow.step("\u0001order:7/ok", "t")
    with engine.begin() as connection:
        made = create_flow(connection, flow)
        send_event(connection, "order:7/ok", {"card": "canary-4711"}, by="ann")
    write(engine, "UPDATE task_event_wait SET until = now() - interval '1s' WHERE key = 'late'")
    page = browser.get(f"/flows/{made.id}").text
    shows(page, "<title>Event late: NOT SENT</title>", "<title>Event order:7/ok: SENT</title>")
    assert '<a href="/events?key=order%3A7%2Fok"><title>' in page
    assert page.count('<path class="box"') == page.count('<path class="edge"') == 2
    assert "Approve" not in page


def test_rules_mask_payloads_of_events(
    engine: Engine, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = checked(engine)
    browser.act(
        "/events/order%3A7%2Ffraud/send",
        {"payload": '{"card": "canary-4711", "password": "canary-4712"}'},
    )
    monkeypatch.setenv("TASKS_APP_MASKED_PATHS", "t:card")
    for path in (f"/flows/{made.id}", f"/tasks/{made.task_ids['ship']}"):
        for page in (browser.get(path).text, browser.get(f"/api{path}").text):
            assert "canary" not in page, path
            assert "***" in page, path


def test_markup_in_events_is_inert(engine: Engine, browser: Browser) -> None:
    made = checked(engine, EVIL)
    paths = (f"/flows/{made.id}", f"/tasks/{made.task_ids['ship']}")
    for path in paths:
        shows(browser.get(path).text, "Approve")
        is_inert(browser.get(path).text, path)
    with engine.begin() as connection:
        send_event(connection, EVIL, {EVIL: EVIL}, by=EVIL, why=EVIL)
    for path in paths:
        is_inert(browser.get(path).text, path)


def test_events_that_wait_and_that_were_sent(
    engine: Engine, browser: Browser, settings: Settings
) -> None:
    other = browser_of(settings, "viewer")  # who keeps nothing that the next one reads
    assert "No task waits for an event" in other.get("/events").text
    assert 'href="/events"' in browser.get("/flows").text
    checked(engine, "order:7/fraud")
    checked(engine, EVIL)
    with engine.begin() as connection:
        send_event(connection, "order:8/fraud", {"a": "canary-4711"}, by="ann", why=EVIL)
    write(
        engine, "UPDATE task_event_wait SET since = now() - interval '3h' WHERE key <> :k", k=EVIL
    )
    answer = browser.get("/api/events").json()["events"]
    keys = ["order:7/fraud", EVIL, "order:8/fraud"]
    assert [each["key"] for each in answer] == keys
    assert [each["waiting"] for each in answer] == [1, 1, 0]
    page = browser.get("/events").text
    is_inert(page)
    shows(text_of(page), "3 h ago", "ann", "WAITING", "SENT")
    assert "canary" not in page + str(answer)
    waiting = browser.get("/api/events?state=waiting").json()["events"]
    assert [each["key"] for each in waiting] == keys[:2]
    path = "/events?key=order%3A7%2Ffraud"
    assert "Approve" not in page
    assert "Approve" in browser.get(path).text
    assert "Approve" not in browser.get("/events?key=order%3A8%2Ffraud").text
    assert "Approve" not in browser_of(settings, "viewer").get(path).text
    assert "No event fits" in browser.get("/events?key=x").text
