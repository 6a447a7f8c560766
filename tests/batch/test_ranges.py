"""Planners of ranges and hashes, on any keys: every row has exactly one owner."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from tasks_app.batch.planners import Planner
from tasks_app.batch.planners.even import Even, How
from tasks_app.batch.planners.hashed import Hash
from tasks_app.domain.partition.keys import KeyType
from tests.batch.ownership import COLUMNS, ROWS, fill, make_table, owners, some_keys

PLANNERS = (
    Even(parts=4),
    Even(rows=3),
    Even(parts=2, over=3, how=How.SAMPLE),
    Hash(parts=4),
    Hash(rows=2, over=2),
)
whole = settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.mark.test_all
@pytest.mark.parametrize("key_type", COLUMNS)
@given(data=st.data())
@whole
def test_every_row_has_one_owner_now_and_later(
    connection: Connection, key_type: KeyType, data: st.DataObject
) -> None:
    make_table(connection, COLUMNS[key_type])
    keys = data.draw(some_keys(key_type))
    fill(connection, COLUMNS[key_type], keys)
    planner: Planner = data.draw(st.sampled_from(PLANNERS))

    plan = planner.plan(connection, ROWS)

    assert owners(connection, ROWS, plan) == [1] * len(keys)
    later = [key for key in data.draw(some_keys(key_type)) if key is not None]
    fill(connection, COLUMNS[key_type], later)
    assert owners(connection, ROWS, plan) == [1] * len(later)


@pytest.mark.parametrize("kind", ["smallint", "integer", "varchar(9)", "char(9)"])
@pytest.mark.parametrize("planner", PLANNERS)
def test_types_beside_those(connection: Connection, kind: str, planner: Planner) -> None:
    make_table(connection, kind)
    fill(connection, kind, ["3", "1", None, "2", "1", "7"])

    assert owners(connection, ROWS, planner.plan(connection, ROWS)) == [1] * 6
