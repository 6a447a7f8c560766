"""Celery's time limits bound one task, however many a message carries and whoever sets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from tasks_app.broker.config import celery_configuration
from tasks_app.broker.defaults import EXECUTE
from tasks_app.broker.publisher import CeleryHints
from tasks_app.domain.config.settings import Settings
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

OPTIONS = ("--soft-time-limit", "1", "--time-limit", "2")


@pytest.fixture(scope="module")
def worker(house: House) -> Iterator[CeleryProcess]:
    house.beat()
    worker = house.worker(*OPTIONS, children=1, TASKS_APP_IMPORTS="limit_handlers")
    yield worker
    worker.end()
    house.sql("DELETE FROM task_worker")


@pytest.fixture
def settings(house: House) -> Settings:
    return Settings(broker_url=house.environment()["TASKS_APP_BROKER_URL"])


@pytest.fixture
def app(settings: Settings) -> Iterator[Celery]:
    app = Celery("rules", set_as_current=False)
    app.conf.update(celery_configuration(settings))
    yield app
    app.close()


def harmed(house: House, ids: list[int]) -> list[int]:
    """Which of the tasks were charged with a crash or a failure, or tried twice."""
    tasks = [house.task(task_id) for task_id in ids]
    return [task.id for task in tasks if task.crashes or task.failures or task.attempt > 1]


def test_a_message_of_many_tasks_may_take_longer_than_the_limit_of_one(
    house: House, worker: CeleryProcess, settings: Settings
) -> None:
    ids = house.create("short", 120)

    CeleryHints(settings).publish("default", ids)

    assert house.over(ids, 60) == {"SUCCEEDED": 120}
    assert harmed(house, ids) == []


@pytest.mark.parametrize("name", ["endless", "endless.async"])
def test_the_soft_limit_is_raised_in_the_one_task_that_passes_it(
    house: House, worker: CeleryProcess, name: str
) -> None:
    neighbours = house.create("short", 20)
    late = house.create(name)[0]

    assert house.over([late, *neighbours]) == {"SUCCEEDED": 20, "FAILED": 1}

    assert house.attempts(late)[0].kind == "HandlerTimeoutError"
    assert house.task(late).crashes == 0
    assert harmed(house, neighbours) == []


def test_the_hard_limit_kills_the_child_for_the_one_task_that_passes_it(
    house: House, worker: CeleryProcess
) -> None:
    deaf = house.create("deaf")[0]

    assert house.over([deaf]) == {"FAILED": 1}

    assert "killed at its hard limit of 2 s" in (house.task(deaf).error or "")


def test_what_a_handler_declares_wins(house: House, worker: CeleryProcess) -> None:
    ids = house.create("patient")

    assert house.over(ids) == {"SUCCEEDED": 1}
    assert harmed(house, ids) == []


def test_remote_control_changes_no_limit_of_what_carries_tasks_or_is_a_task(
    house: House, worker: CeleryProcess, app: Celery
) -> None:
    for command, values in (
        ("time_limit", {"hard": 0.5, "soft": 0.2}),
        ("rate_limit", {"rate_limit": "1/h"}),
    ):
        for name in (EXECUTE, "short"):
            (answer,) = app.control.broadcast(
                command, {"task_name": name, **values}, reply=True, timeout=10, limit=1
            )
            ((said,),) = (list(answer.values()),)
            assert said["error"].startswith(f"{name} ")
            assert "tasks-app" in said["error"]

    ids = house.create("short", 60)

    assert house.over(ids, 60) == {"SUCCEEDED": 60}
    assert harmed(house, ids) == []


@pytest.mark.usefixtures("worker")
def test_settings_of_celerys_tasks_reach_no_message_of_ours(house: House, tmp_path: Path) -> None:
    """Each of these alone stops, loses or repeats messages, or takes a task's neighbours along."""
    (tmp_path / "celeryconfig.py").write_text(
        "task_time_limit = 3\ntask_soft_time_limit = 2\ntask_default_rate_limit = '1/h'\n"
        "task_acks_late = True\ntask_reject_on_worker_lost = True\ntask_track_started = True\n"
        "task_ignore_result = False\ntask_store_errors_even_if_ignored = True\n"
        "result_backend = 'redis://127.0.0.1:1/0'\nworker_deduplicate_successful_tasks = True\n"
        "task_annotations = {'*': {'rate_limit': '1/h', 'time_limit': 1, 'acks_late': True}}\n"
    )
    house.worker("-Q", "odd", folder=tmp_path, children=1, TASKS_APP_IMPORTS="limit_handlers")

    ids = house.create("short", 100, queue="odd")
    late = house.create("endless", queue="odd")

    assert house.over([*ids, *late], 60) == {"SUCCEEDED": 100, "FAILED": 1}
    assert harmed(house, ids) == []
    assert house.attempts(late[0])[0].kind == "HandlerTimeoutError"
