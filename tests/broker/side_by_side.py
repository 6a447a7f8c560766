"""One Celery project that runs through the broker and from the pool."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from celery import chain, chord, group, signature
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
    seen: str | None = None
    """A state that AsyncResult shows on the way."""
    revoked: bool = False
    """Whether it is revoked while it waits."""


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
    "a task_id": Case("named", options={"task_id": "mine"}),
    "update_state": Case("reporting", seen="PACKING"),
    "a retry that waits": Case("patient", seen="RETRY"),
    "revoked": Case("add", (1,), options={"countdown": 2}, state="CANCELLED", revoked=True),
    "not expired": Case("add", (1,), options={"expires": 60}),
}


class Words:
    """What canvases are written with: tasks of the project that note under one key."""

    def __init__(self, sample: Any, key: str) -> None:
        self.app = sample.app
        self._sample = sample
        self._key = key

    def task(self, task: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._sample, task).s(*args, key=self._key, **kwargs)

    def a(self, *args: Any) -> Any:
        return self.task("say", *args, name="a")

    def b(self, *args: Any) -> Any:
        return self.task("say", *args, name="b")

    def c(self, *args: Any) -> Any:
        return self.task("say", *args, name="c")

    def d(self, *args: Any) -> Any:
        return self.task("say", *args, name="d")

    def failing(self) -> Any:
        return self.task("fail")

    def errback(self) -> Any:
        return self.task("errback")

    def as_json(self, canvas: Any) -> Any:
        return signature(json.loads(json.dumps(canvas)), app=self.app)


@dataclass
class Canvas:
    make: Callable[[Words], Any]
    notes: int
    """How many notes its tasks leave."""
    state: str = "SUCCEEDED"
    """Of its last task from the pool."""


CANVASES = {
    "chain": Canvas(lambda w: chain(w.a(1), w.b(2), w.c()), 3),
    "chain by |": Canvas(lambda w: w.a(1) | w.b(2) | w.c(3), 3),
    "chain with an immutable": Canvas(lambda w: w.a(1) | w.b(2).set(immutable=True) | w.c(), 3),
    "chain in a chain": Canvas(lambda w: chain(w.a(1), chain(w.b(), w.c(2)), w.d()), 4),
    "chain as JSON": Canvas(lambda w: w.as_json(w.a(1) | group(w.b(), w.c()) | w.d()), 4),
    "chain through a retry": Canvas(lambda w: w.a(1) | w.task("say_again", "x") | w.c(), 3),
    "chain, a retry with arguments": Canvas(lambda w: w.a(1) | w.task("say_more", 1) | w.c(), 3),
    "chain, a countdown": Canvas(lambda w: w.a(1) | w.b().set(countdown=1), 2),
    "chain, a result nobody keeps": Canvas(lambda w: w.task("unkept") | w.b(), 2),
    "chain, special values": Canvas(lambda w: w.task("now") | w.b(), 2),
    "chain with an empty group": Canvas(lambda w: chain(w.a(1), group(), w.b()), 2),
    "chain with a group of one": Canvas(lambda w: chain(w.a(1), group(w.b()), w.c()), 3),
    "chain that ends in a group": Canvas(lambda w: w.a(1) | group(w.b(2), w.c(3)), 3),
    "chain that fails": Canvas(
        lambda w: chain(w.a(1), w.failing(), w.c()).on_error(w.errback()), 3, "PENDING"
    ),
    "group": Canvas(lambda w: group(w.a(1), group(w.b(2), w.c(3)), w.d(4)), 4),
    "group, then a task": Canvas(lambda w: group(w.a(1)) | w.b(2), 2),
    "group, then a group": Canvas(
        lambda w: chain(group(w.a(1), w.b(2)), group(w.c(), w.d()), w.a()), 5
    ),
    "chord": Canvas(lambda w: chord([w.a(1), w.b(2)], w.c(3)), 3),
    "chord without a header": Canvas(lambda w: chord([], w.c(3)), 1),
    "chord amid a chain": Canvas(lambda w: w.a(1) | group(w.b(2), w.c(3)) | w.d() | w.a(4), 5),
    "chord of chains": Canvas(lambda w: chord([w.a(1) | w.b(), w.c(2)], chain(w.d(), w.a(3))), 5),
    "chord of chords": Canvas(
        lambda w: chord([chord([w.a(1), w.b(2)], w.c()), w.d(3)], chord([w.a(), w.b()], w.c())), 7
    ),
    "chord of a chain that ends in a group": Canvas(
        lambda w: chord([w.a(1) | group(w.b(), w.c()), w.d(2)], w.a(3)), 5
    ),
    "chord without a header, amid a chain": Canvas(lambda w: w.a(1) | chord([], w.b(2)), 2),
    "chord that fails": Canvas(
        lambda w: chord([w.a(1), w.failing()], w.c().on_error(w.errback())), 3, "PENDING"
    ),
    "link": Canvas(lambda w: w.a(1).set(link=[w.b(2), w.c(3).set(immutable=True)]), 3),
    "link_error": Canvas(lambda w: w.failing().on_error(w.errback()), 2, "FAILED"),
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


def _create(connection: Any, sample: Any, name: str, case: Case | Canvas, began: datetime) -> int:
    """By a signature, which has Celery's words for all options."""
    if isinstance(case, Canvas):
        return create_task(connection, case.make(Words(sample, f"pool {name}")))
    task = getattr(sample, case.task)
    signature = task.signature((f"pool {name}", *case.args), case.kwargs, _options(case, began))
    return create_task(connection, signature)
