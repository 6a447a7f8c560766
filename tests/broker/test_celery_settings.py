"""docs/celery-settings.md names all that Celery has; what it calls neutralised or refused is so."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from celery import Celery
from celery.app.defaults import DEFAULTS
from celery.beat import PersistentScheduler
from celery.worker.request import Request, create_request_cls
from kombu.message import Message

from tasks_app.broker.beat import PoolScheduler
from tasks_app.broker.consumer import OURS, RabbitConsumer
from tasks_app.broker.defaults import PASSED_BY, celery_defaults
from tasks_app.broker.messages import Envelope
from tests.broker.celery_page import (
    EXISTING,
    HONOURED,
    NEUTRALISED,
    REFUSED,
    celery_apps,
    named,
    rows,
)
from tests.environment import NEWEST_CELERY


@pytest.fixture(autouse=True)
def _clean() -> None:
    """No house here."""


@pytest.fixture
def apps() -> Iterator[Callable[..., Celery]]:
    with celery_apps() as make:
        yield make


@pytest.mark.skipif(not NEWEST_CELERY, reason="the page is about the newest Celery")
@pytest.mark.parametrize("heading", EXISTING)
def test_each_name_of_the_installed_celery_is_in_one_row(heading: str) -> None:
    for name in sorted(EXISTING[heading]):
        said = [row for row in rows(heading) if fnmatch.fnmatch(name, row.name)]
        assert len(said) == 1, f"{name} is in {len(said)} rows of {heading!r}"
    for row in rows(heading):
        assert row.here in (HONOURED, NEUTRALISED, REFUSED)
        assert fnmatch.filter(EXISTING[heading], row.name), f"{row.name} is nothing of Celery's"


# -- what is neutralised: nothing of ours feels it

ODD: dict[str, Any] = {
    "task_default_rate_limit": "1/h",
    "task_annotations": {"*": {"rate_limit": "1/h", "time_limit": 1, "acks_late": True}},
    "task_protocol": 1,
    "task_serializer": "yaml",
    "task_compression": "gzip",
    "task_default_delivery_mode": 1,
    "task_default_priority": 9,
    "task_default_routing_key": "elsewhere",
    "task_routes": {"*": {"queue": "elsewhere", "priority": 3}},
    "task_publish_retry_policy": {"max_retries": 99},
    "worker_eta_task_limit": 1,
    "result_backend": "redis://127.0.0.1:1/0",
    "result_accept_content": ["pickle"],
    "result_serializer": "pickle",
    "result_compression": "gzip",
    "result_failure_expires": 1,
    "beat_schedule_filename": "/nowhere/at-all",
    "beat_sync_every": 1,
}
"""Values that would be felt; of switches it is the other one, of the rest any text."""


def changed(name: str) -> dict[str, Any]:
    """A configuration in which this setting, and what it needs to matter, is another."""
    default = celery_defaults("memory://", 1.0).get(name, DEFAULTS[name])
    other = not default if isinstance(default, bool) else ODD.get(name, "odd")
    needed = {"worker_deduplicate_successful_tasks": {"task_acks_late": True}}
    return {**needed.get(name, {}), name: other}


class Felt(NamedTuple):
    """All by which a message of ours could come to feel a setting."""

    attributes: list[tuple[Any, ...]]
    envelope: tuple[Any, ...]
    text: dict[str, Any]
    pool: list[dict[str, Any]]
    limited: list[Any]


ATTRIBUTES = (
    *("rate_limit", "time_limit", "soft_time_limit", "acks_late", "acks_on_failure"),
    *("acks_on_timeout", "acks_on_failure_or_timeout", "reject_on_worker_lost", "priority"),
    *("retry_on_worker_lost", "track_started", "ignore_result", "store_eager_result"),
    *("store_errors_even_if_ignored", "serializer", "send_events", "max_retries"),
)


def felt(app: Celery, names: tuple[str, ...] = OURS) -> Felt:
    sent: list[Any] = []
    channel = SimpleNamespace(
        prepare_message=lambda *body, **parts: (body, parts),
        basic_publish=lambda message, **way: sent.append((message, way)),
    )
    envelope = Envelope(app)
    envelope.put(channel, "mail", 1, [1, 2])
    text = json.loads(envelope.text("mail", 1, [1, 2]))
    given: list[dict[str, Any]] = []
    pool = SimpleNamespace(apply_async=lambda *_, **options: given.append(options))
    tasks = [app.tasks[name] for name in names]
    for task in tasks:
        request = create_request_cls(Request, task, pool, "host", None, app=app)
        one = request(_message(task.name), app=app, task=task)
        one.execute_using_pool(pool)
    (((body, parts), way),) = sent
    return Felt(
        [
            (
                task.name,
                *(getattr(task, each, None) for each in ATTRIBUTES),
                type(task.backend).__name__,
            )
            for task in tasks
        ],
        (body, _without_names(parts), way),
        _without_names(text),
        [
            {k: v for k, v in each.items() if "timeout" in k and "callback" not in k}
            for each in given
        ],
        [task.rate_limit for task in tasks],
    )


def _message(task: str) -> Any:
    headers = {"id": "a", "task": task, "root_id": "a"}
    return Message(
        "[[], {}, {}]", headers=headers, content_type="application/json", content_encoding="utf-8",
        delivery_info={}, channel=None,
    )  # fmt: skip


def _without_names(parts: Any) -> Any:
    """Without what is new in each message."""
    return json.loads(re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "<name>", json.dumps(parts)))


def on_beat(_name: str) -> None:
    """Ours keeps no file, and so synchronises nothing."""
    assert not issubclass(PoolScheduler, PersistentScheduler)
    assert PoolScheduler.sync is PersistentScheduler.__mro__[1].sync


def on_rabbitmq(_name: str) -> None:
    """Celery's step that makes the queues for delays is not among ours."""
    assert not [step for step in RabbitConsumer.Blueprint.default_steps if "delayed" in str(step)]


PROOFS = {
    "beat_schedule_filename": on_beat,
    "beat_sync_every": on_beat,
    "broker_native_delayed_delivery_queue_type": on_rabbitmq,
}


def test_a_celery_task_feels_its_settings(apps: Callable[..., Celery]) -> None:
    """Else the next test would see nothing, whatever we do."""
    theirs = {"task_acks_late": True, "task_default_rate_limit": "1/h", "task_time_limit": 3}
    plain, odd = (felt(apps(**more), ("celerys.own",)) for more in ({}, theirs))
    assert plain.attributes != odd.attributes
    assert (plain.pool, odd.pool) == (
        [{"soft_timeout": None, "timeout": None}],
        [{"soft_timeout": None, "timeout": 3 if NEWEST_CELERY else None}],  # else the pool's own
    )


@pytest.mark.filterwarnings("ignore:The DisabledBackend result backend")
@pytest.mark.parametrize("name", named("Settings", NEUTRALISED))
def test_no_message_of_ours_feels_what_is_neutralised(
    name: str, apps: Callable[..., Celery]
) -> None:
    if name in PROOFS:
        PROOFS[name](name)
        return
    assert felt(apps(**changed(name))) == felt(apps())


@pytest.mark.parametrize("name", ["task_time_limit", "task_soft_time_limit"])
def test_no_message_feels_a_time_limit(name: str, apps: Callable[..., Celery]) -> None:
    assert felt(apps(**{name: 3})) == felt(apps())


def test_doctor_names_what_the_page_calls_neutralised() -> None:
    assert set(PASSED_BY) == {row.name for row in rows("Settings") if row.here == NEUTRALISED}


@pytest.mark.parametrize("heading", ["Options of `celery worker`", "Options of `celery beat`"])
def test_the_only_neutralised_options_are_of_beats_file(heading: str) -> None:
    assert set(named(heading, NEUTRALISED)) == {
        "schedule_filename" if "worker" in heading else "schedule"
    }
    assert named(heading, REFUSED) == []
    on_beat(heading)
