"""The page about the tables names the columns that the database has, in its order."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Connection, text

from tests.docs.reading import first_column, section, text_of

PAGE = text_of("docs/schema.md")
SHARED = first_column(section(PAGE, "What a task is"))
LAST = first_column(section(PAGE, "The last columns of all three"))
NEWEST = first_column(section(PAGE, "The newest column of all three"))
ENDED = first_column(section(PAGE, "task_completed and task_error"))
COLUMNS = {
    "task_pending": SHARED
    + first_column(section(PAGE, "task_pending"))
    + LAST
    + first_column(section(PAGE, "The pending pool's own"))
    + NEWEST,
    "task_completed": SHARED + ENDED + LAST + NEWEST,
    "task_error": SHARED + ENDED + LAST + NEWEST,
    "task_attempt": first_column(section(PAGE, "task_attempt")),
    "task_dispatch": first_column(section(PAGE, "task_dispatch")),
    "task_worker": first_column(section(PAGE, "task_worker")),
    "task_lease": first_column(section(PAGE, "task_lease")),
    "task_breaker": first_column(section(PAGE, "task_breaker\n")),
    "task_breaker_count": first_column(section(PAGE, "task_breaker_count")),
    "task_breaker_held": first_column(section(PAGE, "task_breaker_held")),
    "task_queue": first_column(section(PAGE, "task_queue\n")),
    "task_queue_window": first_column(section(PAGE, "task_queue_window")),
    "task_calendar": first_column(section(PAGE, "task_calendar")),
    "task_queue_pause": first_column(section(PAGE, "task_queue_pause")),
    "task_pace": first_column(section(PAGE, "task_pace")),
    "task_schedule": first_column(section(PAGE, "task_schedule\n")),
    "task_schedule_fire": first_column(section(PAGE, "task_schedule_fire")),
    "task_schedules": first_column(section(PAGE, "task_schedules")),
    "task_audit": first_column(section(PAGE, "task_audit")),
    "task_queue_fair": first_column(section(PAGE, "task_queue_fair")),
    "task_partition": first_column(section(PAGE, "task_partition\n")),
    "task_partition_value": first_column(section(PAGE, "task_partition_value")),
    "task_partitions": first_column(section(PAGE, "task_partitions")),
    "task_marker": first_column(section(PAGE, "task_marker")),
    "task_key": first_column(section(PAGE, "task_key")),
    "task_lock": first_column(section(PAGE, "task_lock\n")),
    "task_lock_holder": first_column(section(PAGE, "task_lock_holder")),
    "task_lock_part": first_column(section(PAGE, "task_lock_part")),
    "task_lock_wait": first_column(section(PAGE, "task_lock_wait")),
    "task_locks": first_column(section(PAGE, "task_locks\n")),
    "task_lock_report": first_column(section(PAGE, "task_lock_report")),
    "task_limit": first_column(section(PAGE, "task_limit")),
    "task_gate": first_column(section(PAGE, "task_gate")),
    "task_group": first_column(section(PAGE, "task_group\n")),
    "task_group_ids": first_column(section(PAGE, "task_group_ids")),
    "task_progress": first_column(section(PAGE, "task_progress")),
    "task_batch": first_column(section(PAGE, "task_batch\n")),
    "task_batch_step": first_column(section(PAGE, "task_batch_step")),
    "task_batch_skip": first_column(section(PAGE, "task_batch_skip")),
    "task_all": first_column(section(PAGE, "task_all")),
}
_COLUMNS = text("""
    SELECT column_name FROM information_schema.columns
    WHERE table_schema = current_schema AND table_name = :table ORDER BY ordinal_position
""")
_TABLES = text("""
    SELECT c.relname FROM pg_class c WHERE c.relnamespace = CAST(current_schema AS regnamespace)
      AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition AND c.relname LIKE 'task\\_%'
""")


@pytest.mark.parametrize("table", COLUMNS)
def test_columns(connection: Connection, table: str) -> None:
    assert COLUMNS[table] == connection.execute(_COLUMNS, {"table": table}).scalars().all()


def test_no_table_is_left_out(connection: Connection) -> None:
    assert set(connection.execute(_TABLES).scalars()) == set(COLUMNS)


def test_the_arguments_of_task_create(connection: Connection) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([a-z ]+) \|", section(PAGE, "task_create\n"), re.MULTILINE)

    signature = connection.execute(
        text("SELECT pg_get_function_identity_arguments('task_create'::regproc)")
    ).scalar_one()

    assert [f"{name} {kind}" for name, kind in rows] == signature.split(", ")


def test_indexes_are_named_by_their_columns(connection: Connection) -> None:
    """`lease_until` stands in none: what a running task writes would cost an index entry each."""
    definitions = connection.execute(
        text("SELECT indexdef FROM pg_indexes WHERE tablename = 'task_pending'")
    ).scalars()

    assert not [d for d in definitions if "lease_until" in d]
