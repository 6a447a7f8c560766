"""Celery's settings as ours: files, limits, secrets."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.base import BasePool
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url

from tasks_app.broker.app import make_celery, register
from tasks_app.broker.checks import check_limits
from tasks_app.broker.config import (
    CeleryLimits,
    celery_configuration,
    effective_celery_settings,
    move_limits_to_tasks,
)
from tasks_app.broker.consumer import PatientConsumer, RabbitConsumer
from tasks_app.broker.defaults import EXECUTE, celery_defaults
from tasks_app.broker.publisher import CeleryHints
from tasks_app.domain.config.setting_sources import effective_settings
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.durations import parse_duration
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.handlers.spec import HandlerSpec
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.environment import run_program

CONFIG = """
from __future__ import annotations
import os
beat_schedule = {"mine": {"task": "mine", "schedule": 60}}
broker_transport_options = {"socket_timeout": 9}
worker_prefetch_multiplier = 3
"""
PRINT = """
from tasks_app.celery import app
print(sorted(app.conf.beat_schedule))
print(app.conf.broker_transport_options["socket_timeout"])
print(app.conf.broker_transport_options["global_keyprefix"])
print(app.conf.worker_prefetch_multiplier, app.conf.task_acks_late)
print("annotations" in app.conf.changes, "os" in app.conf.changes)
"""


@pytest.mark.test_all
def test_a_users_celeryconfig_wins_but_tables_are_merged(tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text(CONFIG)

    done = run_program(
        [sys.executable, "-c", PRINT],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "TASKS_APP_BROKER_URL": "redis://localhost",
        },
        check=True,
    )

    assert done.stdout.splitlines() == [
        "['mine', 'tasks_app.maintain', 'tasks_app.scan']",
        "9",
        "tasks_app:",
        "3 False",
        "False False",
    ]


def test_every_kind_of_broker_has_a_consumer_that_goes_on_watching() -> None:
    consumers = {
        url: celery_defaults(url, 1.0)["worker_consumer"] for url in ("redis://x", "amqp://x")
    }
    assert consumers == {
        "redis://x": "tasks_app.broker.consumer:PatientConsumer",
        "amqp://x": "tasks_app.broker.consumer:RabbitConsumer",
    }
    assert issubclass(RabbitConsumer, PatientConsumer)


LIMIT = timedelta(seconds=1)


class OwnPool(BasePool):
    """Somebody's own."""


def nothing(_ctx: Any) -> None:
    """Do nothing."""


SPECS = [
    HandlerSpec("free", nothing, is_async=True),
    HandlerSpec("soft", nothing, timeout=LIMIT),
    HandlerSpec("soft.async", nothing, timeout=LIMIT, is_async=True),
    HandlerSpec("soft.sql", nothing, timeout=LIMIT, keeps_timeout=True),
    HandlerSpec("hard", nothing, hard_timeout=LIMIT),
    HandlerSpec("elsewhere", nothing, queue="other", timeout=LIMIT, hard_timeout=LIMIT),
]


def refused(pool: str | type) -> str:
    """The handlers that a worker with this pool names before it ends."""
    try:
        check_limits(pool, SPECS, ["default"])
    except ConfigurationError as error:
        return str(error).partition(" limits of ")[2].partition(":")[0]
    return ""


@pytest.mark.parametrize(
    ("pool", "names"),
    [
        ("prefork", ""),
        ("processes", ""),
        ("solo", "hard (hard_timeout)"),
        ("threads", "soft (timeout), hard (hard_timeout)"),
        (OwnPool, "soft (timeout), soft.async (timeout), soft.sql (timeout), hard (hard_timeout)"),
    ],
)
def test_what_is_declared_in_vain_is_refused_by_name(pool: str | type, names: str) -> None:
    assert refused(pool) == names


def test_a_limit_for_all_is_refused_where_a_pool_cannot_enforce_it() -> None:
    """As ``task_time_limit`` gives one: Celery would pass over it."""
    free = [HandlerSpec("free", nothing), HandlerSpec("free.async", nothing, is_async=True)]
    for default, named in (
        (CeleryLimits(LIMIT, None), "free (timeout)"),
        (CeleryLimits(None, LIMIT), "free (hard_timeout), free.async (hard_timeout)"),
    ):
        check_limits("prefork", free, ["default"], default)
        with pytest.raises(ConfigurationError, match=re.escape(f"the limits of {named}:")):
            check_limits("threads", free, ["default"], default)


@pytest.fixture
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TASKS_APP_TIMEOUT", "TASKS_APP_HARD_TIMEOUT"):
        monkeypatch.setenv(name, "")


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize(
    ("ours", "held"),
    [
        ({}, ("30s", "2h")),
        ({"timeout": "10s", "hard_timeout": "3h"}, ("10s", "2h")),
        ({"timeout": "1h", "hard_timeout": "1m"}, ("30s", "1m")),
    ],
)
def test_of_celerys_limit_and_ours_the_shorter_holds_for_a_task(
    ours: dict[str, str], held: tuple[str, str]
) -> None:
    """Our own default, an hour, is nobody's word."""
    app = Celery("limits", set_as_current=False)
    app.task(name="celerys.own", shared=False)(nothing)
    register(app)
    app.finalize()
    worker = SimpleNamespace(app=app, soft_time_limit=30.0, time_limit=7200)

    given = move_limits_to_tasks(worker, Settings(**ours))

    assert given == (parse_duration(held[0]), timedelta(hours=2))
    assert (os.environ["TASKS_APP_TIMEOUT"], os.environ["TASKS_APP_HARD_TIMEOUT"]) == held
    assert (worker.soft_time_limit, worker.time_limit) == (None, None)
    assert app.tasks["celerys.own"].time_limit == 7200
    assert app.tasks[EXECUTE].time_limit is None


def test_the_refusal_says_why_and_what_to_do() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        check_limits("threads", SPECS, ["default", "other"])
    said = str(refusal.value)
    assert said.startswith(
        "The threads pool cannot enforce the limits of soft (timeout), elsewhere"
    )
    assert "nothing can be raised in a running thread and no process can be killed" in said
    assert said.endswith("Serve their queues with --pool=prefork, or declare no limit.")


OPTIONS = ("--soft-time-limit", "1", "--time-limit", "2")


@pytest.fixture(scope="module")
def worker(house: House) -> Iterator[CeleryProcess]:
    house.beat()
    worker = house.worker(*OPTIONS, children=1, TASKS_APP_IMPORTS="limit_handlers")
    yield worker
    worker.end()
    house.sql("DELETE FROM task_worker")


@pytest.fixture
def settings_of_time_limits(house: House) -> Settings:
    return Settings(broker_url=house.environment()["TASKS_APP_BROKER_URL"])


@pytest.fixture
def app(settings_of_time_limits: Settings) -> Iterator[Celery]:
    app = Celery("rules", set_as_current=False)
    app.conf.update(celery_configuration(settings_of_time_limits))
    yield app
    app.close()


def harmed(house: House, ids: list[int]) -> list[int]:
    """Which of the tasks were charged with a crash or a failure, or tried twice."""
    tasks = [house.task(task_id) for task_id in ids]
    return [task.id for task in tasks if task.crashes or task.failures or task.attempt > 1]


@pytest.mark.timeout(120, method="thread")
def test_a_message_of_many_tasks_may_take_longer_than_the_limit_of_one(
    house: House, worker: CeleryProcess, settings_of_time_limits: Settings
) -> None:
    ids = house.create("short", 120)
    CeleryHints(settings_of_time_limits).publish("default", ids)
    assert house.over(ids, 60) == {"SUCCEEDED": 120}
    assert harmed(house, ids) == []


@pytest.mark.timeout(120, method="thread")
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


@pytest.mark.timeout(120, method="thread")
def test_the_hard_limit_kills_the_child_for_the_one_task_that_passes_it(
    house: House, worker: CeleryProcess
) -> None:
    deaf = house.create("deaf")[0]
    assert house.over([deaf]) == {"FAILED": 1}
    assert "killed at its hard limit of 2 s" in (house.task(deaf).error or "")


@pytest.mark.timeout(120, method="thread")
def test_what_a_handler_declares_wins(house: House, worker: CeleryProcess) -> None:
    ids = house.create("patient")
    assert house.over(ids) == {"SUCCEEDED": 1}
    assert harmed(house, ids) == []


@pytest.mark.timeout(120, method="thread")
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


@pytest.mark.timeout(120, method="thread")
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


BIN = Path(sys.executable).parent
CORE = "hunter"
ODD = st.text(st.sampled_from("#/?@:;[]%&=+ \t'\"\\éK℀1a"), max_size=4)
PASSWORDS = st.tuples(ODD, ODD, ODD).map(lambda odd: f"{odd[0]}{CORE}{odd[1]}{CORE}{odd[2]}")
BROKERS = st.sampled_from(
    [
        "redis://:{}@127.0.0.1:1/0",
        "amqp://me:{}@127.0.0.1:1//",
        "sentinel://:{}@127.0.0.1:1;sentinel://:{}@127.0.0.1:2",
        "redis:/:{}@127.0.0.1:1/0",
        ":{}@127.0.0.1",
    ]
)
DATABASES = st.sampled_from(
    [
        "postgresql+psycopg://me:{}@127.0.0.1:1/x",
        "postgresql:/me:{}@127.0.0.1:1/x",
        "postgresql+psycopg//me:{}@127.0.0.1/x",
        "me:{}@127.0.0.1/x",
        "postgresql+psycopg://me:{}",
        "host=127.0.0.1 password={}",
    ]
)
COMMANDS = [
    *(["tasks-app", *words] for words in (["config"], ["doctor"], ["scan"], ["list"])),
    *(
        ["celery", "-A", "tasks_app", *words]
        for words in (["worker"], ["beat"], ["report"], ["inspect", "ping"], ["status"], ["flower"])
    ),
]


def said_of(name: str, url: str) -> tuple[Settings | None, str]:
    """Read the settings with this URL; return them unless it is refused, and what is said."""
    before = os.environ.get(name)
    os.environ[name] = url
    try:
        read = load_settings()
        return read, repr(effective_settings(read)) + repr(read)
    except ConfigurationError as error:
        return None, str(error)
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@pytest.mark.test_all
@given(form=DATABASES, password=PASSWORDS)
@example(form="postgresql+psycopg://me:{}@127.0.0.1:1/x", password="pa@hunter:word")
@example(form="postgresql+psycopg://me:{}@127.0.0.1:1/x", password="#hunter/")
@example(form="postgresql+psycopg://me:{}", password="1?hunterhunter")
def test_no_password_of_a_database_url_is_shown_or_told_by_sqlalchemy(
    form: str, password: str
) -> None:
    assume("@" in form or "@" not in password)  # what follows is the host, then
    read, said = said_of("TASKS_APP_DATABASE_URL", form.format(password))
    assume("@" in form or read is None)  # 1/x, say, is read as a port and a database
    assert CORE not in said
    if read is not None:
        url = make_url(read.database)
        assert CORE not in f"{url.host} {url.port}"


@pytest.mark.test_all
@settings(max_examples=60, report_multiple_bugs=False)
@given(form=BROKERS, password=PASSWORDS)
@example(form="redis://:{}@127.0.0.1:1/0", password="hunter#x")
@example(form="redis://:{}@127.0.0.1:1/0", password="1/hunter")
@example(form="redis://:{}@127.0.0.1:1/0", password="1?hunter")
@example(form="amqp://me:{}@127.0.0.1:1//", password="℀hunter")
def test_no_password_of_a_broker_url_is_shown_or_told_by_celery(form: str, password: str) -> None:
    assume("@" in form or "@" not in password)
    read, said = said_of("TASKS_APP_BROKER_URL", form.format(*[password] * 2))
    assert CORE not in said
    if read is not None:
        assert CORE not in told_by_celery(read)


def told_by_celery(read: Settings) -> str:
    """What ``report`` and the like print, or the error that they end with."""
    try:
        app = make_celery(read)
        with app.connection_for_read() as connection:
            said = f"{connection.as_uri()} {connection.as_uri(include_password=False)}"
        return f"{said} {app.bugreport()} {effective_celery_settings(app)!r}"
    except (ValueError, ConfigurationError) as error:
        return str(error)


@pytest.mark.test_all
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_tells_the_password_of_a_broker(words: list[str], tmp_path: Path) -> None:
    for url in (f"redis://:{CORE}#x@127.0.0.1:1/0", f"redis://:1/{CORE}@127.0.0.1:1/0"):
        environment = {
            **os.environ,
            "TASKS_APP_DATABASE_URL": "postgresql+psycopg://me@127.0.0.1:1/x",
            "TASKS_APP_BROKER_URL": url,
        }
        done = run_program([BIN / words[0], *words[1:]], cwd=tmp_path, env=environment, timeout=60)
        said = " ".join((done.stdout + done.stderr).split())

        assert done.returncode != 0
        assert CORE not in said
        assert "Traceback" not in said
        assert "TASKS_APP_BROKER_URL is wrong: use a URL such as redis://" in said


@pytest.mark.test_all
def test_a_url_of_celerys_own_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text(f"broker_url = 'redis://:{CORE}#x@127.0.0.1:1/0'\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    for words in ([BIN / "celery", "-A", "tasks_app", "report"], [BIN / "tasks-app", "doctor"]):
        done = run_program(
            words,
            cwd=tmp_path,
            env={**environment, "TASKS_APP_DATABASE_URL": "postgresql+psycopg://a@127.0.0.1:1/x"},
            timeout=60,
        )

        assert CORE not in done.stdout + done.stderr
        assert "The URL in broker_url cannot be read" in done.stdout + done.stderr
