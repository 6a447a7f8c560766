"""An unmodified Celery project: a plain worker and the pool do the same with it.

Every case runs twice, by ``.delay()`` through a plain Celery worker with a result backend, and from
the pool; all cases at the same time. What they did and how they ended is compared case by case.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from celery import Celery
from celery.result import GroupResult
from celery.states import READY_STATES
from kombu.utils.json import loads
from redis import Redis

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


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Leave the rows of all cases, which are made at once, alone."""


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
    sent = {name: _send(sample, name, case, began) for name, case in ALL.items()}
    created = {}
    for name, case in ALL.items():
        with house.engine.begin() as connection:
            created[name] = _create(connection, sample, name, case, began)
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
        for name in ALL
    }


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
