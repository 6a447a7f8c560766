"""The list of columns that may hold a user's value is whole, and says what is so."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from tasks_app.pool.operations.encrypted_values import PLACES
from tasks_app.pool.operations.erase import USER_VALUES
from tasks_app.pool.tasks import transfer
from tests.factory import pending_task

NO_VALUES = """
pending,completed,error  name queue state retry owner
pending          parked_kind
alert            advice opened_to closed_to
alert_look       holder
attempt          event owner
audit            action
batch            job status
batch_skip       step
batch_step       step status
breaker          dependency names state mode
breaker_count,breaker_held  dependency
calendar         name
count,total      name queue
count_part       slot name queue
fingerprint      fingerprint
group            outcome
key              name scope
large_value      kind
lease            name holder notes
limit            kind changed_by
lock_part,lock_wait  mode
lock_wait        outcome
marker           program_id state
pace             name
partition        program_id step kind key_type key_column view_name status
partition_value  program_id
queue            queue shut retry
queue_fair       queue changed_by
queue_pause      queue
queue_window     queue zone calendar
schedule         name task queue kind expression zone missed overlap last_outcome
schedule         declared_in changed_by
schedule_fire    outcome
transition       event from_state to_state owner
worker           owner node queues handlers
"""
"""Columns of names of code and of queues, and of words of ours."""
COLUMNS = text("""
    SELECT c.relname || '.' || a.attname FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
    WHERE c.relnamespace = CAST(current_schema AS regnamespace) AND c.relkind IN ('r', 'p')
      AND NOT c.relispartition AND c.relname LIKE 'task\\_%'
      AND NOT (t.typcategory IN ('N', 'B', 'D', 'T') OR t.typname IN ('uuid', '_int8', '_int2',
        '_date'))
""")
"""Those of a type that could hold a text: neither a number, a truth, an instant nor a list."""


def unlisted(connection: Connection) -> set[str]:
    words = {
        f"task_{table}.{column}"
        for tables, *columns in map(str.split, NO_VALUES.strip().splitlines())
        for table in tables.split(",")
        for column in columns
    }
    listed = {value.name for value in USER_VALUES}
    assert not words & listed
    assert len(listed) == len(USER_VALUES)
    return set(connection.execute(COLUMNS).scalars()) ^ (words | listed)


def test_every_column_of_the_schema_is_listed(connection: Connection) -> None:
    assert unlisted(connection) == set()


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("ALTER TABLE task_pending ADD COLUMN colour text", {"task_pending.colour"}),
        ("ALTER TABLE task_group ADD COLUMN colours jsonb", {"task_group.colours"}),
        ("CREATE TABLE task_colour (id int, name bytea)", {"task_colour.name"}),
    ],
)
def test_a_new_one_is_missed(connection: Connection, change: str, missing: set[str]) -> None:
    connection.exec_driver_sql(change)

    assert unlisted(connection) == missing


def test_it_says_what_is_encrypted(connection: Connection) -> None:
    places = {place.name.partition(" ")[0] for place in PLACES}

    assert {value.name for value in USER_VALUES if value.encrypted} == places


def test_it_says_what_is_exported(connection: Connection) -> None:
    (row,) = transfer.export_rows(connection, [pending_task(connection)])
    of_pending = {value.column for value in USER_VALUES if value.table == "task_pending"}

    exported = {value.name for value in USER_VALUES if value.exported}
    assert exported == {f"task_pending.{column}" for column in of_pending & set(row._mapping)}
