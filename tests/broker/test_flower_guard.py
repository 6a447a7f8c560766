"""Flower as people start it: who could reach it without a password gets no Flower."""

from __future__ import annotations

from contextlib import suppress
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest

from tests.broker.conftest import House
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]


def healthy(port: int) -> bool:
    with suppress(URLError, ConnectionError):
        return bool(urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=5).read() == b"OK")
    return False


def addresses(pid: int) -> set[str]:
    """Where a process listens."""
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
