"""Kept steps in real processes that are killed: effects once, no call after its commit."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tasks_app import NewTask, create_tasks
from tests.clock import until
from tests.edge.gated_runs import Workers

pytestmark = pytest.mark.timeout(3600, method="thread")

TASKS = int(os.environ.get("STEP_TASKS", "20"))
TABLE = """
    DROP TABLE IF EXISTS step_effect;
    CREATE TABLE step_effect (task_id bigint, name text, late boolean NOT NULL DEFAULT false);
"""
STEPS = ["a", "b", "c"]
MOMENTS = [
    *(f"{when} b" for when in ("before", "function", "commit", "behind")),
    *("commit nap", "behind nap", "commit end"),
]


@pytest.fixture
def workers(engine: Engine, database_url: str, tmp_path: Path) -> Iterator[Workers]:
    with engine.begin() as connection:
        connection.execute(text(TABLE))
    gang = Workers(database_url, tmp_path, 2, threads=2, imports="step_handlers")
    yield gang
    gang.stop()


def created(engine: Engine, tasks: list[NewTask]) -> list[int]:
    with engine.begin() as connection:
        return [int(task_id) for task_id in create_tasks(connection, tasks)]


def end(engine: Engine, ids: list[int]) -> None:
    """Wait until all have succeeded."""
    query = text("SELECT count(*) FROM task_completed WHERE id = ANY(:ids) AND state = 'SUCCEEDED'")

    def is_over() -> bool:
        with engine.connect() as connection:
            return connection.execute(query, {"ids": ids}).scalar_one() == len(ids)

    until(is_over, 1800)


def check(engine: Engine, workers: Workers, ids: list[int], steps: list[str]) -> dict[str, int]:
    """Check the effects inside and the calls outside; return the number of calls of each step."""
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT task_id, name, late FROM step_effect")).all()
    assert sorted(tuple(row) for row in rows) == sorted(
        (task_id, name, False) for task_id in ids for name in [*steps, "end"]
    )
    keys: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in workers.log.read_text().splitlines():
        task_id, name, key = line.split(" ")
        keys[task_id, name].append(key)
    assert all(len(set(each)) == 1 for each in keys.values())
    assert (
        len(keys) == len({key for each in keys.values() for key in each}) == len(ids) * len(steps)
    )
    return {f"{task_id} {name}": len(each) for (task_id, name), each in keys.items()}


def test_a_process_dies_at_each_moment(engine: Engine, workers: Workers) -> None:
    names = ["step.plain", "step.async"]
    tasks = [NewTask(n, {"steps": STEPS, "dies": m}) for n in names for m in MOMENTS]
    ids = created(engine, tasks)
    end(engine, ids)

    calls = check(engine, workers, ids, STEPS)

    died = [
        path for path in workers.log.parent.iterdir() if path.suffix.removeprefix(".").isdigit()
    ]
    assert len(died) == len(tasks)
    for task_id, moment in zip(ids, MOMENTS * 2, strict=True):
        again = moment in {"function b", "commit b"}
        # Others die with it, between a call and its commit, too; never behind the commit.
        assert calls[f"{task_id} b"] >= (2 if again else 1)


def test_steps_are_right_whoever_is_killed(engine: Engine, workers: Workers) -> None:
    steps = [f"s{n}" for n in range(20)]
    names = ["step.plain", "step.async"]
    ids = created(engine, [NewTask(names[n % 2], {"steps": steps}) for n in range(TASKS)])

    def effects() -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM step_effect")).scalar_one())

    with workers.kills(every=40, progress=effects):
        end(engine, ids)

    check(engine, workers, ids, steps)
    assert workers.killed
