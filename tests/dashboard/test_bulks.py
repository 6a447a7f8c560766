"""Bulks: what would be done, and done in stages; who may, and what is said of them."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from tasks_app import Settings
from tasks_app.dashboard.routes import bulks
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tests.dashboard.browser import Browser, dashboard, text_of
from tests.dashboard.test_errors import fails, fingerprint_of
from tests.dashboard.test_pages import EVIL, audit, failed_task, waiting_task
from tests.factory import claimed_task, ending


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


def test_what_fails_alike_again_is_said_before_the_next_stage(
    engine: Engine, browser: Browser
) -> None:
    ids = [fails(engine, "shop.Declined", f"order {number}", name="pay") for number in range(3)]
    path = opened(browser, fingerprint=fingerprint_of(browser, ids[0]))
    browser.act(f"{path}/run", {"first": "1"})
    with engine.begin() as connection:
        connection.execute(
            text("""
            INSERT INTO task_attempt (task_id, attempt, event, kind, message, fingerprint)
            SELECT p.id, 2, 'retry', 'shop.Declined', 'no', e.fingerprint
            FROM task_pending p, (SELECT fingerprint FROM task_error LIMIT 1) e
        """)
        )
    assert "1 of 1 failed for the same cause again" in browser.get(path).text
    assert browser.get(f"/api{path}").json()["again"] == 1


def test_what_failed_otherwise_is_said_before_the_next_stage(
    engine: Engine, browser: Browser, settings: Settings
) -> None:
    for _ in range(2):
        failed_task(engine, name="pay")
    path = opened(browser, name="pay")
    browser.act(f"{path}/run", {"first": "1"})
    assert "Done to 1 task." in browser.get(path).text
    with engine.begin() as connection:
        again = int(connection.execute(text("SELECT id FROM task_pending")).scalar_one())
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
    ids = [failed_task(engine) for _ in range(3)]
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
        failed_task(engine, name="n")
    operator = Browser(dashboard(settings, role=lambda _: "operator", who=lambda _: "bob"))
    path = opened(operator, name="n")
    assert operator.act(f"{path}/run", {"first": "4"}).status_code == 403
    operator.act(f"{path}/run")
    assert states(engine) == {"FAILED": 2, "PENDING": 3}
    answer = operator.act(f"{path}/run")
    assert answer.status_code == 403
    assert "need an admin" in answer.text
    admin = Browser(dashboard(settings, role=lambda _: "admin", who=lambda _: "ann"))
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
    answer = browser.act("/bulks", given)
    assert answer.status_code == 400
    assert "Traceback" not in answer.text


def test_no_such_bulk(engine: Engine, browser: Browser) -> None:
    assert browser.get("/bulks/4711").status_code == 404
    assert browser.act("/bulks/4711/run").status_code == 404
    browser.act(f"/tasks/{failed_task(engine)}/requeue")  # a line of the audit that opens none
    with engine.connect() as connection:
        line = connection.execute(text("SELECT id FROM task_audit")).scalar_one()
    assert browser.get(f"/bulks/{line}").status_code == 404


def test_markup_is_inert(engine: Engine, browser: Browser) -> None:
    failed_task(engine, name="n")
    with engine.begin() as connection:
        connection.execute(text("UPDATE task_error SET name = :evil"), {"evil": EVIL})
    path = opened(browser, name=EVIL)
    for page in (
        browser.get("/bulks/new", params={"action": "requeue", "name": EVIL}),
        browser.get(path),
    ):
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
