"""What a real worker's log says at info, whoever has set up the logging."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery.worker.control import Panel

from tasks_app.broker import control, worker_pool
from tasks_app.broker.app import make_celery
from tasks_app.broker.consumer import OURS
from tasks_app.broker.worker_pool import PoolWorker
from tasks_app.domain.config.settings import load_settings
from tasks_app.runtime.handlers.registry import Registry, handler
from tests.broker.conftest import House

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

HANDLERS = {
    "TASKS_APP_IMPORTS": "failing_handlers",
    "TASKS_APP_SCAN_INTERVAL": "100ms",
    "TASKS_APP_LEASE": "20s",  # on a busy machine a rescue may come before a sibling, and says less
}
HIJACKED = "worker_hijack_root_logger = True\n"
THEIR_OWN = """
import logging
logging.basicConfig(format="MINE %(levelname)s %(name)s %(message)s", level=logging.WARNING)
"""


@pytest.mark.parametrize("settings", ["", HIJACKED, THEIR_OWN], ids=["ours", "hijacked", "theirs"])
def test_a_worker_says_what_failed_and_whom_a_death_was_charged(
    house: House, tmp_path: Path, settings: str
) -> None:
    (tmp_path / "celeryconfig.py").write_text(settings)
    worker = house.worker(folder=tmp_path, **HANDLERS)
    (failing,) = house.create("fails.always", payload={"who": "canary"})
    (deadly,) = house.create("fails.deadly", queue="deadly")
    (fine,) = house.create("fails.not")

    house.over([failing, deadly, fine])
    worker.says(f"task {deadly} (fails.deadly): attempt 2 of 2 failed, and it is over")
    worker.stop()

    said = worker.log()
    for attempt in (1, 2):
        line = f"task {failing} (fails.always): attempt {attempt} of 3 failed, again in 0.01 s ("
        assert re.search(rf"WARNING.*{re.escape(line)}.*ConnectionError: the provider", said)
    charge = rf"task {deadly} \(fails.deadly\): attempt [12] of 2 failed.*process died: Its process"
    assert len(re.findall(charge, said)) == 2
    last = rf"ERROR.*task {failing} \(fails.always\): attempt 3 of 3 failed, and it is over"
    assert re.search(last, said)
    assert 'failing_handlers.py", line ' in said
    assert f"task {failing} (fails.always), attempt 2: asking" in said
    assert re.search(r"INFO.*ran \d tasks? in \d+ s: \d succeeded, \d failed, \d retried", said)
    assert "canary" not in said
    # Of our messages Celery says nothing at this level, whatever became of the tasks in them.
    assert "tasks_app.execute[" not in said
    assert "mark_as_worker_lost" not in said  # where Celery noticed a death
    assert ("MINE INFO shop as ever" in said) is (settings == THEIR_OWN)
    worker.end()


def test_the_banner_and_inspect_registered_name_our_handlers(house: House) -> None:
    worker = house.worker(**HANDLERS)
    worker.says(" ready.")
    registered = house.start("inspect", "registered", "-t", "10")
    assert registered.wait() == 0
    listed = worker.log().partition("[tasks]")[2]
    for name, queue in (("fails.always", "default"), ("fails.deadly", "deadly")):
        assert f"  . {name} (queue {queue})\n" in listed
        assert f"* {name}\n" in registered.log()
    assert "* tasks_app.execute" in registered.log()
    worker.end()


def test_a_handlers_name_is_no_celery_task(house: House) -> None:
    """To be listed is not to be called: a message of that name runs nothing."""
    worker = house.worker(**HANDLERS)
    called = house.start("call", "fails.not", "--queue", "default")
    assert called.wait() == 0
    worker.says("refused a message for an unknown task: 'fails.not'")
    assert house.sql("SELECT count(*) FROM task_all") == 0
    worker.end()


def test_debug_shows_the_messages(house: House) -> None:
    worker = house.worker("-l", "DEBUG", **HANDLERS)
    house.over(house.create("fails.not"))
    worker.says("succeeded in ")
    assert re.search(r"DEBUG.*Task tasks_app.execute\[.*received", worker.log())
    assert re.search(r"DEBUG.*Task tasks_app.execute\[.*succeeded", worker.log())
    worker.end()


def test_what_is_listed_is_registered_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    handler("mail.send", queue="mail", registry=registry)(lambda ctx: None)
    monkeypatch.setattr(control, "HANDLERS", registry)
    monkeypatch.setattr(worker_pool, "HANDLERS", registry)
    monkeypatch.setenv("TASKS_APP_BROKER_URL", "memory://")
    app = make_celery(load_settings())
    worker = PoolWorker.__new__(PoolWorker)
    worker.app = app

    listed = worker.tasklist(include_builtins=False).splitlines()
    registered = Panel.data["registered"](SimpleNamespace(app=app))

    assert listed[0] == "  . mail.send (queue mail)"
    assert {"mail.send", *OURS} <= set(registered)  # among what other tests declared for any app
    assert "mail.send" not in app.tasks
