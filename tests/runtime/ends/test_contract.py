"""The contract of an end: effects stand if and only if the outcome does; nothing is there twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

from dev.torture.fault_proxy import FaultProxy
from tasks_app import NewTask, create_tasks
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.testing import drain
from tests.runtime.bench import Bench
from tests.runtime.ends.points import SEEN, WAYS, Actor, Case, Setting, cases, triggers
from tests.runtime.ends.trial import Trial, differences
from tests.tiers import few

pytestmark = pytest.mark.timeout(120, method="thread")

SETS = [
    *(("plain", "row"), ("async", "group")),
    *(("plain", each) for each in ("slow", "threads", "group", "none", "failures", "once")),
    *(("async", each) for each in ("row", "none", "once")),
    *(("pooled", each) for each in ("row", "group", "once")),
]
"""Who calls the handler, and what the task is; the first ones are of the first tier."""


@pytest.fixture
def stage(bench: Bench) -> Iterator[Bench]:
    """The workbench, where what runs write may fail when it ends."""
    with triggers(bench):
        yield bench


@pytest.mark.parametrize(("lane", "circumstance"), few(2, SETS))
def test_effects_stand_if_and_only_if_the_outcome_does(
    stage: Bench, lane: str, circumstance: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By whatever way they are written, and wherever the end fails."""
    trial = Trial(stage, Setting(lane, circumstance))
    trial.create(cases())

    assert trial.faults(caplog) == []


@pytest.mark.parametrize("lose", ["lose_request", "lose_reply_to"])
@pytest.mark.parametrize(
    ("lane", "circumstance"),
    few(1, [(lane, each) for each in ("row", "once") for lane in ("plain", "async", "pooled")]),
)
def test_a_commit_without_an_answer_stands_or_is_given_back(
    stage: Bench, lane: str, circumstance: str, lose: str
) -> None:
    """It is charged to nobody, and never settled without its effects."""
    trial = Trial(stage, Setting(lane, circumstance, took_place=lose == "lose_reply_to"))
    url = make_url(stage.url)
    ways = [*WAYS[2:], "write"]  # what shares a round trip is sent when all have been called
    with FaultProxy((url.host or "", url.port or 0), only=b"INTO effect") as proxy:
        trial.actor.at_answer = lambda: getattr(proxy, lose)(b"COMMIT\0")
        trial.create([Case(way, at) for way in ways for at in ("nowhere", "answer", "nowhere")])
        trial.run(url=url.set(port=proxy.port).render_as_string(hide_password=False))
        assert proxy.lost == len(ways)

    assert trial.differences() == []
    trial.run_what_is_left()
    assert trial.differences(at_last=True) == []
    assert trial.in_two_transactions() == []


OF_THE_KIT = ["nowhere", "cancelled", "handler", "late write"]
"""Where a drain in the test's transaction is like a worker; it has no COMMIT, and no rivals."""


def test_the_testing_kit_ends_runs_as_a_worker_does(stage: Bench) -> None:
    registry = Registry()
    with (
        stage.engine.connect() as connection,
        connection.begin(),
        Session(connection, join_transaction_mode="create_savepoint") as session,
    ):

        def aside(query: str, task_id: int) -> Any:
            return None if query == SEEN else connection.execute(text(query), {"id": task_id})

        handler("t", registry=registry, retry="1h")(Actor(aside, stage.runs).plain)
        table = [*cases(names=OF_THE_KIT), Case("session", "commit()"), Case("write", "COMMIT")]
        ids = create_tasks(session, [NewTask("t", {"case": list(case)}) for case in table])

        drain(session, registry=registry)

        found = differences(connection, dict(zip(ids, table, strict=True)), stage.runs, Setting())
        connection.rollback()
    assert found == []
