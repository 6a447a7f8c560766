"""Every route x role x method x token x authentication; and the password of the metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from starlette.routing import compile_path

from tasks_app import Settings
from tasks_app.actions.action import Role
from tasks_app.actions.table import ACTIONS
from tasks_app.dashboard.app import ROUTES
from tasks_app.dashboard.security import MOST_BYTES, guarded
from tasks_app.monitor.metric_catalogue import CONTENT_TYPE
from tests.dashboard.browser import SAME, Browser, basic, dashboard
from tests.factory import pending_task
from tests.tiers import few

ROLES = (None, "viewer", "operator", "admin")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
TOKENS = ("right", "wrong", "none", "other site")
PASSWORDS = {"password": "right", "wrong password": "wrong", "metrics password": "scrape"}
NOT_FOUND, REFUSED, GONE = 404, 409, 999_999
STRANGER = "203.0.113.7"
FIXED = {"action": "requeue", "queue": "nobody"}


def path_of(path: str) -> str:
    return re.sub(r"{(\w+)(:\w+)?}", lambda found: FIXED.get(found[1], str(GONE)), path)


def test_every_route_has_a_role() -> None:
    assert {handler.__name__ for _, handler, _ in ROUTES if not hasattr(handler, "role")} == set()


def test_a_route_without_a_role_builds_no_dashboard() -> None:
    async def page(request: object, desk: object) -> None: ...

    with pytest.raises(TypeError, match="page has no role"):
        guarded(page, None, None)  # type: ignore[arg-type]


def made(settings: Settings, how: str, role: str | None) -> Browser:
    if how == "callable":
        return Browser(dashboard(settings, role=lambda _: role), client=STRANGER)
    if how.endswith("password"):
        roles = f"bob:{role}" if role else "ann:viewer"
        given = {"dashboard_auth": "bob:right,ann:other", "dashboard_roles": roles}
        given["metrics_auth"] = "bob:scrape"
        url = settings.database
        return Browser(dashboard(Settings(database_url=url, **given)), client=STRANGER)
    return Browser(dashboard(settings), client="127.0.0.1" if how == "nobody here" else STRANGER)


def expected(path: str, how: str, role: str | None, method: str, token: str) -> set[int]:
    asked = path_of(path)
    found = [(h, m) for p, h, m in ROUTES if compile_path(p)[0].match(asked)]
    handler = next((h for h, m in found if m == method or (m, method) == ("GET", "HEAD")), None)
    if handler is None:
        return {405}
    if how == "metrics password":
        return {200 if handler.scraped else 401}
    if how == "wrong password":
        return {401}
    has = {"nobody here": "admin", "nobody elsewhere": None}.get(how, role)
    if has is None or Role[has.upper()] < handler.role:
        return {403}
    refused = token == "other site" if path.startswith("/api/") else token != "right"
    if method not in ("GET", "HEAD") and refused:
        return {403}
    return {200, 303, 400, NOT_FOUND, REFUSED}


def asked(how: str) -> Iterator[tuple[str | None, str, str]]:
    """Role, method and token; where it makes no difference, one of them."""
    for role in ROLES if how in ("callable", "password") else (None,):
        for method in METHODS:
            safe = method in ("GET", "HEAD", "OPTIONS")
            for token in ("none", "other site") if safe else TOKENS:
                yield role, method, token


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_an_action_asks_for_its_role_and_no_more(settings: Settings, role: str) -> None:
    browser = Browser(dashboard(settings, role=lambda _: role))
    for action in ACTIONS:
        if action.path:
            said = browser.ask("POST", f"/api{path_of(action.path)}", json={})
            assert (said.status_code == 403) is (Role[role.upper()] < action.role), action.path


Browsers = dict[tuple[str, str | None], Browser]


@pytest.fixture(scope="module")
def browsers() -> Browsers:
    """By way and role. To make one for each path would cost more than to ask it."""
    return {}


@pytest.mark.parametrize("path", sorted({path for path, _, _ in ROUTES}))
@pytest.mark.parametrize("how", few(1, ["nobody elsewhere", "nobody here", "callable", *PASSWORDS]))
def test_matrix(
    engine: Engine, settings: Settings, browsers: Browsers, path: str, how: str
) -> None:
    right = PASSWORDS.get(how)
    auth = basic("bob", right) if right else {}
    for role, method, token in asked(how):
        if (how, role) not in browsers:
            browsers[how, role] = made(settings, how, role)
        browser = browsers[how, role]
        headers = {**auth, **SAME}
        if token == "other site":
            headers["sec-fetch-site"] = "cross-site"
        if method not in ("GET", "HEAD", "OPTIONS") and not browser.token:
            browser.get("/tasks", headers=auth)
        sent = {"wrong": "x" * 43, "none": ""}.get(token, browser.token)
        body = {"json": {}} if path.startswith("/api/") else {"data": {"token": sent}}
        more = {} if method in ("GET", "HEAD", "OPTIONS") else body
        answer = browser.ask(method, path_of(path), headers=headers, **more)
        allowed = expected(path, how, role, method, token)
        assert answer.status_code in allowed, (role, method, token, answer.text[:200])


@pytest.mark.parametrize(
    "headers",
    [
        *({}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "none"}),
        *({"origin": "http://evil.example"}, {"origin": "null"}),
        {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
    ],
)
def test_requests_of_another_site_change_nothing(browser: Browser, headers: dict[str, str]) -> None:
    browser.get("/tasks")
    answer = browser.ask("POST", "/tasks/1/requeue", headers=headers, data={"token": browser.token})
    assert answer.status_code == 403
    assert "another site" in answer.text


def test_an_old_browser_says_its_origin(browser: Browser) -> None:
    browser.get("/tasks")
    sent = {"headers": {"origin": "http://localhost"}, "data": {"token": browser.token}}
    assert browser.ask("POST", "/tasks/1/requeue", **sent).status_code == 303


def test_json_is_no_form(browser: Browser) -> None:
    browser.get("/tasks")
    answer = browser.ask("POST", "/tasks/1/requeue", headers=SAME, json={"token": browser.token})
    assert answer.status_code == 403


def test_the_api_takes_json_of_programs_and_of_no_other_page(browser: Browser) -> None:
    def ask(**more: object) -> int:
        return browser.ask("POST", "/api/tasks/1/requeue", **more).status_code

    assert ask(json={}) == 200
    assert ask(data={"a": "b"}) == 403
    assert ask(content="{}", headers={"content-type": "text/plain"}) == 403
    assert ask(json={}, headers={"origin": "http://evil.example"}) == 403
    assert ask(json={}, headers={"sec-fetch-site": "cross-site"}) == 403


def test_a_bearer_is_known_by_his_token(engine: Engine, settings: Settings) -> None:
    given = {"dashboard_auth": "bob:a,ann:c", "dashboard_roles": "bob:operator,*:viewer"}
    app = dashboard(Settings(database_url=settings.database, **given))
    browser = Browser(app, client=STRANGER)
    for token, status in (("a", 200), ("c", 403), ("", 401), ("x", 401), ("bob:a", 401)):
        headers = {"authorization": f"Bearer {token}"}
        answer = browser.ask("POST", "/api/tasks/1/requeue", json={}, headers=headers)
        assert answer.status_code == status, token


def test_a_name_that_leads_here_from_elsewhere_is_not_local(settings: Settings) -> None:
    """DNS rebinding: the peer is this machine, but the page belongs to somebody else."""
    browser = Browser(dashboard(settings), base="http://evil.example")
    assert browser.get("/").status_code == 403


def test_a_large_body_is_refused(browser: Browser) -> None:
    browser.get("/tasks")
    answer = browser.ask(
        "POST", "/tasks/1/requeue", headers=SAME, data={"token": "x" * (MOST_BYTES + 1)}
    )
    assert answer.status_code == 413


def test_every_answer_has_the_policy(browser: Browser) -> None:
    for path in ("/", "/tasks/999999", "/nope", "/static/app.css", "/api/overview"):
        policy = browser.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    assert browser.get("/").headers["cache-control"] == "no-store"


def test_roles_by_name(engine: Engine, settings: Settings) -> None:
    given = {"dashboard_auth": "bob:a:b,ann:c", "dashboard_roles": "bob:admin,*:viewer"}
    app = dashboard(Settings(database_url=settings.database, **given))
    browser = Browser(app, client=STRANGER)
    assert "bob · admin" in browser.get("/", headers=basic("bob", "a:b")).text
    assert "ann · viewer" in browser.get("/", headers=basic("ann", "c")).text
    asked = browser.get("/")
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")


GIVEN = {
    "metrics_auth": "prom:m:p", "dashboard_auth": "bob:b,ann:a", "dashboard_roles": "bob:viewer"
}  # fmt: skip


def test_metrics_show_what_the_command_shows(engine: Engine, browser: Browser) -> None:
    with engine.begin() as connection:
        pending_task(connection, queue="mail")
    answer = browser.get("/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE
    assert answer.headers["cache-control"] == "no-store"
    assert '\ntasks_app_pending{queue="mail"} 1\n' in answer.text
    assert "\ntasks_app_up 1\n" in answer.text


@pytest.mark.parametrize(
    ("name", "password", "status"),
    [
        ("prom", "m:p", 200),
        ("prom", "m", 401),
        ("prom", "", 401),
        ("", "m:p", 401),
        ("bob", "b", 200),
        ("ann", "a", 403),
        ("bob", "m:p", 401),
    ],
)
def test_a_viewer_or_the_password_of_the_metrics(
    engine: Engine, settings: Settings, name: str, password: str, status: int
) -> None:
    app = dashboard(Settings(database_url=settings.database, **GIVEN))
    browser = Browser(app, client=STRANGER)
    assert browser.get("/metrics", headers=basic(name, password)).status_code == status


@pytest.mark.parametrize("path", ["/", "/tasks", "/api/overview"])
def test_that_password_opens_nothing_else(engine: Engine, settings: Settings, path: str) -> None:
    browser = Browser(dashboard(Settings(database_url=settings.database, **GIVEN)), client=STRANGER)
    assert browser.get(path, headers=basic("prom", "m:p")).status_code == 401


def test_without_such_a_password_nothing_is_one(engine: Engine, settings: Settings) -> None:
    browser = Browser(dashboard(settings), client=STRANGER)
    for headers in ({}, basic("", ""), {"authorization": "Bearer "}):
        assert browser.get("/metrics", headers=headers).status_code == 403


def test_the_password_opens_it_beside_roles_of_the_host(engine: Engine, settings: Settings) -> None:
    given = Settings(database_url=settings.database, metrics_auth="prom:m")
    browser = Browser(dashboard(given, role=lambda _: None), client=STRANGER)
    assert browser.get("/metrics").status_code == 403
    assert browser.get("/metrics", headers=basic("prom", "m")).status_code == 200
    viewer = Browser(dashboard(given, role=lambda _: Role.VIEWER.name), client=STRANGER)
    assert viewer.get("/metrics").status_code == 200


def test_probes_need_no_password_and_no_database() -> None:
    away = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    browser = Browser(dashboard(Settings(database_url=away, dashboard_auth="a:b")), client=STRANGER)
    answer = browser.get("/healthz")
    assert (answer.status_code, answer.text) == (200, "alive\n")
    assert browser.ask("POST", "/healthz").status_code == 405
