"""A secret in payloads, headers, results, parameters and exceptions: who else gets to see it?

It may stand where its owner put it: in the columns payload, headers and result, and in the text of
an exception that a handler wrote it into. Nowhere else."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import psycopg
import pytest
import redis
from sqlalchemy import make_url, text

from tasks_app import Settings, get_task
from tasks_app.domain.encryption import new_key
from tasks_app.runtime.encryption.encryption import encryption
from tests.broker.celery_process import HOUSE, CeleryProcess
from tests.broker.conftest import House
from tests.broker.listening import Listener
from tests.clock import until
from tests.dashboard.browser import Browser, dashboard

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(300, method="thread")]
NAMES = [
    "canary.ok", "canary.raises", "canary.local", "canary.sql", "canary.write", "canary.async",
    "canary.result", "canary.typed", "canary.late", "canary.dies",
]  # fmt: skip
TELL_IT_THEMSELVES = ("canary.raises",)
ROWS = text("""
    SELECT name, coalesce(error, '') AS said FROM task_error
    UNION ALL
    SELECT t.name, concat_ws(' ', a.kind, a.message) FROM task_attempt a
    JOIN task_all t ON t.id = a.task_id
    UNION ALL
    SELECT 'traceback', coalesce(traceback, '') FROM task_attempt
""")
PAGES = (
    "/workers", "/tasks", "/api/tasks?limit=1000", "/api/workers", "/api/task/info/{}",
    "/task/{}", "/metrics", "/broker",
)  # fmt: skip


class Wiretap:
    """Every command that the broker is sent, as ``MONITOR`` shows it."""

    def __init__(self, url: str) -> None:
        self.heard: list[str] = []
        self._client = redis.Redis.from_url(url, socket_timeout=None)  # nothing may come for long
        self._monitor = self._client.monitor().__enter__()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(Exception):  # it is closed
            for command in self._monitor.listen():
                self.heard.append(command["command"])

    def end(self) -> None:
        self._client.close()


@dataclass
class Watched:
    """A worker, a beat and Flower, and all that they tell each other."""

    listener: Listener
    tap: Wiretap
    flower: CeleryProcess
    worker: CeleryProcess
    beat: CeleryProcess
    url: str

    def over(self, ids: list[int]) -> None:
        until(lambda: all(self.listener.shows(i) in ("SUCCESS", "FAILURE") for i in ids), 30)

    def places(self) -> dict[str, str]:
        with redis.Redis.from_url(self.url) as client:
            left = str([(key, client.dump(key)) for key in client.scan_iter()])
        return {
            "log of the worker": self.worker.log(),
            "log of beat": self.beat.log(),
            "log of Flower": self.flower.log(),
            "events": str(self.listener.events),
            "what the broker was sent": "\n".join(self.tap.heard),
            "what lies in the broker": left,
        }

    def end(self) -> None:
        self.listener.end()
        self.tap.end()


def watched(house: House, port: int, environment: dict[str, str]) -> Watched:
    url = house.environment()["TASKS_APP_BROKER_URL"]
    listener, tap = Listener(url), Wiretap(url)
    options = (f"--port={port}", "--address=127.0.0.1")
    flower = house.start("flower", *options, FLOWER_UNAUTHENTICATED_API="true")
    worker = house.worker("-E", "-l", "DEBUG", **environment)
    beat = house.start("beat", "-l", "DEBUG", **environment)
    until(lambda: ready(port), 60, "Flower's start")
    return Watched(listener, tap, flower, worker, beat, url)


def page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]


def ready(port: int) -> bool:
    with suppress(URLError, ConnectionError):
        return page(port, "/healthcheck") == "OK"
    return False


def test_a_secret_is_nowhere_but_where_it_was_put(
    house: House, dice: random.Random, free_port: int, tmp_path: Path
) -> None:
    secret = f"canary{dice.getrandbits(64):016x}"
    handlers = {"TASKS_APP_IMPORTS": "canary_handlers", "TASKS_APP_SCAN_INTERVAL": "200ms"}
    scene = watched(house, free_port, handlers)

    producer = subprocess.run(
        [sys.executable, Path(__file__).with_name("produce.py"), secret, *NAMES],
        env=house.environment(**handlers, PYTHONPATH=str(HOUSE)),
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    ids = [int(line) for line in producer.stdout.split()]
    states = house.over(ids, 60)
    until(lambda: all(str(i) in page(free_port, "/api/tasks?limit=1000") for i in ids), 30)
    scene.over(ids)
    shown = {path: page(free_port, path.format(ids[1])) for path in PAGES}
    with house.engine.connect() as connection:
        rows = connection.execute(ROWS).all()
    seen = scene.places()

    assert states == {"SUCCEEDED": 1, "FAILED": len(NAMES) - 1}
    assert secret in str(house.task(ids[0]).payload)
    assert secret in str(house.task(ids[0]).result)
    places = {
        **seen,
        "log of the producer": producer.stderr,
        **{f"Flower's {path}": content for path, content in shown.items()},
        **{f"row of {r.name}": r.said for r in rows if r.name not in TELL_IT_THEMSELVES},
    }
    assert {place for place, content in places.items() if secret in content} == set()
    # Each of them is really being looked at.
    assert " DEBUG " in seen["log of the worker"]
    assert "refused, as it should be" in producer.stderr
    assert len(scene.tap.heard) > 100
    assert str(ids[1]) in shown["/api/tasks?limit=1000"]
    assert "ZeroDivisionError" in str(rows)
    scene.end()
    house.end()  # its worker would take the next test's tasks


NAMES_OF_ENCRYPTED_CANARY = [
    "canary.twice", "canary.raises", "canary.local", "canary.sql", "canary.write", "canary.async",
    "canary.result", "canary.typed", "canary.late",
]  # fmt: skip
FLOWERS = ("/tasks", "/api/tasks?limit=1000", "/api/task/info/{}", "/task/{}", "/metrics")
OURS = (
    "/", "/tasks", "/tasks/{}", "/api/tasks/{}", "/errors", "/audit", "/workers", "/api/tasks",
    "/tasks/export.csv", "/tasks/export.json", "/api/errors",
)  # fmt: skip


def dump(url: str) -> dict[str, str]:
    """Every table of the schema, as text."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    found = {}
    with psycopg.connect(plain) as connection:
        names = connection.execute(
            "SELECT c.oid::regclass::text FROM pg_class c"
            " WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace"
        ).fetchall()
        for (name,) in names:
            with connection.cursor().copy(f"COPY {name} TO STDOUT") as copy:  # type: ignore[arg-type]
                found[name] = b"".join(map(bytes, copy)).decode()
    return found


def test_a_secret_is_in_no_dump_log_page_message_or_setting(
    house: House, dice: random.Random, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, key = f"hidden{dice.getrandbits(64):016x}", new_key()  # not that of the test above
    said = {
        "TASKS_APP_IMPORTS": "canary_handlers",
        "TASKS_APP_SCAN_INTERVAL": "200ms",
        "TASKS_APP_ENCRYPTED_TASKS": "canary.*",
        "TASKS_APP_ENCRYPTION_KEYS": f"k1:{key}",
        "TASKS_APP_TRANSITIONS": "all",
        "TASKS_APP_EVENTS_SHOW": "card,echo",
    }
    scene = watched(house, free_port, said)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    encryption.cache_clear()
    payload = {"card": secret, "deep": [{"er": secret}]}
    ids = [i for name in NAMES_OF_ENCRYPTED_CANARY for i in house.create(name, payload=payload)]

    states = house.over(ids, 60)
    scene.over(ids)

    assert states == {"SUCCEEDED": 1, "FAILED": len(NAMES_OF_ENCRYPTED_CANARY) - 1}
    of_flower = {path: page(free_port, path.format(ids[1])) for path in FLOWERS}
    settings = Settings(database_url=house.url)
    browser = Browser(dashboard(settings))
    of_ours = {path: browser.get(path.format(task)).text for path in OURS for task in ids[:2]}
    config = subprocess.run(
        [sys.executable, "-m", "tasks_app", "config"],
        env=house.environment(**said, PYTHONPATH=str(HOUSE)),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    places = {
        **scene.places(),
        "the settings": config.stdout + config.stderr,
        **{f"Flower's {path}": content for path, content in of_flower.items()},
        **{f"our {path}": content for path, content in of_ours.items()},
        **{f"table {name}": content for name, content in dump(house.url).items()},
    }
    assert {
        place for place, content in places.items() if secret in content or key in content
    } == set()
    # Each of them is really being looked at, and the secret is there for who has the key.
    assert "v1.k1." in places["table task_error"]
    assert "encrypted" in of_ours["/tasks/{}"]
    assert "k1:***" in config.stdout
    with house.engine.connect() as connection:
        task = get_task(connection, ids[0])
    encryption.cache_clear()
    assert task is not None
    assert task.result == {"echo": secret}
    scene.end()
