"""Lists of tasks, their payloads, an index."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event, text

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.payload import decode
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import release
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.browse import count_tasks, failed_attempts, find_tasks, get
from tasks_app.pool.tasks.create import create_many, create_one
from tests.docs.reading import text_of
from tests.factory import as_json, claimed_task, claimer, count, ending, pending_task
from tests.pool.interleave import two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=1)


def finished(connection: Connection, event: Event = Event.SUCCEED, **options) -> int:
    task = claimed_task(connection, now=NOON, **options)
    changes = {"cause": Cause("E", "no")} if event is Event.FAIL else {"result": '{"n": 1}'}
    settle_one(connection, ending(task, event, run_ms=5, **changes), now=LATER)
    return task.task_id


def test_a_pending_task_shows_what_it_is(connection: Connection) -> None:
    task_id = pending_task(
        connection, payload={"a": 1}, headers={"h": 2}, biz_key="b", unique_key="u", now=NOON
    )
    task = get(connection, task_id)
    assert task is not None
    assert (task.id, task.pool, task.state) == (task_id, "pending", State.PENDING)
    assert (task.payload, task.headers) == ({"a": 1}, {"h": 2})
    assert (task.biz_key, task.unique_key, task.due_at) == ("b", "u", NOON)
    assert (task.finished_at, task.result, task.error, task.run_ms) == (None,) * 4


def test_a_running_task_shows_who_runs_it(connection: Connection) -> None:
    task = get(connection, claimed_task(connection, owner="me", now=NOON).task_id)
    assert task is not None
    assert (task.state, task.owner, task.started_at) == (State.RUNNING, "me", NOON)
    assert task.lease_until == NOON + timedelta(seconds=30)


def test_a_finished_task_shows_how_it_ended(connection: Connection) -> None:
    good = get(connection, finished(connection))
    bad = get(connection, finished(connection, Event.FAIL))
    assert good is not None
    assert bad is not None
    assert (good.pool, good.state, good.result) == ("completed", State.SUCCEEDED, {"n": 1})
    assert (bad.pool, bad.state, bad.error) == ("error", State.FAILED, "E: no")
    assert good.finished_at == bad.finished_at == LATER
    assert good.run_ms == bad.run_ms == 5


def test_a_task_that_never_was_is_none(connection: Connection) -> None:
    assert get(connection, 10**15) is None


def test_found_tasks_come_newest_first_and_page_by_page(connection: Connection) -> None:
    ids = [pending_task(connection), finished(connection), finished(connection, Event.FAIL)]
    first = find_tasks(connection, most=2)
    second = find_tasks(connection, most=2, before=first[-1].id)
    assert [t.id for t in first] == [ids[2], ids[1]]
    assert [t.id for t in second] == [ids[0]]


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["c", "b", "a"]),
        ({"name": "a"}, ["a"]),
        ({"queue": "q"}, ["b"]),
        ({"biz_key": "k"}, ["c"]),
        ({"pool": "error"}, ["c"]),
        ({"state": "SUCCEEDED"}, ["b"]),
        ({"pool": "pending", "state": "PENDING"}, ["a"]),
        ({"pool": "pending", "biz_key": "k"}, []),
    ],
)
def test_filters_narrow_what_is_found(connection: Connection, filters, names) -> None:
    pending_task(connection, "a")
    finished(connection, name="b", queue="q")
    finished(connection, Event.FAIL, name="c", biz_key="k")
    assert [t.name for t in find_tasks(connection, **filters)] == names


@pytest.mark.parametrize(
    "payload",
    ['{"x": 1e100000}', '{"x": ' + "[" * 5000 + "]" * 5000 + "}"],
    ids=["number", "nesting"],
)
def test_an_unreadable_payload_hides_only_itself(connection: Connection, payload: str) -> None:
    connection.execute(
        text("INSERT INTO task_pending (name, payload) VALUES ('bad', CAST(:p AS jsonb))"),
        {"p": payload},
    )
    pending_task(connection, "good", {"a": 1})
    assert {t.name: t.payload for t in find_tasks(connection)} == {"bad": None, "good": {"a": 1}}


def test_the_history_comes_oldest_first(connection: Connection) -> None:
    task = claimed_task(connection, now=NOON)
    settle_one(connection, ending(task, Event.RETRY, cause=Cause("A", "1")), now=NOON)
    task = claimed_task(connection, task.task_id, now=NOON)
    release(connection, [task.fence], now=NOON)
    task = claimed_task(connection, task.task_id, now=NOON)
    settle_one(connection, ending(task, Event.FAIL, cause=Cause("B", "2", "tb")), now=LATER)

    assert [(a.attempt, a.event, a.kind) for a in failed_attempts(connection, task.task_id)] == [
        (1, "retry", "A"),
        (3, "fail", "B"),
    ]
    assert failed_attempts(connection, 10**15) == []


def test_tasks_are_counted_by_name_queue_and_state(connection: Connection) -> None:
    pending_task(connection, "a", run_at=NOON)
    pending_task(connection, "a", run_at=NOON + timedelta(seconds=5))
    pending_task(connection, "a", queue="q", run_at=LATER + timedelta(seconds=1))
    finished(connection, name="a")
    finished(connection, Event.FAIL, name="b")

    counts = [
        (c.name, c.queue, c.state, c.number, c.oldest_due_at)
        for c in count_tasks(connection, now=LATER)
    ]

    assert counts == [
        ("a", "default", "PENDING", 2, NOON),
        ("a", "default", "SUCCEEDED", 1, None),
        ("a", "q", "PENDING", 1, None),
        ("b", "default", "FAILED", 1, None),
    ]


def test_looking_waits_for_nobody(engine: Engine) -> None:
    with two(engine) as (a, b):
        task = claimed_task(a)
        a.commit()
        settle_one(a, ending(task))
        seen = get(b, task.task_id)
        assert seen is not None
        assert seen.state is State.RUNNING


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
def test_a_payload_of_up_to_32_levels_is_stored_no_more(connection: Connection, depth: int) -> None:
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


def test_a_payload_of_a_mebibyte_is_stored_if_the_limit_allows_it(connection: Connection) -> None:
    payload = {"x": "é" * (2**19 - 5)}
    task_id = create_one(connection, validate_task(NewTask("t", payload), None, 2**20))
    stored = get(connection, task_id)
    assert stored is not None
    assert stored.payload == payload


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_one_bad_task_refuses_its_batch_before_any_write(connection: Connection, bad: int) -> None:
    new = [NewTask("t", {"n": float("nan") if n == bad else n}) for n in range(3)]
    with pytest.raises(InvalidTaskError):
        create_many(connection, [validate_task(task, None, LIMIT) for task in new])
    assert count(connection) == 0


RARE = "waiting for bank"
INDEXES = re.findall(
    r"CREATE INDEX task_\w+_sub_status ON [^;]*", text_of("docs/operations/tracing.md")
)
FILL = text("""
    INSERT INTO task_pending (name, queue, priority, payload, due_at, scan_at, sub_status)
    SELECT 't', 'default', 5, '{}', now(), now(), CASE WHEN n % 5000 = 1 THEN :rare ELSE 'paid' END
    FROM generate_series(1, 20000) AS n
""")


@pytest.fixture
def plan(connection: Connection) -> Any:
    """Ask as ``list --sub-status`` does, and return the plan of that."""

    def ask() -> str:
        sent: list[tuple[Any, Any]] = []

        def hear(_: Any, __: Any, statement: str, values: Any, *___: Any) -> None:
            sent.append((statement, values))

        event.listen(connection, "before_cursor_execute", hear)
        found = browse.find_tasks(connection, sub_status=RARE)
        event.remove(connection, "before_cursor_execute", hear)
        assert len(found) == 4
        ((statement, values),) = sent
        rows = connection.exec_driver_sql(f"EXPLAIN {statement}", values)
        return "\n".join(rows.scalars())

    return ask


@pytest.mark.test_all
def test_a_list_by_sub_status_reads_them(connection: Connection, plan: Any) -> None:
    connection.execute(FILL, {"rare": RARE})
    connection.exec_driver_sql("ANALYZE task_pending")
    before = plan()
    for statement in INDEXES:
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql("ANALYZE task_pending")
    assert len(INDEXES) == 3
    assert "task_pending_sub_status" not in before
    assert "task_pending_sub_status" in plan(), plan()
