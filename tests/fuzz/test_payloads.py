"""Generated payloads: each is refused at create with its path, or read back equal in bulk."""

from __future__ import annotations

import random
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from tasks_app import create_task
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.payload import decode
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.tasks import browse
from tests.factory import as_json, claimer
from tests.fuzz.oddities import Oddities

BATCH = 500


@pytest.mark.test_all
def test_each_payload_is_refused_with_its_path_or_read_back_equal_among_hundreds(
    engine: Engine, dice: random.Random, count: int
) -> None:
    oddities = Oddities(dice)
    made: dict[int, Any] = {}
    refused = 0
    for begin in range(0, count, BATCH):
        with engine.begin() as connection:
            for _ in range(min(BATCH, count - begin)):
                payload, good = oddities.payload()
                try:
                    task_id = create_task(connection, "t", payload)
                except InvalidTaskError as refusal:
                    named = refusal.path.startswith("payload")
                    assert named and not good, refusal  # noqa: PT017, PT018  both ways are good
                    refused += 1
                else:
                    assert good, payload
                    made[int(task_id)] = as_json(payload)

    with engine.begin() as connection:
        announced = [i for found in find_due(connection, {"default": count}) for i in found.ids]
        assert sorted(announced) == sorted(made)
        for begin in range(0, len(announced), BATCH):
            ids = sorted(announced[begin : begin + BATCH])
            listed = browse.find_tasks(connection, name="t", before=ids[-1] + 1, most=len(ids))
            shown = {task.id: task.payload for task in listed}
            taken = claim(connection, ids, claimer(), uuid4())
            assert {t.task_id for t in taken} == set(ids)
            for task in taken:
                expected = made[task.task_id]
                assert decode(task.payload or "", "payload") == expected
                assert shown[task.task_id] == expected
        connection.rollback()
    assert len(made) + refused == count
    assert min(len(made), refused) > count / 5
    print(f"{count} payloads: {len(made)} read back equal, {refused} refused with their path")
