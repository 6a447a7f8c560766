"""Databases that are full or old, and what PostgreSQL plans on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import Connection, Engine, event, text

from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.retention import DayPartition, add_partition, missing_partitions, partitions
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.schema import migrate
from tasks_app.runtime.db.database import Database
from tests.factory import claimed_task, ending
from tests.servers import Databases

Verb = Callable[[Connection, int], Any]
"""Does its work for so many rows."""


@dataclass(frozen=True, slots=True)
class Plan:
    whole: tuple[str, ...]
    """Pools that it read from end to end."""
    rows: int
    """Rows that its steps passed on or threw away, all steps together."""
    buffers: int
    """Pages that it looked at."""
    indexes: frozenset[str]
    nodes: tuple[str, ...]
    """Each way in which it reads or writes a pool, with the index or the table."""


Ask = Callable[[str], Plan]
"""Carries out what a verb of that name sends, and takes it back."""
NEVER, EMPTY, FRESH = "never", "while empty", "fresh"
statistics = pytest.mark.parametrize("ask", [NEVER, EMPTY, FRESH], indirect=True)
"""When ANALYZE ran; statements are always prepared while the pool is empty."""


@contextmanager
def bare_database(databases: Databases, name: str, fill: str) -> Iterator[Database]:
    """Yield a database of its own, migrated and empty, in which nobody gathers statistics."""
    database = Database(databases.create(name))
    with database.begin() as connection:
        migrate(connection)
    with database.begin() as connection:
        missing = missing_partitions(connection)
    for day in missing:
        with database.begin() as connection:
            add_partition(connection, day)
    with database.engine.connect() as connection:  # rolled back, as a pool whose tasks are all done
        connection.connection.driver_connection.execute(fill)
    yield database
    database.dispose()
    databases.drop(name)


@contextmanager
def filled(
    database: Database, when: str, verbs: Mapping[str, tuple[Verb, int]], fill: str
) -> Iterator[Ask]:
    """Fill the pool once for all verbs, each of which is asked with so many rows."""
    with database.engine.connect() as connection:
        # psycopg drops all that is prepared behind a ROLLBACK, if something of its own is among it.
        connection.connection.driver_connection.prepare_threshold = None
        for setting in ("lock_timeout = '30s'", "idle_in_transaction_session_timeout = 0"):
            connection.exec_driver_sql(f"SET LOCAL {setting}")  # ANALYZE may meet autovacuum
        if when == EMPTY:
            connection.exec_driver_sql("ANALYZE")
        statements = {
            name: prepared(connection, f"ours_{place}", _of(verb, number))
            for place, (name, (verb, number)) in enumerate(verbs.items())
        }
        connection.connection.driver_connection.execute(fill)
        if when == FRESH:
            connection.exec_driver_sql("ANALYZE")

        def ask(name: str) -> Plan:
            with connection.begin_nested() as savepoint:
                plan = statements[name].run(connection)
                savepoint.rollback()
            return plan

        try:
            yield ask
        finally:
            connection.invalidate()


def _of(verb: Verb, number: int) -> Callable[[Connection], Any]:
    return lambda connection: verb(connection, number)


DAY = datetime(2020, 5, 6, tzinfo=UTC)
NOON = DAY + timedelta(hours=12)
ONE = timedelta(days=1)
NAME = "task_completed_p20200506"


def old_day(connection: Connection, day: datetime = DAY) -> DayPartition:
    add_partition(connection, day)
    return day_of(connection, f"task_completed_p{day:%Y%m%d}")


def day_of(connection: Connection, name: str = NAME) -> DayPartition:
    """A day as the database has it."""
    (found,) = [day for day in partitions(connection)[0] if day.name == name]
    return found


def finished(connection: Connection, name: str = "t", now: datetime = NOON) -> int:
    """A task that succeeded at its second attempt, and has a line in the history."""
    task = claimed_task(connection, name=name, now=now)
    cause = Cause("E", "m")
    retry = ending(task, Event.RETRY, failures=1, cause=cause)
    settle_one(connection, retry, now=now)
    task = claimed_task(connection, task.task_id, name=name, now=now)
    settle_one(connection, ending(task), now=now)
    return task.task_id


def failed(connection: Connection, name: str = "t", now: datetime = NOON) -> int:
    task = claimed_task(connection, name=name, now=now)
    settle_one(connection, ending(task, Event.FAIL, cause=Cause("E", "m")), now=now)
    return task.task_id


def drop_old_days(engine: Engine) -> None:
    with engine.begin() as connection:
        names = connection.execute(
            text(
                "SELECT relname FROM pg_class"
                " WHERE relkind = 'r' AND relname ~ '^task_completed_p(19|20[012][0-5])'"
            )
        )
        for name in names.scalars().all():
            if name < "task_completed_p2024":
                connection.execute(text(f"DROP TABLE IF EXISTS {name}"))


POOLS = ("task_pending", "task_completed", "task_error", "task_attempt", "task_group")
_VALUE = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, slots=True)
class Statement:
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
