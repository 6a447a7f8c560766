"""One Celery project that runs through the broker and from the pool."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from redis import Redis

from tasks_app import create_task
from tasks_app.embedded.servers import Valkey
from tests.broker.celery_process import HOUSE


@dataclass
class Case:
    task: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    state: str | None = None
    """Where the pool has another word for it than the table above."""
    result: Any = None
    """Where the pool keeps another one: that of the last run, not of the first success."""


WHEN = datetime(2026, 7, 1, 12, 30, tzinfo=UTC)


CASES = {
    "a result": Case("add", (1, 2)),
    "keywords and defaults": Case("add", kwargs={"x": 40}),
    "the request": Case("look", kwargs={"a": [1, {"b": None}]}),
    "self.retry": Case("twice"),
    "retries used up, own exception": Case("hopeless"),
    "retries used up, Celery's": Case("nameless"),
    "no retries": Case("once"),
    "more retries than declared": Case("longer"),
    "retries without end": Case("stubborn"),
    "retry with other arguments": Case("counting", (1,)),
    "retry with other arguments, keywords": Case("counting", (0,), {"step": 2}),
    "retry without raising": Case("quietly", result="in time"),
    "retry without self": Case("unbound"),
    "autoretry with backoff": Case("backing_off"),
    "dont_autoretry_for": Case("picky"),
    "autoretry that succeeds": Case("recovering"),
    "Ignore": Case("ignored"),
    "Reject": Case("rejected"),
    "an exception": Case("broken"),
    "throws": Case("expected"),
    "soft limit, caught": Case("tidy"),
    "soft limit, not caught": Case("untidy"),
    "soft limit of the call": Case("broken", options={"soft_time_limit": 5, "time_limit": 9}),
    "special values": Case(
        "typed", (WHEN, Decimal("9.90")), {"ids": [UUID(int=7)], "raw": b"\xff\x00"}
    ),
    "a result that is no JSON": Case("unstorable"),
    "a result that nobody keeps": Case("forgettable", state="SUCCEEDED"),
    "models": Case("priced", ({"number": 41},)),
    "callbacks of success": Case("telling", ("fine",)),
    "callbacks of failure": Case("telling", ("raise",)),
    "an own __call__": Case("wrapped"),
    "a class": Case("classic", ("Ada", "Grace")),
    "a shared task": Case("shared"),
    "countdown": Case("add", (1,), options={"countdown": 1}),
    "eta": Case("add", (1,), options={"eta": timedelta(seconds=1)}),
    "expired": Case("add", (1,), options={"countdown": 1.5, "expires": 0.3}),
    "not expired": Case("add", (1,), options={"expires": 60}),
}


@pytest.fixture(scope="module")
def backend(broker: Valkey) -> Iterator[Redis]:
    client = Redis.from_url(broker.url_of(14), decode_responses=True)
    yield client
    client.flushdb()
    client.close()


@pytest.fixture(scope="module")
def sample(broker: Valkey, backend: Redis) -> Iterator[Any]:
    """The project, imported by the producer, which is this process."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SAMPLE_BROKER", broker.url_of(14))
    patch.setenv("SAMPLE_BACKEND", broker.url_of(14))
    spec = importlib.util.spec_from_file_location("sample_celery", HOUSE / "sample_celery.py")
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, "sample_celery", module)
    spec.loader.exec_module(module)
    yield module
    module.app.close()
    patch.undo()


def _options(case: Case, began: datetime) -> dict[str, Any]:
    return {
        name: began + value if isinstance(value, timedelta) else value
        for name, value in case.options.items()
    }


def _create(connection: Any, sample: Any, name: str, case: Case, began: datetime) -> int:
    """By a signature, which has Celery's words for all options."""
    task = getattr(sample, case.task)
    signature = task.signature((f"pool {name}", *case.args), case.kwargs, _options(case, began))
    return create_task(connection, signature)
