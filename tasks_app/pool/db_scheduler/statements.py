"""The allow-list of the database: each statement as a branch that executes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from tasks_app.domain.config.retention import HistoryLevel
from tasks_app.domain.handlers.sql_statement import SqlStatement
from tasks_app.pool.connection.listening import driver_of
from tasks_app.pool.db_scheduler.upkeep import literal

QUOTES = "$tasks_app$"
"""What the function is between that holds all statements."""
_COUNTED = ("delete", "insert", "merge", "select", "update", "with")


@dataclass(frozen=True, slots=True)
class SqlTask:
    """A statement of the allow-list, and how its failures are judged."""

    name: str
    queue: str
    statement: SqlStatement
    max_attempts: int
    at_most_once: bool
    waits: tuple[float, ...]
    """Seconds at most by the level; the last one repeats."""
    least: float
    most: float
    """The share of it that is waited lies between these."""
    history: HistoryLevel | None = None
    """None: as the queue of each task says."""


class UnfitStatementError(Exception):
    """PostgreSQL cannot read a statement, or a function cannot hold it; says why."""


def checked(tasks: Sequence[SqlTask]) -> str:
    """Return what refuses a payload that has not exactly the parameters."""
    keys = {task.name: sorted(task.statement.names) for task in tasks}
    return f"""IF ARRAY(SELECT k FROM jsonb_object_keys(v_task.payload) AS k ORDER BY k COLLATE "C")
                <> ARRAY(SELECT k FROM jsonb_array_elements_text(
                    {literal(json.dumps(keys))}::jsonb -> v_task.name) AS k ORDER BY k COLLATE "C")
            THEN
                RAISE EXCEPTION USING ERRCODE = 'TA001',
                    MESSAGE = 'The payload must have the parameters of the statement and no others';
            END IF;"""


def call(connection: Connection, task: SqlTask) -> str:
    """Return the branch that executes its statement, with values beside it, never in it.

    Raises:
        UnfitStatementError: it cannot be read, or would end the function that holds it.
    """
    if QUOTES in task.name + task.statement.text:
        raise UnfitStatementError(f"{task.name}: it holds {QUOTES}")
    marks = {name: f"${number}" for number, name in enumerate(task.statement.names, 1)}
    statement = task.statement.text % marks
    types = _types(connection, task.name, statement)
    values = [
        f"CAST(v_task.payload ->> {literal(name)} AS {kind})"
        for name, kind in zip(marks, types, strict=True)
    ]
    using = f" USING {', '.join(values)}" if values else ""
    first = statement.split(None, 1)[0].lower()
    told = "GET DIAGNOSTICS v_rows = ROW_COUNT;" if first in _COUNTED else ""
    return f"""            WHEN {literal(task.name)} THEN
                EXECUTE {literal(statement)}{using}; {told}"""


def _types(connection: Connection, name: str, statement: str) -> list[str]:
    """Return the types that PostgreSQL asks for in the places of the parameters."""
    server = driver_of(connection).pgconn
    connection.exec_driver_sql("SAVEPOINT tasks_app_reads")
    try:
        said = server.prepare(b"", statement.encode())
        if said.status != 1:  # PGRES_COMMAND_OK
            text = said.error_message.decode("utf-8", "replace").partition("\n")[0]
            raise UnfitStatementError(f"{name}: {text.partition(':')[2].strip()}")  # no ERROR
        found = server.describe_prepared(b"")
        oids = [found.param_type(number) for number in range(found.nparams)]
    finally:
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT tasks_app_reads")
    return [
        str(connection.exec_driver_sql("SELECT format_type(%s, -1)", (oid,)).scalar_one())
        for oid in oids
    ]
