"""The dashboard within Flower, and who may use Flower."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import httpx
import psutil
import pytest

from tests.broker.conftest import House
from tests.clock import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]
SAME = {"sec-fetch-site": "same-origin"}
ROLES = {"TASKS_APP_DASHBOARD_ROLES": "bob:operator,*:viewer"}
PASSWORDS = "--basic_auth=bob:right,ann:other"


def started(house: House, port: int, *options: str, **given: str) -> Any:
    process = house.start("dashboard", f"--port={port}", *options, **given)
    process.says("Dashboard: http://")
    return process, f"http://127.0.0.1:{port}"


def requeued(client: httpx.Client, path: str) -> int:
    client.get("/dashboard/tasks")
    token = client.cookies.get("tasks_app_token", "")
    return client.post(path, data={"token": token}, headers=SAME).status_code


def test_flower_has_a_tab_and_its_users_have_roles(house: House, free_port: int) -> None:
    process, address = started(house, free_port, PASSWORDS, **ROLES)
    [task_id] = house.create("nobody.knows", 1)
    page, act = f"/dashboard/tasks/{task_id}", f"/dashboard/tasks/{task_id}/cancel"

    assert httpx.get(f"{address}/dashboard/").status_code == 401
    assert httpx.get(f"{address}{page}", auth=("bob", "other")).status_code == 401
    with httpx.Client(base_url=address, auth=("ann", "other")) as ann:
        assert 'href="/dashboard/">Dashboard</a>' in ann.get("/workers").text
        shown = ann.get(page).text
        assert "nobody.knows" in shown
        assert "ann · viewer" in shown
        assert f'href="/task/{task_id}"' in shown, "Flower's page of it"
        assert requeued(ann, act) == 403
    with httpx.Client(base_url=address, auth=("bob", "right")) as bob:
        assert bob.post(act, data={"token": "x"}, headers=SAME).status_code == 403
        assert requeued(bob, act) == 303
        assert "CANCELLED" in bob.get(page).text
    who = house.sql("SELECT who FROM task_audit WHERE :id = ANY(ids)", id=task_id)
    assert who == "bob (dashboard)"
    process.end()


def test_under_a_prefix_and_where_people_may_only_look(house: House, free_port: int) -> None:
    options = ("--url_prefix=fl", "--read_only=true")
    process, address = started(house, free_port, *options)
    answer = httpx.get(f"{address}/fl/dashboard/tasks")
    assert "local · viewer" in answer.text
    assert 'href="/fl/dashboard/static/' in answer.text
    assert httpx.get(f"{address}/fl/dashboard/", headers={"host": "evil.example"}).is_client_error
    process.end()


def test_it_does_not_start_where_others_would_reach_it_without_a_password(
    house: House, free_port: int
) -> None:
    process = house.start("dashboard", f"--port={free_port}", "--address=0.0.0.0")
    assert process.wait(60) != 0
    assert "Flower has no password, and 0.0.0.0 is an address" in process.log()
    assert "Traceback" not in process.log()


def healthy(port: int) -> bool:
    with suppress(URLError, ConnectionError):
        return bool(urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=5).read() == b"OK")
    return False


def addresses(pid: int) -> set[str]:
    connections = psutil.Process(pid).net_connections("tcp")
    return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(
    ("given", "listens"),
    [
        ([], {"127.0.0.1"}),
        pytest.param(
            ["--address=0.0.0.0", "--basic_auth=name:password"],
            {"0.0.0.0"},
            marks=pytest.mark.test_all,
        ),
    ],
    ids=["as it stands", "with a password"],
)
def test_it_listens_for_others_only_with_a_password(
    house: House, free_port: int, given: list[str], listens: set[str]
) -> None:
    flower = house.start("flower", f"--port={free_port}", *given)
    until(lambda: healthy(free_port), 60, "Flower's start")
    assert addresses(flower.pid) == listens
    flower.end()


def test_it_does_not_start_where_others_would_reach_it_without_one(
    house: House, free_port: int
) -> None:
    flower = house.start("flower", f"--port={free_port}", FLOWER_ADDRESS="0.0.0.0")
    assert flower.wait(60) != 0
    assert "Flower has no password, and 0.0.0.0 is an address that others can reach" in flower.log()
    assert "Traceback" not in flower.log()
