"""Overview: from what is wrong to the page that helps."""

from __future__ import annotations

from sqlalchemy import Engine, text

from tasks_app import Settings
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.runs.heartbeats import write_heartbeat
from tests.dashboard.browser import Browser, dashboard, text_of
from tests.dashboard.test_errors import fails, fingerprint_of
from tests.dashboard.test_pages import waiting_task


def test_what_is_wrong_leads_to_where_it_is_mended(engine: Engine, browser: Browser) -> None:
    waiting_task(engine, name="mail.send", queue="mail")
    page = browser.get("/").text
    assert "served by no worker" in text_of(page)
    assert '<a href="/queues">Show queues</a>' in page
    assert '<span class="whole">-E</span>' in page


def test_what_could_not_run_is_told_apart(engine: Engine, browser: Browser) -> None:
    """Paused, behind a breaker, of an unknown name, in a queue that nobody serves; and one more."""
    with engine.begin() as connection:
        write_heartbeat(
            connection, owner="w", node="n", queues=["default", "mail"], handlers=["t", "pay"]
        )
        pause(connection, "mail")
        connection.execute(
            text("""
                INSERT INTO task_breaker (dependency, names, state, mode, ratio, least, "window",
                    open_for, probes)
                VALUES ('bank', '{pay}', 'open', 'open', 0.5, 10, '1 min', '30 s', 3)
            """)
        )
    for name, queue in (("t", "mail"), ("pay", "default"), ("new", "default"), ("t", "post")):
        waiting_task(engine, name=name, queue=queue)
    waiting_task(engine, name="t")
    model = browser.get("/api/overview").json()

    assert (model["due"]["number"], model["barred"]["number"]) == (5, 4)
    (free,) = (x for x in model["lines"] if (x["name"], x["queue"]) == ("t", "default"))
    assert model["oldest_due_at"] == free["oldest_due_at"]
    rows = text_of(browser.get("/?part=queues").text)
    assert "mail t 0 1 " in rows
    assert "default t 1 0 " in rows
    page = text_of(browser.get("/queues/mail").text)
    assert "Due 0 and 1 could not run" in page


def test_warnings_stand_apart_from_what_fails(engine: Engine, browser: Browser) -> None:
    with engine.begin() as connection:
        pause(connection, "mail")
    assert 'class="alarm warn" aria-label="Warnings"' in browser.get("/").text
    assert 'class="alarm"' not in browser.get("/").text


def test_advice_is_a_button_for_who_may(
    engine: Engine, browser: Browser, settings: Settings
) -> None:
    with engine.begin() as connection:
        pause(connection, "mail")
        pause(connection, "*")
        connection.execute(
            text("""
                INSERT INTO task_breaker (dependency, names, state, mode, ratio, least, "window",
                    open_for, probes)
                VALUES ('bank', '{pay}', 'open', 'open', 0.5, 10, '1 min', '30 s', 3)
            """)
        )
    shown = browser.get("/").text
    operator = Browser(dashboard(settings, role=lambda _: "operator")).get("/").text
    task = waiting_task(engine, name="t", queue="mail")

    for to in ("/queues/mail/resume", "/queues/*/resume", "/breakers/override"):
        assert f'action="{to}"' in shown
    assert 'name="mode" value="auto"' in shown
    assert 'action="/queues/mail/resume"' in operator
    assert 'action="/queues/*/resume"' not in operator
    assert 'action="/queues/*/resume"' in browser.get(f"/tasks/{task}").text


def test_causes_of_a_day_the_known_ones_last(engine: Engine, browser: Browser) -> None:
    known = [fails(engine, "shop.Declined", f"order {n} declined", name="pay") for n in range(3)]
    fails(engine, "KeyError", "'zip'", name="mail", queue="post")
    old = fails(engine, "OldError", "long ago", name="mail")
    with engine.begin() as connection:
        aged = text("UPDATE task_error SET finished_at = now() - interval '25 h' WHERE id = :id")
        connection.execute(aged, {"id": old})
    fingerprint = fingerprint_of(browser, known[0])
    browser.act(f"/errors/{fingerprint}/known", {"note": "the bank"})
    causes = browser.get("/api/overview").json()["causes"]
    assert [(each["error"].partition(":")[0], each["number"]) for each in causes] == [
        ("KeyError", 1),
        ("shop.Declined", 3),
    ]
    page = browser.get("/").text
    assert f'href="/bulks/new?action=requeue&amp;fingerprint={fingerprint}"' in page
    assert "known to local (dashboard)" in text_of(page)


def test_each_part_is_read_by_itself(engine: Engine, browser: Browser) -> None:
    fails(engine, "KeyError", "'zip'", name="mail", queue="post")
    part = {"hx-request": "true"}
    shown = {
        name: browser.get(f"/?part={name}", headers=part).text
        for name in ("now", "queues", "causes")
    }
    assert ["Worker children" in text for text in shown.values()] == [True, False, False]
    assert ["Queues and names" in text for text in shown.values()] == [False, True, False]
    assert ["KeyError" in text for text in shown.values()] == [False, False, True]
    assert "<html" in browser.get("/?part=../base", headers=part).text
