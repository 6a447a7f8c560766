"""A front end that polls AsyncResult is moved over by one setting, and shows the same JSON."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.broker.celery_process import HOUSE
from tests.broker.conftest import House
from tests.clock import until
from tests.environment import python_path

pytestmark = pytest.mark.test_all


class FrontEnd:
    """Asks the front end as a browser does."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str) -> dict[str, Any]:
        with urlopen(f"{self._url}/{path}", timeout=10) as answer:
            return dict(json.load(answer))

    def watched(self, what: str) -> list[dict[str, Any]]:
        """Start one, and poll it to its end; return what was shown, each once."""
        task_id = self.ask(f"start/{what}")["id"]
        shown: list[dict[str, Any]] = []

        def over() -> bool:
            now = self.ask(f"status/{task_id}")
            if not shown or shown[-1] != now:
                shown.append(now)
            return now["state"] in {"SUCCESS", "FAILURE"}

        until(over, 30)
        return shown


@contextmanager
def front_end(house: House, kind: str, **environment: str) -> Iterator[FrontEnd]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, HOUSE / "front_end.py", str(port), kind],
        env={**house.environment(), "PYTHONPATH": python_path(HOUSE, Path.cwd()), **environment},
        stderr=subprocess.DEVNULL,
    )
    try:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        until(listens, 20)
        yield FrontEnd(port)
    finally:
        process.terminate()
        process.wait()


PROGRESS = [{"state": "PROGRESS", "current": n, "total": 2, "status": f"cake {n}"} for n in (1, 2)]


@pytest.fixture(scope="module")
def places(house: House) -> dict[str, dict[str, str]]:
    """The environment of the front end before it moves, and after."""
    broker = house.broker.url_of(13)
    before = {"FRONT_BROKER": broker, "FRONT_BACKEND": broker}
    return {"before": before, "after": {**before, "FRONT_BACKEND": "tasks_app://"}}


@pytest.fixture(scope="module")
def shown_before(house: House, places: dict[str, dict[str, str]]) -> list[list[dict[str, Any]]]:
    """What it shows with plain Celery and Redis."""
    plain = house.start("worker", "-c", "2", "-l", "INFO", app="front_end", **places["before"])
    plain.says("ready.")
    with front_end(house, "forks", **places["before"]) as browser:
        return [browser.watched("2/well"), browser.watched("2/burn")]


@pytest.mark.parametrize("kind", ["forks", "threads"])
def test_the_same_is_shown_after_one_setting(
    house: House, places: dict[str, dict[str, str]], shown_before: list[Any], kind: str
) -> None:
    house.worker(TASKS_APP_CELERY_APP="front_end", TASKS_APP_LEASE="30s", **places["after"])
    house.beat(TASKS_APP_SCAN_INTERVAL="100ms")
    with front_end(house, kind, **places["after"]) as browser:
        shown = [browser.watched("2/well"), browser.watched("2/burn")]
    assert [states[-1]["state"] for states in shown] == ["SUCCESS", "FAILURE"]
    assert [state for state in shown[0] if state["state"] == "PROGRESS"] == PROGRESS
    assert shown == shown_before
