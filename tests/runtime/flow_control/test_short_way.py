"""A child claims behind gates the short way, as long as that finds something."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from uuid import uuid4

import pytest

from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tests.factory import claimer
from tests.runtime.bench import Bench
from tests.statements import watched

SHORT, LONG = "WITH keyed AS MATERIALIZED", "SELECT kind, target, most"
"""What locks by ids, and what reads the limits to judge by them."""


@pytest.fixture
def database(bench: Bench) -> Iterator[Database]:
    database = Database(bench.url)
    yield database
    database.dispose()


def claimed(control: AdmissionControl, ids: list[int], most: int | None = None) -> list[int]:
    return [task.task_id for task in control.claim(ids, claimer(), uuid4(), most)]


def test_tasks_that_share_no_key_are_not_judged_one_by_one(
    bench: Bench, database: Database
) -> None:
    ids = [bench.create(order_key=f"k{n}") for n in range(5)]

    with watched(database.engine, LONG) as judged:
        assert claimed(AdmissionControl(database), ids) == ids

    assert judged == []


def test_of_few_those_of_the_best_priority_go_first(bench: Bench, database: Database) -> None:
    later, first = (bench.create(order_key=f"k{n}", priority=9 - n) for n in range(2))

    assert claimed(AdmissionControl(database), [later, first], 1) == [first]


def test_what_a_message_leaves_behind_keeps_nobody_from_the_short_way(
    bench: Bench, database: Database
) -> None:
    control = AdmissionControl(database)
    for n in range(2):
        clear, head, held = (bench.create(order_key=key) for key in (f"c{n}", f"k{n}", f"k{n}"))

        with watched(database.engine, SHORT) as tries:
            assert claimed(control, [clear, head, held]) == [clear]
            assert claimed(control, [head, held]) == [head]

        assert len(tries) == 2


def test_where_nothing_is_ever_clear_the_short_way_is_tried_now_and_then(
    bench: Bench, database: Database
) -> None:
    control = AdmissionControl(database)

    def heads() -> None:
        key = str(uuid4())
        head, held = (bench.create(order_key=key) for _ in range(2))
        assert claimed(control, [head, held]) == [head]

    heads()
    assert control.hindered_until == 0.0
    heads()
    assert control.hindered_until > 0.0

    control.hindered_until = inf
    with watched(database.engine, SHORT) as tries:
        heads()
    assert tries == []

    control.hindered_until = 0.0
    assert claimed(control, [bench.create(order_key="other")])
