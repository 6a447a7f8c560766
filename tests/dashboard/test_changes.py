"""What people change on pages: one task, many tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tasks_app import NewTask, Settings, TaskContext, create_group, handler
from tasks_app.dashboard.routes import bulks
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.operations.audit import find
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.handlers.registry import HANDLERS
from tests.dashboard.browser import (
    EVIL,
    Browser,
    browser_of,
    dashboard,
    is_inert,
    is_one_sentence,
    one,
    text_of,
    write,
)
from tests.dashboard.test_errors import fails, fingerprint_of
from tests.dashboard.test_pages import audit, waiting_task
from tests.dashboard.test_pages import failed_task as failed_task_of_bulks
from tests.factory import claimed_task, ending
from tests.runtime.api.acts import failed_task, make

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
def test_requeue_cancel_edit_and_groups_keep_their_reason(engine: Engine, browser: Browser) -> None:
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
    viewer = browser_of(settings, "viewer")
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
    words = {"to_queue": "slow", "why": WHY}
    said = browser.ask("POST", f"/api/tasks/{task_id}/move", json=words)
    assert said.json() == {"said": "Done: move.", "changed": True}
    assert reasons(engine) == [("move", WHY)]


def opened(browser: Browser, **selection: object) -> str:
    answer = browser.act("/bulks", {"action": "requeue", **selection})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def states(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT state, count(*) FROM task_all GROUP BY 1"))
        return {row.state: row.count for row in rows}


@pytest.mark.test_all
def test_a_cause_is_requeued_in_stages(engine: Engine, browser: Browser) -> None:
    ids = [fails(engine, "shop.Declined", f"order {number}", name="pay") for number in range(15)]
    other = fails(engine, "KeyError", "'zip'", name="pay")
    fingerprint = fingerprint_of(browser, ids[0])

    seen = text_of(browser.get(f"/bulks/new?action=requeue&fingerprint={fingerprint}").text)
    assert "Requeue 15 tasks of shop.Declined: order" in seen
    one = browser.get(f"/bulks/new?action=requeue&fingerprint={fingerprint_of(browser, other)}")
    assert "Requeue 1 task of KeyError" in text_of(one.text)
    assert states(engine) == {"FAILED": 16}
    path = opened(browser, fingerprint=fingerprint)
    assert "Nothing has been done yet" in browser.get(path).text
    assert states(engine) == {"FAILED": 16}

    browser.act(f"{path}/run", {"first": "1"})
    assert states(engine) == {"FAILED": 15, "PENDING": 1}
    assert "1 of 1 have not ended yet" in browser.get(path).text
    browser.act(f"{path}/run", {"first": "10"})
    assert states(engine) == {"FAILED": 5, "PENDING": 11}
    browser.act(f"{path}/run")
    assert states(engine) == {"FAILED": 1, "PENDING": 15}
    model = browser.get(f"/api{path}").json()
    assert (model["done"], model["over"], model["states"]) == (15, True, {"PENDING": 15})
    assert browser.get(f"/api/tasks/{other}").json()["task"]["state"] == "FAILED"
    told = audit(engine)
    assert {who for _, who, _ in told} == {"local (dashboard)"}
    assert sorted(each for _, _, found in told for each in found) == ids


def test_a_repeated_failure_is_told_before_the_next_stage(engine: Engine, browser: Browser) -> None:
    ids = [fails(engine, "shop.Declined", f"order {number}", name="pay") for number in range(3)]
    path = opened(browser, fingerprint=fingerprint_of(browser, ids[0]))
    browser.act(f"{path}/run", {"first": "1"})
    write(
        engine,
        "INSERT INTO task_attempt (task_id, attempt, event, kind, message, fingerprint)"
        " SELECT p.id, 2, 'retry', 'shop.Declined', 'no', e.fingerprint"
        " FROM task_pending p, (SELECT fingerprint FROM task_error LIMIT 1) e",
    )
    assert "1 of 1 failed for the same cause again" in browser.get(path).text
    assert browser.get(f"/api{path}").json()["again"] == 1


def test_what_failed_otherwise_is_said_before_the_next_stage(
    engine: Engine, browser: Browser, settings: Settings
) -> None:
    for _ in range(2):
        failed_task_of_bulks(engine, name="pay")
    path = opened(browser, name="pay")
    browser.act(f"{path}/run", {"first": "1"})
    assert "Done to 1 task." in browser.get(path).text
    again = one(engine, "SELECT id FROM task_pending")
    with engine.begin() as connection:
        task = claimed_task(connection, again, name="pay")
        settle_one(connection, ending(task, Event.FAIL, cause=Cause("KeyError", "'zip'")))
    page = text_of(Browser(dashboard(settings)).get(path).text)
    assert "The task has failed. Check one before you go on." in page


def test_what_matches_is_held_and_released_in_stages(engine: Engine, browser: Browser) -> None:
    ids = [waiting_task(engine) for _ in range(3)]
    listed = browser.get("/tasks?pool=pending&queue=default").text
    assert "/bulks/new?action=hold&amp;pool=pending&amp;queue=default" in listed
    seen = browser.get("/bulks/new?action=hold&pool=pending&queue=default").text
    assert "Hold 3 tasks?" in text_of(seen)

    path = opened(browser, action="hold", pool="pending", queue="default", why="the bank asks")
    browser.act(f"{path}/run", {"first": "1"})
    assert "the bank asks" in text_of(browser.get(path).text)
    held = browser.get(f"/api/tasks/{ids[0]}").json()["task"]["held"]
    other = browser.get(f"/api/tasks/{ids[1]}").json()["task"]["held"]

    assert (held, other) == (True, False)
    assert "held" in text_of(browser.get("/tasks").text)
    page = text_of(browser.get(f"/tasks/{ids[0]}").text)
    assert "It was put on hold just now" in page
    assert "the bank asks" in page
    assert "9899-" not in page
    browser.act(f"/tasks/{ids[0]}/release")
    assert not browser.get(f"/api/tasks/{ids[0]}").json()["task"]["held"]


def test_chosen_ids_are_cancelled(engine: Engine, browser: Browser) -> None:
    ids = [waiting_task(engine) for _ in range(4)]
    path = opened(browser, action="cancel", ids=f"{ids[0]},{ids[2]}")
    browser.act(f"{path}/run")
    assert states(engine) == {"PENDING": 2, "CANCELLED": 2}


def test_the_api_does_the_same(engine: Engine, browser: Browser) -> None:
    ids = [failed_task_of_bulks(engine) for _ in range(3)]
    page = browser.ask("POST", "/api/bulks", json={"action": "requeue", "ids": ids}).json()
    assert (page["done"], page["over"]) == (0, False)
    page = browser.ask("POST", f"/api/bulks/{page['token']}/run", json={"first": 2}).json()
    assert (page["done"], page["states"]) == (2, {"PENDING": 2})
    assert {who for _, who, _ in audit(engine)} == {"local (api)"}


def test_an_operator_acts_on_a_limited_number(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulks, "MOST_OF_OPERATORS", 3)
    for _ in range(5):
        failed_task_of_bulks(engine, name="n")
    operator = browser_of(settings, "operator")
    path = opened(operator, name="n")
    assert operator.act(f"{path}/run", {"first": "4"}).status_code == 403
    operator.act(f"{path}/run")
    assert states(engine) == {"FAILED": 2, "PENDING": 3}
    answer = operator.act(f"{path}/run")
    assert answer.status_code == 403
    assert "need an admin" in answer.text
    admin = browser_of(settings, "admin")
    admin.act(f"{path}/run")
    assert states(engine) == {"PENDING": 5}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"action": "requeue"},
        {"action": "edit", "name": "n"},
        {"action": "requeue", "ids": "1,x"},
        {"action": "requeue", "name": "a\0"},
        {"action": "requeue", "older_than": "soon"},
        {"action": "requeue", "fingerprint": "xyz"},
        {"action": "cancel", "pool": "error"},
    ],
)
def test_wrong_input_is_one_sentence(browser: Browser, given: dict[str, str]) -> None:
    is_one_sentence(browser.act("/bulks", given))


def test_no_such_bulk(engine: Engine, browser: Browser) -> None:
    assert browser.get("/bulks/4711").status_code == 404
    assert browser.act("/bulks/4711/run").status_code == 404
    browser.act(f"/tasks/{failed_task_of_bulks(engine)}/requeue")
    line = one(engine, "SELECT id FROM task_audit")  # of the audit, which opens none
    assert browser.get(f"/bulks/{line}").status_code == 404


def test_markup_is_inert(engine: Engine, browser: Browser) -> None:
    failed_task_of_bulks(engine, name="n")
    write(engine, "UPDATE task_error SET name = :evil", evil=EVIL)
    path = opened(browser, name=EVIL)
    for answer in (
        browser.get("/bulks/new", params={"action": "requeue", "name": EVIL}),
        browser.get(path),
    ):
        assert answer.status_code == 200
        is_inert(answer.text)
