"""A broker that refuses a worker ends it at its start only; one that is down is waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.torture.fault_proxy import FaultProxy
from tests.broker.conftest import House
from tests.broker.rabbitmq import Account, account

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.timeout(180, method="thread"),
    pytest.mark.parametrize("house", ["rabbitmq"], indirect=True, scope="module"),
]


@pytest.fixture
def user(house: House) -> Iterator[Account]:
    with account(house.broker.url) as user:
        yield user


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("password", "does not let in the user of its URL. Correct user and password in"),
        ("vhost", "has no such virtual host. Create it, or correct it in TASKS_APP_BROKER_URL."),
        ("rights", "refuses "),
    ],
)
def test_a_worker_that_is_refused_at_its_start_ends_with_one_sentence(
    house: House, user: Account, wrong: str, said: str
) -> None:
    url = user.url
    match wrong:
        case "password":
            url = user.url.replace(user.password, "s3cret")
        case "vhost":
            url = f"{user.url}-nowhere"
        case "rights":
            user.may("^$")

    worker = house.worker("-l", "WARNING", children=1, ready=False, TASKS_APP_BROKER_URL=url)

    assert worker.wait(60) == 3
    assert said in worker.log()
    assert worker.log().count(" CRITICAL ") == 1
    for word in ("Traceback", "RestartFreqExceeded", "s3cret", user.password):
        assert word not in worker.log()


def test_a_worker_that_was_connected_waits_until_it_is_let_in_again(
    house: House, user: Account
) -> None:
    worker = house.worker(children=1, TASKS_APP_BROKER_URL=user.url)
    worker.says(" ready.")
    user.change_password("another")
    user.hang_up()
    worker.says("does not let in the user of its URL, since ")
    user.change_password(user.password)
    worker.says("The broker answers again. It was away for ", 90)
    assert worker.log().count("does not let in the user") <= 2
    assert "RestartFreqExceeded" not in worker.log()
    assert house.over(house.create("ok"), 60) == {"SUCCEEDED": 1}


def test_a_broker_that_is_down_at_the_start_is_waited_for(house: House, user: Account) -> None:
    with FaultProxy(user.address) as road:
        road.refusing = True
        worker = house.worker(
            children=1, ready=False, TASKS_APP_BROKER_URL=user.url_by_way_of(road.port)
        )
        worker.says("does not answer")
        alive = worker.alive
        road.refusing = False
        worker.says("The broker answers again")
        worker.says(" ready.")
        assert alive
