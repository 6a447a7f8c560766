"""A flow runs again from a step, or is undone: what that would do is shown before."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tasks_app import CreatedFlow, Flow, Settings, create_flow
from tasks_app.domain.tasks.states import Event
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
from tests.dashboard.test_edit import known
from tests.dashboard.test_flows import states

__all__ = ["known"]


def over(engine: Engine) -> CreatedFlow:
    made = made_flow(engine, "order", a=(), b="a", c="b", d="a")
    ends(engine, made, "a", "b", "c", "d")
    return made


def undoable(engine: Engine, name: str = "order", undo: str = "card.refund") -> CreatedFlow:
    flow = Flow(name)
    pay = flow.step("pay", "t", undo=undo)
    flow.step("ship", "t", needs=pay, undo=undo)
    flow.step("thanks", "t", needs="ship")
    with engine.begin() as connection:
        made = create_flow(connection, flow)
    ends(engine, made, "pay", "ship")
    return made


def test_a_flow_runs_again_from_a_step_after_a_look(engine: Engine, settings: Settings) -> None:
    made, operator = over(engine), browser_of(settings, "operator")
    link = f"/flows/{made.id}/rerun?step=b"
    page = operator.get(f"/flows/{made.id}").text
    assert page.count("Rerun from here …") == 4
    assert f'href="{link}"' in page
    page = operator.get(link).text
    assert page.index(">b</td>") < page.index(">c</td>")
    assert ">d</td>" not in page
    shows(text_of(page), "Run order again from b?", "Run 2 steps again")
    assert "<textarea" not in page, "only an admin edits"
    assert set(states(operator, made).values()) == {"SUCCEEDED"}, "nothing was changed"
    answer = operator.act(f"/flows/{made.id}/rerun", {"step": "b", "why": "the bank was down"})
    page = operator.get(answer.headers["location"]).text
    shows(page, "2 steps will run again: b, c.")
    assert page.count("Rerun from here …") == 2
    assert list(states(operator, made).values()) == ["SUCCEEDED", "PENDING", "WAITING", "SUCCEEDED"]
    [line] = operator.get("/api/audit").json()["lines"]
    assert (line["action"], line["who"]) == ("requeue", "bob (dashboard)")
    assert "the bank was down" in str(line)


def test_refusals_of_a_rerun_are_sentences(engine: Engine, browser: Browser) -> None:
    made = made_flow(engine, a=(), b="a", c=())
    ends(engine, made, "a")
    runs(engine, made, "b")
    refusals = {
        "a": f"Step b (task {made.task_ids['b']}) runs.",
        "x": "has no step &#39;x&#39;",
    }
    for step, sentence in refusals.items():
        looked = browser.get(f"/flows/{made.id}/rerun?step={step}")
        for answer in (looked, browser.act(f"/flows/{made.id}/rerun", {"step": step})):
            is_one_sentence(answer, 409)
            shows(answer.text, sentence)
    is_one_sentence(browser.get(f"/flows/{made.id}/rerun"))
    for answer in (
        browser.get("/flows/4711/rerun?step=a"),
        browser.get("/flows/4711/undo"),
    ):
        is_one_sentence(answer, 404)
    assert one(engine, "SELECT count(*) FROM task_audit") == 0


@pytest.mark.usefixtures("known")
def test_an_admin_gives_another_payload_after_its_difference(
    engine: Engine, browser: Browser
) -> None:
    flow = Flow("f")
    flow.step("a", "edit.me", {"order": 1, "api_token": "tok_secret"})
    with engine.begin() as connection:
        made = create_flow(connection, flow)
    write(engine, "UPDATE task_pending SET name = 't'")
    ends(engine, made, "a", event=Event.FAIL)
    write(engine, "UPDATE task_error SET name = 'edit.me'")
    path, stored = f"/flows/{made.id}/rerun", "SELECT payload FROM task_all WHERE id = :id"
    page = browser.get(f"{path}?step=a").text
    shows(page, "<textarea", "api_token&#34;: &#34;***")
    given = {"step": "a", "payload": '{"order": 2, "api_token": "***"}'}
    page = browser.act(path, {**given, "look": "true"}).text
    shows(page, "-  &#34;order&#34;: 1,", "+  &#34;order&#34;: 2,", "again with this payload")
    assert "tok_secret" not in page
    wrong = browser.act(path, {**given, "payload": '{"order": "many"}', "look": "true"})
    assert wrong.status_code == 409
    shows(wrong.text, 'role="alert"', "many&#34;}</textarea>")
    assert "1 step again" not in wrong.text
    is_one_sentence(browser.act(path, {**given, "payload": '{"order": "many"}'}), 409)
    same = browser.act(
        path, {"step": "a", "payload": '{"order": 1, "api_token": "***"}', "look": 1}
    )
    shows(same.text, "there is none", "Run 1 step again</button>")
    task_id = made.task_ids["a"]
    assert one(engine, stored, id=task_id) == {"order": 1, "api_token": "tok_secret"}
    browser.act(path, given)
    assert one(engine, stored, id=task_id) == {"order": 2, "api_token": "tok_secret"}
    assert states(browser, made) == {"a": "PENDING"}


def test_who_may_what(engine: Engine, settings: Settings) -> None:
    made, viewer = over(engine), browser_of(settings, "viewer")
    page = viewer.get(f"/flows/{made.id}").text
    assert "Rerun" not in page
    for path in (f"/flows/{made.id}/rerun?step=a", f"/flows/{made.id}/undo"):
        assert viewer.get(path).status_code == 403
    for path in (f"/flows/{made.id}/rerun", f"/flows/{made.id}/undo"):
        assert viewer.act(path, {}).status_code == 403
    operator = browser_of(settings, "operator")
    is_one_sentence(operator.act(f"/flows/{made.id}/rerun", {"step": "a", "payload": "{}"}), 403)
    assert one(engine, "SELECT count(*) FROM task_audit") == 0


def test_programs_run_a_flow_again_and_undo_it(engine: Engine, browser: Browser) -> None:
    made = undoable(engine)
    said = browser.ask("POST", f"/api/flows/{made.id}/rerun", json={"step": "ship"}).json()
    assert said == {"said": "2 steps will run again: ship, thanks.", "changed": True}
    said = browser.ask("POST", f"/api/flows/{made.id}/undo", json={"why": "no stock"}).json()
    assert said == {"said": "1 step will be undone: pay.", "changed": True}
    strange = browser.ask("POST", f"/api/flows/{made.id}/rerun", json={"from": "ship"})
    assert strange.status_code == 400


def test_a_flow_is_undone_after_a_look(engine: Engine, settings: Settings) -> None:
    made, operator = undoable(engine), browser_of(settings, "operator")
    assert f'href="/flows/{made.id}/undo"' in operator.get(f"/flows/{made.id}").text
    page = operator.get(f"/flows/{made.id}/undo").text
    assert page.index(">ship</td>") < page.index(">pay</td>")
    assert "thanks" not in page
    shows(page, "card.refund")
    answer = operator.act(f"/flows/{made.id}/undo", {"why": "no stock"})
    assert answer.headers["location"] == f"/flows/{made.id}"
    page = operator.get(answer.headers["location"]).text
    shows(page, "2 steps will be undone: ship, pay.")
    assert f"/flows/{made.id}/undo" not in page, "it was asked for"
    shows(text_of(page), "· undone")
    assert "Rerun from here" not in page, "what was undone is created anew"
    answer = operator.act(f"/flows/{made.id}/undo")
    shows(operator.get(answer.headers["location"]).text, "It was undone before; nothing was")
    assert "no stock" in operator.get("/audit").text


def test_a_flow_without_an_undo_is_not_undone(engine: Engine, browser: Browser) -> None:
    made = over(engine)
    assert "/undo" not in browser.get(f"/flows/{made.id}").text
    for answer in (
        browser.get(f"/flows/{made.id}/undo"),
        browser.act(f"/flows/{made.id}/undo"),
    ):
        is_one_sentence(answer, 409)
        shows(answer.text, f"No step of flow {made.id} has an undo=.")


def test_markup_of_steps_is_inert(engine: Engine, browser: Browser) -> None:
    made = made_flow(engine, EVIL, **{EVIL: (), "b": EVIL})
    ends(engine, made, EVIL, "b")
    page = browser.get(f"/flows/{made.id}/rerun", params={"step": EVIL})
    assert page.status_code == 200
    is_inert(page.text)
    undone = browser.get(f"/flows/{undoable(engine, EVIL).id}/undo")
    assert undone.status_code == 200
    is_inert(undone.text)
