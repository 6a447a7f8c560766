"""Flows with real processes that are killed: each step once, none before its needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tasks_app import Flow, create_flow, failed, list_flows, requeue_task
from tasks_app.domain.flows import FlowState
from tests.clock import until
from tests.edge.gated_runs import Workers

pytestmark = pytest.mark.timeout(3600, method="thread")

FLOWS = int(os.environ.get("FLOW_COUNT", "20"))
TABLES = """
    DROP TABLE IF EXISTS flow_effect, flow_broken;
    CREATE TABLE flow_effect (id bigserial, task_id bigint, needed text[]);
    CREATE TABLE flow_broken AS SELECT true AS broken;
"""
DUE = text("SELECT count(*) FROM task_pending WHERE waits_for IS NULL")
EARLY = text("""
    SELECT count(*) FROM task_flow_need n
    JOIN task_flow_step s USING (flow_id, step) JOIN flow_effect e ON e.task_id = s.task_id
    JOIN task_flow_step k ON (k.flow_id, k.step) = (n.flow_id, n.needs)
    WHERE k.task_name = 'flow.step' AND n.after = 'success' AND k.ended = 'success'
      AND NOT EXISTS (SELECT FROM flow_effect b WHERE b.task_id = k.task_id AND b.id < e.id)
""")
"""Effects that were written before those of steps that they need."""
TWICE = text("SELECT count(*) - count(DISTINCT task_id) FROM flow_effect")
WHOLE = text("SELECT count(*) FROM flow_effect WHERE array_length(needed, 2) = :items")
"""Steps behind a map that had the results of all of its items."""


@pytest.fixture
def workers(engine: Engine, database_url: str, tmp_path: Path) -> Iterator[Workers]:
    with engine.begin() as connection:
        connection.execute(text(TABLES))
    gang = Workers(database_url, tmp_path, 4, threads=2, imports="flow_handlers")
    yield gang
    gang.stop()


def twenty_steps(*, fails: bool) -> Flow:
    """Diamonds behind each other, every second step without effects, and a branch for a failure."""
    flow = Flow("twenty")

    def step(name: str, *needs: str, **more: bool) -> None:
        task = "flow.plain" if name.startswith("plain") else "flow.step"
        flow.step(name, task, {"name": name, **more}, needs=needs)

    step("first")
    before = "first"
    for n in range(4):
        step(f"plain{n}", before)
        step(f"left{n}", before)
        step(f"right{n}", before, fails=fails and n == 2)
        before = f"join{n}"
        step(before, f"plain{n}", f"left{n}", f"right{n}")
    step("any", *(f"join{n}" for n in range(4)))
    flow.step("sorry", "flow.step", {"name": "sorry"}, needs=failed("right2"))
    flow.step("end", "flow.step", {"name": "end"}, needs=["any", "join0"])
    return flow


def effects_of(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM flow_effect")).scalar_one())


def nothing_is_due(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(DUE).scalar_one() == 0)


ITEMS = 60


def test_maps_are_right_whoever_is_killed(engine: Engine, workers: Workers) -> None:
    for _ in range(FLOWS // 4):
        flow = Flow("mapped")
        listed = flow.step("all", "flow.list", {"items": ITEMS})
        each = flow.map("each", "flow.step", over=listed)
        flow.step("end", "flow.step", {"name": "end"}, needs=each)
        with engine.begin() as connection:
            create_flow(connection, flow)
    with workers.kills(every=40, progress=partial(effects_of, engine)):
        until(partial(nothing_is_due, engine), 3000)
    with engine.connect() as connection:
        states = [flow.state for flow in list_flows(connection)]
        twice = connection.execute(TWICE).scalar_one()
        whole = connection.execute(WHOLE, {"items": ITEMS}).scalar_one()
    assert states == [FlowState.SUCCEEDED] * (FLOWS // 4)
    assert (effects_of(engine), twice, whole) == (len(states) * (ITEMS + 1), 0, len(states))
    assert workers.killed


def test_flows_are_right_whoever_is_killed(engine: Engine, workers: Workers) -> None:
    made = {}
    for number in range(FLOWS):
        with engine.begin() as connection:
            made[number] = create_flow(connection, twenty_steps(fails=number % 5 == 0))

    effects, is_idle = partial(effects_of, engine), partial(nothing_is_due, engine)
    with workers.kills(every=40, progress=effects):
        until(is_idle, 3000)
        with engine.begin() as connection:
            stalled = list_flows(connection, state=FlowState.STALLED, limit=FLOWS)
            assert len(stalled) == (FLOWS + 4) // 5
            connection.execute(text("DELETE FROM flow_broken"))
            for number in range(0, FLOWS, 5):
                requeue_task(connection, made[number].task_ids["right2"])
        until(is_idle, 3000)

    with engine.connect() as connection:
        found = list_flows(connection, limit=2 * FLOWS)
        early = connection.execute(EARLY).scalar_one()
        twice = connection.execute(TWICE).scalar_one()
    assert [flow.state for flow in found] == [FlowState.SUCCEEDED] * FLOWS
    # Of twenty, four leave no row; `sorry` runs where `right2` failed at first.
    assert effects() == 15 * FLOWS + (FLOWS + 4) // 5
    assert (early, twice) == (0, 0)
    assert workers.killed
