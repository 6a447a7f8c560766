"""A stranger with a SQL prompt: illegal rows are refused, the doors that are meant for him work."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from tasks_app.locks import Locks
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.tasks.browse import get
from tests.factory import claimed_task, claimer, count, pending_task, pool_of_task, row_of
from tests.pool.interleave import blocked, two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUNNING = {
    "state": "'RUNNING'",
    "lease_token": "gen_random_uuid()",
    "lease_until": "now()",
    "owner": "'me'",
    "started_at": "now()",
    "max_attempts": "3",
    "at_most_once": "false",
    "attempt": "1",
}


def insert(connection: Connection, table: str = "task_pending", **columns: str) -> int:
    columns = {"name": "'t'", **columns}
    names, values = ", ".join(columns), ", ".join(columns.values())
    return connection.execute(
        text(f"INSERT INTO {table} ({names}) VALUES ({values}) RETURNING id".replace(":", r"\:"))
    ).scalar_one()


ILLEGAL = [
    ("names_are_valid", {"name": "''"}),
    ("names_are_valid", {"name": "'9lives'"}),
    ("names_are_valid", {"name": "'a b'"}),
    ("names_are_valid", {"name": "E'a\\n'"}),
    ("names_are_valid", {"name": "repeat('x', 256)"}),
    ("name", {"name": "NULL"}),
    ("names_are_valid", {"queue": "''"}),
    ("names_are_valid", {"queue": "'a:b'"}),
    ("names_are_valid", {"queue": "repeat('x', 101)"}),
    ("numbers_are_sane", {"priority": "-1"}),
    ("numbers_are_sane", {"priority": "10"}),
    ("payload_and_headers_are_objects", {"payload": "'[]'"}),
    ("payload_and_headers_are_objects", {"payload": "'null'"}),
    ("payload_and_headers_are_objects", {"payload": "'7'"}),
    ("payload", {"payload": "NULL"}),
    (
        "payload_and_headers_are_objects",
        {
            "payload": "(SELECT jsonb_build_object('x', jsonb_agg(md5(n::text)))"
            " FROM generate_series(1, 400000) n)"
        },
    ),
    ("payload_and_headers_are_objects", {"headers": "'[]'"}),
    ("payload_and_headers_are_objects", {"headers": "'null'"}),
    ("state_has_its_columns", {"state": "'SUCCEEDED'"}),
    ("state_has_its_columns", {"state": "'DISPATCHED'"}),
    ("state_has_its_columns", {"state": "'pending'"}),
    ("state_has_its_columns", {"state": "'RUNNING'"}),
    *[
        ("state_has_its_columns", {**RUNNING, column: "NULL"})
        for column in RUNNING
        if column not in ("state", "attempt")
    ],
    ("state_has_its_columns", {"lease_token": "gen_random_uuid()"}),
    ("state_has_its_columns", {"lease_until": "now()"}),
    ("state_has_its_columns", {"owner": "'me'"}),
    ("state_has_its_columns", {"cancel_requested_at": "now()"}),
    ("moments_are_readable", {"due_at": "now() + interval '1s'"}),
    ("moments_are_readable", {"scan_at": "now() - interval '1 day'"}),
    ("numbers_are_sane", {"attempt": "-1"}),
    ("numbers_are_sane", {"failures": "1"}),
    ("numbers_are_sane", {"failures": "-1"}),
    ("numbers_are_sane", {"crashes": "1"}),
    ("numbers_are_sane", {"retry_level": "-1"}),
    ("numbers_are_sane", {"max_attempts": "0"}),
    ("numbers_are_sane", {"timeout_ms": "0"}),
    ("numbers_are_sane", {"hard_timeout_ms": "-5"}),
    ("numbers_are_sane", {"weight": "0"}),
    ("keys_are_valid", {"order_key": "''"}),
    ("keys_are_valid", {"order_key": "repeat('x', 256)"}),
    ("keys_are_valid", {"limit_key": "''"}),
    ("keys_are_valid", {"limit_key": "repeat('x', 256)"}),
    ("more_limit_keys_are_valid", {"more_limit_keys": "'{a}'"}),
    ("more_limit_keys_are_valid", {"limit_key": "'k'", "more_limit_keys": "'{}'"}),
    ("more_limit_keys_are_valid", {"limit_key": "'k'", "more_limit_keys": "ARRAY['a', '']"}),
    ("more_limit_keys_are_valid", {"limit_key": "'k'", "more_limit_keys": "ARRAY['a', NULL]"}),
    ("more_limit_keys_are_valid", {"limit_key": "'k'", "more_limit_keys": "'{a,b,c,d,e,f,g,h}'"}),
    ("more_limit_keys_are_valid", {"limit_key": "'k'", "more_limit_keys": "'{{a,b},{c,d}}'"}),
    *[
        ("locks_are_valid", {"locks": f"'{locks}'"})
        for locks in (
            *('"r"', '["r"]', "null", '{"other": ["r"]}', '{"exclusive": "r"}', '{"shared": [7]}'),
            *('{"shared": [""]}', '{"counted": ["r"]}', '{"counted": {"r": 0}}'),
            *('{"counted": {"r": 1.5}}', '{"counted": {"": 1}}', '{"handler": 1}'),
        )
    ],
    ("moments_are_readable", {"due_at": "'-infinity'", "scan_at": "now()"}),
    ("moments_are_readable", {"due_at": "'-infinity'", "scan_at": "'-infinity'"}),
    ("moments_are_readable", {"due_at": "'infinity'", "scan_at": "'infinity'"}),
    ("moments_are_readable", {"scan_at": "'infinity'"}),
    ("moments_are_readable", {"due_at": "'0044-03-15 BC'", "scan_at": "now()"}),
    ("moments_are_readable", {"created_at": "'-infinity'"}),
    ("moments_are_readable", {"expires_at": "'infinity'"}),
    ("moments_are_readable", {**RUNNING, "started_at": "'-infinity'"}),
    ("moments_are_readable", {**RUNNING, "lease_until": "'infinity'"}),
    ("moments_are_readable", {**RUNNING, "cancel_requested_at": "'infinity'"}),
    ("keys_are_valid", {"unique_key": "''"}),
    ("keys_are_valid", {"unique_key": "repeat('x', 256)"}),
    ("keys_are_valid", {"biz_key": "''"}),
    ("keys_are_valid", {"biz_key": "repeat('x', 256)"}),
    ("keys_are_valid", {"fair_key": "''"}),
    ("keys_are_valid", {"biz_key": "'b'", "unique_key": "'u'", "fair_key": "repeat('x', 256)"}),
    ("numbers_are_sane", {"outages": "0"}),
    ("numbers_are_sane", {"attempt": "1", "failures": "0", "crashes": "2"}),
    ("moments_are_readable", {"outage_since": "'infinity'"}),
    ("names_are_valid", {"name": "'a'", "queue": "'a b'"}),
]


@pytest.mark.parametrize(
    ("constraint", "columns"),
    ILLEGAL,
    ids=[f"{n}-{constraint}" for n, (constraint, _) in enumerate(ILLEGAL)],
)
def test_a_constraint_refuses_an_illegal_row(
    connection: Connection, constraint: str, columns
) -> None:
    with pytest.raises(IntegrityError, match=constraint):
        insert(connection, **columns)


def test_a_legal_running_row_is_accepted(connection: Connection) -> None:
    assert insert(connection, **RUNNING)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "FAILED", "DONE"])
def test_the_completed_pool_takes_only_its_own_states(connection: Connection, state: str) -> None:
    with pytest.raises(IntegrityError, match="state_is_completed"):
        insert(connection, "task_completed", id="1", state=f"'{state}'")


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUCCEEDED", "CANCELLED"])
def test_the_error_pool_takes_only_its_own_state(connection: Connection, state: str) -> None:
    with pytest.raises(IntegrityError, match="state_is_failed"):
        insert(connection, "task_error", id="1", state=f"'{state}'")


def test_an_id_lies_in_the_pending_pool_once(connection: Connection) -> None:
    task_id = pending_task(connection)
    with pytest.raises(IntegrityError, match="task_pending_pkey"):
        insert(connection, id=str(int(task_id)))


def test_an_update_cannot_make_a_row_running_without_a_lease(connection: Connection) -> None:
    pending_task(connection)
    with pytest.raises(IntegrityError, match="state_has_its_columns"):
        connection.execute(text("UPDATE task_pending SET state = 'RUNNING'"))


def test_a_name_is_all_that_a_raw_insert_needs(connection: Connection) -> None:
    task_id = insert(connection)
    assert [i for found in find_due(connection, {"default": 9}) for i in found.ids] == [task_id]
    task = claimed_task(connection, task_id)
    assert (task.payload, task.fence.attempt) == ("{}", 1)


def test_two_raw_rows_with_one_unique_key_are_refused(connection: Connection) -> None:
    insert(connection, unique_key="'k'")
    with pytest.raises(IntegrityError, match="task_pending_unique_key"):
        insert(connection, unique_key="'k'")


# the door for SQL


def door(connection: Connection, arguments: str) -> int:
    return connection.execute(text(f"SELECT task_create({arguments})")).scalar_one()


def test_the_sql_door_knows_keys(connection: Connection) -> None:
    keys = {"order_key": "account:7", "limit_key": "tenant:1", "fair_key": "tenant:1"}
    task_id = door(connection, "'t', " + ", ".join(f"{k} => '{v}'" for k, v in keys.items()))
    row = row_of(connection, task_id)
    assert {name: getattr(row, name) for name in keys} == keys


def test_the_sql_door_knows_several_limit_keys(connection: Connection) -> None:
    keys = "limit_key => 'bank:acme', more_limit_keys => ARRAY['tenant:7', 'region:\"eu\"']"
    keys += ", weight => 7"
    row = row_of(connection, door(connection, f"'t', {keys}"))
    by_hand = row_of(connection, pending_task(connection, limit_key=["bank:acme", "tenant:7"]))
    assert (row.limit_key, row.more_limit_keys) == ("bank:acme", ["tenant:7", 'region:"eu"'])
    assert (row.weight, by_hand.weight) == (7, None)
    assert (by_hand.limit_key, by_hand.more_limit_keys) == ("bank:acme", ["tenant:7"])


def test_the_sql_door_knows_locks(connection: Connection) -> None:
    locks = {"exclusive": ["account:7"], "shared": ["rates\n"], "counted": {"license": 3}}
    door_id = door(connection, f"'t', locks => '{json.dumps(locks).replace(':', chr(92) + ':')}'")
    of = Locks("account:7", ["rates\n"], {"license": 3})
    assert row_of(connection, door_id).locks == locks
    assert row_of(connection, pending_task(connection, locks=of)).locks == locks


def test_the_sql_door_needs_a_name_only(connection: Connection) -> None:
    task_id = door(connection, "'t'")
    row = row_of(connection, task_id)
    assert (row.state, row.queue, row.priority, row.payload) == ("PENDING", "default", 5, {})
    assert row.due_at == row.scan_at
    assert claimed_task(connection, task_id)


def test_the_sql_door_takes_the_options_of_create_task(connection: Connection) -> None:
    task_id = door(
        connection,
        """'t', '{"a": 1}', queue => 'q', priority => 2, biz_key => 'b', unique_key => 'u',
        run_at => '2026-01-01T12:00:00Z', delay => '5s', max_attempts => 7, retry => 'fixed 5s',
        expires_at => '2026-01-02T12:00:00Z', enabled => false, headers => '{"h": 1}'""".replace(
            ":", r"\:"
        ),
    )

    row = row_of(connection, task_id)
    assert (row.payload, row.queue, row.priority) == ({"a": 1}, "q", 2)
    assert (row.biz_key, row.unique_key, row.headers) == ("b", "u", {"h": 1})
    assert row.due_at == row.scan_at == NOON + timedelta(seconds=5)
    assert (row.max_attempts, row.retry, row.enabled) == (7, "fixed 5s", False)
    assert row.expires_at == NOON + timedelta(days=1)


def test_the_sql_door_gives_the_holder_of_a_unique_key(connection: Connection) -> None:
    first = door(connection, "'t', unique_key => 'k'")
    assert door(connection, "'t', unique_key => 'k'") == first
    assert door(connection, "'other', unique_key => 'k'") != first
    assert count(connection) == 2


def test_the_sql_door_waits_for_a_producer_of_its_key_and_names_its_task(engine: Engine) -> None:
    with two(engine) as (a, b):
        first = pending_task(a, unique_key="k")
        waiting = blocked(engine, b, a, lambda c: door(c, "'t', unique_key => 'k'"))
        a.commit()
        assert waiting.result() == first


@pytest.mark.parametrize(
    ("retry", "attempts"),
    [("5s,30s,1m", 4), ("5s", 2), ("fixed 30s", 3), ("exponential 1s x2 cap 1h", 3)],
)
def test_a_policy_through_the_sql_door_implies_as_many_attempts_as_in_python(
    connection: Connection, retry: str, attempts: int
) -> None:
    by_door = door(connection, f"'t', retry => '{retry}'")
    by_python = pending_task(connection, retry=retry)
    assert row_of(connection, by_door).max_attempts == attempts
    assert row_of(connection, by_python).max_attempts == attempts


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("''", "names_are_valid"),
        ("NULL", "name"),
        ("'t', '[]'", "payload_and_headers_are_objects"),
        ("'t', priority => 11", "numbers_are_sane"),
        ("'t', queue => 'a b'", "names_are_valid"),
        ("'t', max_attempts => 0", "numbers_are_sane"),
        ("'t', run_at => 'infinity'", "moments_are_readable"),
        ("'t', unique_key => ''", "keys_are_valid"),
    ],
)
def test_sql_refuses_as_python_does(connection: Connection, arguments: str, complaint: str) -> None:
    with pytest.raises(DBAPIError, match=complaint):
        door(connection, arguments)


@pytest.mark.parametrize("missing", ["payload", "delay", "run_at", "retry", "headers", "biz_key"])
def test_null_through_the_sql_door_means_not_given(connection: Connection, missing: str) -> None:
    row = row_of(connection, door(connection, f"'t', {missing} => NULL"))
    assert row.payload == {}
    assert row.due_at <= row.created_at + timedelta(seconds=1)


def test_the_sql_door_works_in_a_trigger(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE orders (id int)")
    connection.exec_driver_sql("""
        CREATE FUNCTION grant_points() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM task_create('points.grant', jsonb_build_object('order_id', NEW.id));
            RETURN NEW;
        END $$""")
    connection.exec_driver_sql("""
        CREATE TRIGGER points AFTER INSERT ON orders
        FOR EACH ROW EXECUTE FUNCTION grant_points()""")

    connection.exec_driver_sql("INSERT INTO orders VALUES (1), (2)")

    rows = connection.exec_driver_sql("SELECT name, payload FROM task_pending ORDER BY id").all()
    assert rows == [("points.grant", {"order_id": 1}), ("points.grant", {"order_id": 2})]


# the view for people, and rows written past us


def test_the_view_shows_each_task_once_with_its_pool(connection: Connection) -> None:
    insert(connection, id="1")
    insert(connection, "task_completed", id="2", state="'SUCCEEDED'")
    insert(connection, "task_error", id="3", state="'FAILED'")
    assert [pool_of_task(connection, n) for n in (1, 2, 3, 4)] == [
        "pending PENDING",
        "completed SUCCEEDED",
        "error FAILED",
        None,
    ]


@pytest.mark.parametrize("poison", ['{"x": 1e100000}', '{"a": "' + "x" * 2_000_000 + '"}'])
def test_an_unreadable_payload_past_us_hurts_only_itself(
    connection: Connection, poison: str
) -> None:
    bad = insert(connection)
    connection.execute(text("UPDATE task_pending SET payload = CAST(:p AS jsonb)"), {"p": poison})
    good = pending_task(connection)
    claimed = claim(connection, [bad, good], claimer(), uuid4())
    assert [t.task_id for t in claimed] == [bad, good]
    assert claimed[1].payload == "{}"
    assert get(connection, good) is not None
