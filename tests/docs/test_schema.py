"""Every table and column says what it is, and the page about them says the same."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Connection, text

from dev.documents import schema
from tests.docs.reading import first_column, section, text_of

PAGE = text_of("docs/schema.md")
FUNCTIONS = {"task_create", "task_pool", "task_group_extend", "task_notify"}
_TABLES = text("""
    SELECT c.relname FROM pg_class c WHERE c.relnamespace = CAST(current_schema AS regnamespace)
      AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition AND c.relname LIKE 'task%'
""")


def test_every_table_and_column_has_a_comment(connection: Connection) -> None:
    assert schema.uncommented(connection) == []


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("ALTER TABLE task_pending ADD COLUMN colour text", ["task_pending.colour"]),
        ("CREATE TABLE task_colour (name text)", ["task_colour", "task_colour.name"]),
        ("COMMENT ON VIEW task_all IS NULL", ["task_all"]),
    ],
)
def test_one_without_is_named(connection: Connection, change: str, missing: list[str]) -> None:
    connection.exec_driver_sql(change)

    assert schema.uncommented(connection) == missing


def test_the_page_is_the_one_that_the_database_writes(connection: Connection) -> None:
    assert schema.page(connection) == PAGE, "run: make docs"


def test_a_comment_that_changes_makes_the_page_stale(connection: Connection) -> None:
    connection.exec_driver_sql("COMMENT ON COLUMN task_pending.name IS 'something else'")

    assert schema.page(connection) != PAGE


def test_no_table_is_left_out(connection: Connection) -> None:
    shown = set(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)) - FUNCTIONS

    assert set(connection.execute(_TABLES).scalars()) == shown


def test_the_arguments_of_task_create(connection: Connection) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([a-z\[\] ]+) \|", section(PAGE, "task_create\n"), re.MULTILINE
    )

    signature = connection.execute(
        text("SELECT pg_get_function_identity_arguments('task_create'::regproc)")
    ).scalar_one()

    assert [f"{name} {kind}" for name, kind in rows] == signature.split(", ")
    assert set(schema.ARGUMENTS) <= set(first_column(section(PAGE, "task_create\n")))


def test_indexes_are_named_by_their_columns(connection: Connection) -> None:
    """`lease_until` stands in none: what a running task writes would cost an index entry each."""
    definitions = connection.execute(
        text("SELECT indexdef FROM pg_indexes WHERE tablename = 'task_pending'")
    ).scalars()

    assert not [d for d in definitions if "lease_until" in d]
