"""Any JSON-ish value is refused before the INSERT, or comes back equal from PostgreSQL."""

from __future__ import annotations

import json
import os
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.payload import decode
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.tasks.browse import get
from tasks_app.pool.tasks.create import create_many, create_one
from tests.factory import as_json, claimer, count

LIMIT = 64 * 1024
TEXT = st.text(st.characters(exclude_categories=())) | st.sampled_from(
    ["\x00", "\ud800", "\udfff\ud800", "\uffff", "😀", "\\u0000", '"', "\u2028"]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    TEXT,
    st.binary(max_size=3),
    st.decimals(),
    st.datetimes(),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)
PAYLOADS = st.dictionaries(TEXT, VALUES, max_size=4) | VALUES
many = settings(
    max_examples=int(os.environ.get("FUZZ_COUNT", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def typed(value):
    """The value with the type of each number: 1e16 == 10**16."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value), value


def holds_only_json(value, depth: int = 1) -> bool:
    """Our own reading of DESIGN section 8, written apart from the product's."""
    if isinstance(value, dict | list | tuple) and depth > 32:
        return False
    if isinstance(value, dict):
        keys = all(isinstance(k, str) and holds_only_json(k) for k in value)
        return keys and all(holds_only_json(item, depth + 1) for item in value.values())
    if isinstance(value, list | tuple):
        return all(holds_only_json(item, depth + 1) for item in value)
    if isinstance(value, str):
        return "\x00" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, float) and value - value == 0


@pytest.mark.test_all
@pytest.mark.parametrize("make", ["one", "many"])
@many
@given(payload=PAYLOADS)
@example(payload={"x": 1e23})
@example(payload={"x": -1.2345678901234567e18})
@example(payload={"x": 1.7976931348623157e308, "y": 5e-324})
@example(payload={"x": -0.0})
@example(payload={"x": 2**63})
@example(payload={"x": -(2**63)})
@example(payload={"x": float("nan")})
@example(payload={"x": "\ud800"})
@example(payload={"\x00": 1})
@example(payload={"": {"": ""}})
@example(payload={"x": "y" * 65_529})
@example(payload={"x": "y" * 65_528})
def test_a_payload_is_refused_with_no_row_written_or_read_back_equal(
    connection: Connection, make: str, payload
) -> None:
    before = count(connection, "task_pending")
    good = payload is None or (isinstance(payload, dict) and holds_only_json(payload))
    try:
        row = validate_task(NewTask("t", payload), None, LIMIT)
    except InvalidTaskError as refused:
        too_long = good and len(json.dumps(payload, ensure_ascii=False).encode()) > LIMIT
        assert not good or too_long, refused  # noqa: PT017  both ways are good, each for its own
        assert count(connection, "task_pending") == before
        return

    assert good
    task_id = create_one(connection, row) if make == "one" else create_many(connection, [row])[0]

    expected = as_json(payload or {})
    (task,) = claim(connection, [task_id], claimer(), uuid4())
    stored = get(connection, task_id)
    assert typed(decode(task.payload or "", "payload")) == typed(expected)
    assert stored is not None
    assert typed(stored.payload) == typed(expected)


@pytest.mark.parametrize("depth", [31, 32, 33, 200])
def test_a_payload_of_up_to_32_levels_is_stored_and_a_deeper_one_refused(
    connection: Connection, depth: int
) -> None:
    payload: dict = {"leaf": 1}
    for _ in range(depth - 1):
        payload = {"x": payload}

    if depth > 32:
        with pytest.raises(InvalidTaskError, match="nested deeper than 32"):
            validate_task(NewTask("t", payload), None, LIMIT)
    else:
        task_id = create_one(connection, validate_task(NewTask("t", payload), None, LIMIT))
        stored = get(connection, task_id)
        assert stored is not None
        assert stored.payload == payload


def test_a_payload_of_a_whole_mebibyte_is_stored_where_the_limit_allows_it(
    connection: Connection,
) -> None:
    payload = {"x": "é" * (2**19 - 5)}
    task_id = create_one(connection, validate_task(NewTask("t", payload), None, 2**20))

    stored = get(connection, task_id)
    assert stored is not None
    assert stored.payload == payload


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_one_bad_task_of_a_batch_is_refused_before_any_is_written(
    connection: Connection, bad: int
) -> None:
    new = [NewTask("t", {"n": float("nan") if n == bad else n}) for n in range(3)]

    with pytest.raises(InvalidTaskError):
        create_many(connection, [validate_task(task, None, LIMIT) for task in new])

    assert count(connection) == 0
