"""Every table and column says what it is, and the page about them shows it."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Connection, text

from dev.documents import schema
from tests.docs.reading import PROJECT, first_column, lost_links, section

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


def test_links_of_the_page_lead_somewhere(connection: Connection) -> None:
    assert lost_links(PROJECT / "docs/reference/schema.md", schema.page(connection)) == []


def test_no_table_is_left_out(connection: Connection) -> None:
    shown = set(re.findall(r"^## (\w+)$", schema.page(connection), re.MULTILINE)) - FUNCTIONS

    assert set(connection.execute(_TABLES).scalars()) == shown


def test_the_arguments_of_task_create(connection: Connection) -> None:
    shown = section(schema.page(connection), "task_create\n")
    rows = re.findall(r"^\| `(\w+)` \| ([a-z\[\] ]+) \|", shown, re.MULTILINE)

    signature = connection.execute(
        text("SELECT pg_get_function_identity_arguments('task_create'::regproc)")
    ).scalar_one()

    assert [f"{name} {kind}" for name, kind in rows] == signature.split(", ")
    assert set(schema.ARGUMENTS) <= set(first_column(shown))


def test_indexes_are_named_by_their_columns(connection: Connection) -> None:
    """`lease_until` stands in none: what a running task writes would cost an index entry each."""
    definitions = connection.execute(
        text("SELECT indexdef FROM pg_indexes WHERE tablename = 'task_pending'")
    ).scalars()

    assert not [d for d in definitions if "lease_until" in d]
