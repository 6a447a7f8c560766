"""An unmodified Celery project: a plain worker and the pool do the same with it.

Every case runs twice, by ``.delay()`` through a plain Celery worker with a result backend, and from
the pool; all cases at the same time. What they did and how they ended is compared case by case.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from celery import Celery
from celery.result import GroupResult
from celery.states import READY_STATES
from kombu.utils.json import loads
from redis import Redis

from tasks_app import cancel_task
from tasks_app.broker import results
from tasks_app.broker.results import PoolBackend
from tests.broker.conftest import House
from tests.broker.side_by_side import CANVASES, CASES, Canvas, Case, Words, _create, _options
from tests.clock import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

STATES = {
    "SUCCESS": "SUCCEEDED",
    "FAILURE": "FAILED",
    "REVOKED": "EXPIRED",
    "PENDING": "SKIPPED",  # Ignore leaves no state behind
}


ALL: dict[str, Case | Canvas] = {**CASES, **CANVASES}
SEEN = {name: case.seen for name, case in CASES.items() if case.seen}
STATELESS = ("ignored", "forgettable")
"""What leaves nothing in a result backend."""
OTHER_WORDS = {"EncodeError": "Fail"}
"""Celery's exception for a result that it cannot store, and ours."""


@dataclass
class Ended:
    state: str
    result: Any
    error: str | None
    notes: list[list[Any]]
    times: list[float]
    began: float
    shown: tuple[Any, ...] = ()
    """What AsyncResult shows at the end: state, result, class and text of an exception."""
    seen: Any = None
    """What it showed on the way, in the state that the case is about."""


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Leave the rows of all cases, which are made at once, alone."""


@pytest.fixture(scope="module")
def both(
    house: House, sample: Any, backend: Redis, pool_backend: PoolBackend
) -> dict[str, tuple[Ended, Ended]]:
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
    sent = {name: _send(sample, name, case, began) for name, case in ALL.items()}
    created = {}
    for name, case in ALL.items():
        with house.engine.begin() as connection:
            created[name] = _create(connection, sample, name, case, began)
    sample.app.control.revoke([sent[n] for n, c in CASES.items() if c.revoked])
    for name, case in CASES.items():
        if case.revoked:
            with house.engine.begin() as connection:
                cancel_task(connection, created[name])
    seen = _seen(sample.app.backend, pool_backend, sent, created)
    for name in SEEN:
        for side in ("plain", "pool"):
            backend.rpush(f"seen:{side} {name}", "1")
    house.over([created[name] for name in CASES], 40)
    for name, canvas in CANVASES.items():
        for side in ("plain", "pool"):

            def noted(key: str = f"notes:{side} {name}", notes: int = canvas.notes) -> bool:
                return int(backend.llen(key)) >= notes

            until(noted, 30, f"the notes of {name}, {side}")
        if canvas.state != "PENDING":
            house.over([created[name]], 30)
    for name, case in ALL.items():

        def ended(name: str = name, case: Case | Canvas = case) -> bool:
            stateless = isinstance(case, Case) and case.task in STATELESS
            if stateless:
                return bool(backend.exists(f"notes:plain {name}"))
            return sample.app.backend.get_state(sent[name]) in READY_STATES

        until(ended, 30, f"the end of {name}")
    began_s = began.timestamp()
    found = {}
    for name in ALL:
        notes = (backend.lrange(f"notes:{side} {name}", 0, -1) for side in ("plain", "pool"))
        plain = _plainly(sample.app.backend.get_task_meta(sent[name]), next(notes), began_s)
        pool = _pooled(house.task(created[name]), next(notes), began_s)
        plain.shown = _shown(sample.app.backend.get_task_meta(sent[name]))
        pool.shown = _shown(pool_backend.get_task_meta(created[name]))
        plain.seen, pool.seen = seen.get(("plain", name)), seen.get(("pool", name))
        found[name] = (plain, pool)
    return found


@pytest.fixture(scope="module")
def pool_backend(house: House, sample: Any) -> Iterator[PoolBackend]:
    """What the project's backend would be after its move."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASKS_APP_DATABASE_URL", house.url)
        results._engine.cache_clear()
        yield PoolBackend(sample.app)
        results._engine(os.getpid()).dispose()
        results._engine.cache_clear()


def _seen(plain: Any, pool: Any, sent: Any, created: Any) -> dict[tuple[str, str], Any]:
    """Poll those that show something on the way until all have shown it."""
    open_ones = {("plain", n): (plain, sent[n]) for n in SEEN}
    open_ones |= {("pool", n): (pool, created[n]) for n in SEEN}
    seen: dict[tuple[str, str], Any] = {}

    def all_seen() -> bool:
        for key, (backend, task_id) in open_ones.items():
            meta = backend.get_task_meta(task_id)
            if key not in seen and meta["status"] == SEEN[key[1]]:
                seen[key] = meta["result"]
        return len(seen) == len(open_ones)

    until(all_seen, 20, f"what {list(SEEN)} show")
    return seen


def _shown(meta: dict[str, Any]) -> tuple[Any, ...]:
    value = meta["result"]
    if isinstance(value, Exception):
        text = re.sub(r"\[[^]]*\]|plain |pool ", "", str(value))  # which names itself
        return meta["status"], None, type(value).__name__, text
    return meta["status"], value, None, None


def _send(sample: Any, name: str, case: Case | Canvas, began: datetime) -> str:
    if isinstance(case, Canvas):
        sent = case.make(Words(sample, f"plain {name}")).apply_async()
        return (sent.results[-1] if isinstance(sent, GroupResult) else sent).id
    task = getattr(sample, case.task)
    args = (f"plain {name}", *case.args)
    return task.apply_async(args, case.kwargs, **_options(case, began)).id


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


def _is_told_apart(case: Case) -> bool:
    """Whether it ends alike; see the other rows of the table in docs/from/celery.md."""
    return case.task not in (*STATELESS, "unstorable") and case.result is None


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if _is_told_apart(case)])
def test_async_result_shows_what_it_shows_in_plain_celery(
    both: dict[str, tuple[Ended, Ended]], name: str
) -> None:
    plain, pool = both[name]
    assert pool.shown == plain.shown
    if CASES[name].seen != "RETRY":  # whose exception has another text
        assert pool.seen == plain.seen


@pytest.mark.parametrize("name", CANVASES)
def test_a_canvas_does_what_it_does_in_plain_celery(
    both: dict[str, tuple[Ended, Ended]], name: str
) -> None:
    plain, pool = both[name]
    assert sorted(pool.notes) == sorted(plain.notes)  # members run beside each other
    assert (pool.state, pool.result) == (CANVASES[name].state, plain.result)


@pytest.mark.parametrize(
    ("name", "least_s"),
    [
        ("countdown", 1.0),
        ("eta", 1.0),
        ("autoretry with backoff", 2.0),
        ("chain, a countdown", 1.0),
    ],
)
def test_neither_side_runs_before_its_time(
    both: dict[str, tuple[Ended, Ended]], name: str, least_s: float
) -> None:
    for side in both[name]:
        assert side.times[-1] - side.began > least_s


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
