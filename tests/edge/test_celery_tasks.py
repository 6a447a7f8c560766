"""The sample of plain Celery in each kind of children; in forked ones: tests/broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.broker.conftest import House
from tests.broker.side_by_side import CASES, _create

FAILED = {
    *("retries used up, own exception", "retries used up, Celery's", "no retries", "Reject"),
    *("autoretry with backoff", "dont_autoretry_for", "an exception", "throws"),
    *("soft limit, not caught", "soft limit of the call", "a result that is no JSON"),
    "callbacks of failure",
}
ENDS = {name: "FAILED" if name in FAILED else "SUCCEEDED" for name in CASES}
ENDS |= {"Ignore": "SKIPPED", "expired": "EXPIRED"}
LIMITED = {name for name in CASES if name.startswith("soft limit")}
ALL, UNLIMITED = (
    {"TASKS_APP_CELERY_APP": "sample_celery"},
    {"TASKS_APP_IMPORTS": "sample_unlimited"},
)
"""Threads and solo refuse to start for tasks whose limits they cannot enforce."""


@pytest.mark.parametrize("pool", ["spawn", "threads", "solo"])
def test_every_case_ends_as_it_should(
    house: House,
    sample: Any,
    backend: Redis,
    tmp_path: Path,
    pool: str,
) -> None:
    whole = pool == "spawn"
    if whole:
        (tmp_path / "celeryconfig.py").write_text("worker_pool_start_method = 'spawn'\n")
    names = [name for name in CASES if whole or name not in LIMITED]
    environment = {k: os.environ[k] for k in ("SAMPLE_BROKER", "SAMPLE_BACKEND")}
    short = {"TASKS_APP_SCAN_INTERVAL": "100ms", "TASKS_APP_LEASE": "20s"}
    kind = () if whole else ("-P", pool)
    worker = house.worker(
        *kind, folder=tmp_path, ready=False, **(ALL if whole else UNLIMITED),
        **environment, **short,
    )  # fmt: skip
    beat = house.beat(**short)
    house.ready(worker, 2 if whole else 1)
    began = sample.app.now()

    with house.engine.begin() as connection:
        ids = {n: _create(connection, sample, n, CASES[n], began) for n in names}
    house.over(list(ids.values()), 90)

    assert {n: str(house.task(ids[n]).state) for n in names} == {n: ENDS[n] for n in names}
    beat.stop()
    assert worker.stop() == 0
    backend.flushdb()
