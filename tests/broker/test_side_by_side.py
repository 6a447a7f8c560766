"""An unmodified Celery project: a plain worker and the pool do the same with it.

Every case runs twice, by ``.delay()`` through a plain Celery worker with a result backend, and from
the pool; all cases at the same time. What they did and how they ended is compared case by case.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from celery import Celery
from celery.states import READY_STATES
from kombu.utils.json import loads
from redis import Redis

from tasks_app import create_task
from tasks_app.embedded.valkey import Valkey
from tests.broker.celery_process import HOUSE
from tests.broker.conftest import House
from tests.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120, method="thread")]

STATES = {
    "SUCCESS": "SUCCEEDED",
    "FAILURE": "FAILED",
    "REVOKED": "EXPIRED",
    "PENDING": "SKIPPED",  # Ignore leaves no state behind
}


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
        "typed",
        (WHEN, Decimal("9.90")),
        {"ids": [UUID(int=7)], "raw": b"\xff\x00"},
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
STATELESS = ("ignored", "forgettable")
"""What leaves nothing in a result backend."""
OTHER_WORDS = {"EncodeError": "Fail"}
"""Celery's exception for a result that it cannot store, and ours."""


@dataclass
class Ended:
    """What can be seen of one case on one side."""

    state: str
    result: Any
    error: str | None
    notes: list[list[Any]]
    times: list[float]
    began: float


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Leave the rows of all cases, which are made at once, alone."""


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


@pytest.fixture(scope="module")
def both(house: House, sample: Any, backend: Redis) -> dict[str, tuple[Ended, Ended]]:
    """Run every case on both sides; return by case how the plain side ended, and the pool's."""
    environment = {k: os.environ[k] for k in ("SAMPLE_BROKER", "SAMPLE_BACKEND")}
    plain = house.start(
        "worker", "-c", "4", "-l", "INFO", "--without-mingle", app="sample_celery", **environment
    )
    short = {"TASKS_APP_SCAN_INTERVAL": "100ms", "TASKS_APP_GIVE_BACK_AFTER": "100ms"}
    ours = house.worker(
        children=4, ready=False, TASKS_APP_CELERY_APP="sample_celery", **short, **environment
    )
    house.beat(**short)
    house.ready(ours, 4)
    plain.says("ready.")
    house.clean()

    began = sample.app.now()
    sent = {name: _send(sample, name, case, began) for name, case in CASES.items()}
    created = {}
    for name, case in CASES.items():
        with house.engine.begin() as connection:
            created[name] = _create(connection, sample, name, case, began)
    house.over(list(created.values()), 40)
    for name, case in CASES.items():

        def ended(name: str = name, stateless: bool = case.task in STATELESS) -> bool:
            if stateless:
                return bool(backend.exists(f"notes:plain {name}"))
            return sample.app.backend.get_state(sent[name]) in READY_STATES

        until(ended, 30, f"the end of {name}")
    began_s = began.timestamp()
    return {
        name: (
            _plainly(
                sample.app.backend.get_task_meta(sent[name]),
                backend.lrange(f"notes:plain {name}", 0, -1),
                began_s,
            ),
            _pooled(
                house.task(created[name]), backend.lrange(f"notes:pool {name}", 0, -1), began_s
            ),
        )
        for name in CASES
    }


def _options(case: Case, began: datetime) -> dict[str, Any]:
    return {
        name: began + value if isinstance(value, timedelta) else value
        for name, value in case.options.items()
    }


def _send(sample: Any, name: str, case: Case, began: datetime) -> str:
    task = getattr(sample, case.task)
    args = (f"plain {name}", *case.args)
    return task.apply_async(args, case.kwargs, **_options(case, began)).id


def _create(connection: Any, sample: Any, name: str, case: Case, began: datetime) -> int:
    """By a signature, which has Celery's words for all options."""
    task = getattr(sample, case.task)
    signature = task.signature((f"pool {name}", *case.args), case.kwargs, _options(case, began))
    return create_task(connection, signature)


def _plainly(meta: dict[str, Any], notes: list[str], began: float) -> Ended:
    state = meta["status"]
    value = meta["result"] if state == "SUCCESS" else None
    error = type(meta["result"]).__name__ if state == "FAILURE" else None
    return Ended(state, value, error, *_notes(notes), began)


def _pooled(task: Any, notes: list[str], began: float) -> Ended:
    value = loads(json.dumps(task.result)) if task.state == "SUCCEEDED" else None
    error = None
    if task.state == "FAILED":
        error = task.error.split(":")[0].split(".")[-1]
    return Ended(task.state, value, error, *_notes(notes), began)


def _notes(texts: list[str]) -> tuple[list[list[Any]], list[float]]:
    notes = [json.loads(text) for text in texts]
    return [note[:2] for note in notes], [note[2] for note in notes]


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_pool_does_what_plain_celery_does(
    both: dict[str, tuple[Ended, Ended]], name: str
) -> None:
    plain, pool = both[name]
    assert pool.notes == plain.notes
    assert pool.state == (CASES[name].state or STATES[plain.state])
    assert pool.result == (CASES[name].result or plain.result)
    if plain.error is not None:
        assert pool.error == OTHER_WORDS.get(plain.error, plain.error)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "least_s"), [("countdown", 1.0), ("eta", 1.0), ("autoretry with backoff", 2.0)]
)
def test_neither_side_runs_before_its_time(
    both: dict[str, tuple[Ended, Ended]], name: str, least_s: float
) -> None:
    for side in both[name]:
        assert side.times[-1] - side.began > least_s


@pytest.mark.long
@pytest.mark.usefixtures("both")
def test_through_our_queues_no_celery_task_runs_by_its_name(house: House, backend: Redis) -> None:
    """A shared task is registered with our app, too; the others are not."""
    forger = Celery(broker=house.environment()["TASKS_APP_BROKER_URL"], set_as_current=False)
    forger.conf.broker_transport_options = {"global_keyprefix": "tasks_app:"}
    for queue in ("default", "tasks_app"):
        for name in ("sample_celery.shared", "sample_celery.broken"):
            forger.send_task(name, ["forged"], queue=queue, ignore_result=True)
    forger.close()

    after = house.create("sample_celery.add", payload={"args": ["after", 1]})

    assert house.over(after) == {"SUCCEEDED": 1}
    assert backend.exists("notes:after")
    assert not backend.exists("notes:forged")
