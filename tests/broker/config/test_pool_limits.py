"""Which limits a pool can enforce: what is declared in vain is refused by name."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.base import BasePool

from tasks_app.broker.app import register
from tasks_app.broker.checks import check_limits
from tasks_app.broker.config import CeleryLimits, move_limits_to_tasks
from tasks_app.broker.defaults import EXECUTE
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import parse_duration
from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.handlers.spec import HandlerSpec

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
        (
            OwnPool,
            "soft (timeout), soft.async (timeout), soft.sql (timeout), hard (hard_timeout)",
        ),
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
