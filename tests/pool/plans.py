"""What a statement of ours really does in the database: its plan, run and counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from sqlalchemy import Connection, event

POOLS = ("task_pending", "task_completed", "task_error", "task_attempt", "task_group")
_VALUE = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of a statement."""

    whole: tuple[str, ...]
    """Pools that it read from end to end."""
    rows: int
    """Rows that its steps passed on or threw away, all steps together."""
    buffers: int
    """Pages that it looked at."""
    indexes: frozenset[str]
    nodes: tuple[str, ...]
    """Each way in which it reads or writes a pool, with the index or the table."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as a verb sends it, prepared once and run whenever asked."""

    name: str
    values: dict[str, Any]

    def run(self, connection: Connection) -> Plan:
        """Run it for good, and count."""
        values = sql.SQL(", ").join([sql.Literal(value) for value in self.values.values()])
        arguments = sql.SQL("({})").format(values) if self.values else sql.SQL("")
        query = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {}{}").format(
            sql.Identifier(self.name), arguments
        )
        ((plan,),) = connection.connection.driver_connection.execute(query).fetchall()
        return _read(plan[0]["Plan"])


def prepared(connection: Connection, name: str, verb: Callable[[Connection], Any]) -> Statement:
    """Prepare what ``verb`` sends, with a plan that knows no values; undo what it did."""
    with _heard(connection) as sent, connection.begin_nested() as savepoint:
        verb(connection)
        savepoint.rollback()
    ((statement, values),) = [each for each in sent if "task_" in each[0]]
    used = dict.fromkeys(_VALUE.findall(statement))
    places = {name: f"${place}" for place, name in enumerate(used, 1)}
    text = _VALUE.sub(lambda match: places[match[1]], statement).replace("%%", "%")
    connection.connection.driver_connection.execute(f"PREPARE {name} AS {text}".encode())
    return Statement(name, {name: values[name] for name in used})


def sent_by(connection: Connection, verb: Callable[[Connection], Any]) -> str:
    """Return the one statement on tasks that ``verb`` sends; undo what it did."""
    with _heard(connection) as sent, connection.begin_nested() as savepoint:
        verb(connection)
        savepoint.rollback()
    ((statement, _),) = [each for each in sent if "task_" in each[0]]
    return statement


@contextmanager
def _heard(connection: Connection) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    sent: list[tuple[str, dict[str, Any]]] = []

    def hear(_connection: Any, _cursor: Any, statement: str, values: Any, *_more: Any) -> None:
        sent.append((statement, values))

    event.listen(connection, "before_cursor_execute", hear)
    try:
        yield sent
    finally:
        event.remove(connection, "before_cursor_execute", hear)


def _read(root: dict[str, Any]) -> Plan:
    steps = list(_steps(root))
    return Plan(
        whole=tuple(
            step["Relation Name"]
            for step in steps
            if step["Node Type"] == "Seq Scan"
            and step["Actual Loops"]
            and step["Relation Name"].startswith(POOLS)
        ),
        rows=round(sum(map(_rows, steps))),
        buffers=root["Shared Hit Blocks"] + root["Shared Read Blocks"],
        indexes=frozenset(s["Index Name"] for s in steps if s.get("Index Name")),
        nodes=tuple(sorted({node for node in map(_node, steps) if node})),
    )


def _steps(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _steps(child)


def _node(step: dict[str, Any]) -> str | None:
    """Of tables that hold a row for each task; others have a few rows, or none."""
    table = step.get("Relation Name", step.get("Index Name", ""))
    if not table.startswith(POOLS):
        return None
    how = step["Operation"] if step["Node Type"] == "ModifyTable" else step["Node Type"]
    return f"{how} {step.get('Index Name', table)}"


def _rows(step: dict[str, Any]) -> float:
    thrown = sum(step.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Join Filter"))
    return float((step["Actual Rows"] + thrown) * step["Actual Loops"])
