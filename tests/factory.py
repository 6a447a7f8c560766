"""One builder per record, so that a test says only what matters to it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus
from sqlalchemy import Connection, Engine, make_url, text

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.flow_control.limits import WaitingKind, WaitingReason
from tasks_app.domain.tasks.records import TaskId, TaskRow
from tasks_app.domain.tasks.run import ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.claim import Claimer, claim
from tasks_app.pool.runs.settle_success import is_fence_lost, success_statement
from tasks_app.pool.tasks.create import create_one

R = TypeVar("R")
LEASE = timedelta(seconds=30)


def do(engine: Engine, act: Callable[..., R], *arguments: Any, **options: Any) -> R:
    """Call a function with a connection, and commit."""
    with engine.begin() as connection:
        return act(connection, *arguments, **options)


def run_sql(engine: Engine, statement: str, **values: Any) -> Any:
    """Execute and commit; return the first column of the first row if there is one."""
    with engine.begin() as connection:
        result = connection.execute(text(statement), values)
        return result.scalar() if result.returns_rows else None


def rows_of(engine: Engine, statement: str, **values: Any) -> list[Any]:
    """Execute and commit; return tuples."""
    with engine.begin() as connection:
        return [tuple(row) for row in connection.execute(text(statement), values)]


def plain_url(url: str) -> str:
    """Return it for psycopg."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def some(found: R | None) -> R:
    """It is there."""
    assert found is not None
    return found


def unknown(name: str) -> WaitingReason:
    """Return a reason to be parked."""
    return WaitingReason(WaitingKind.HANDLER, name)


def a_row(name: str = "t", payload: Any = None, **options: Any) -> TaskRow:
    return validate_task(NewTask(name, payload, options), None, 65536)  # type: ignore[arg-type]


def as_json(value: Any) -> Any:
    """What JSON makes of it: tuples are lists."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def pending_task(
    connection: Connection, name: str = "t", payload: dict[str, Any] | None = None, **options: Any
) -> TaskId:
    """Insert a task as create_task would; columns without an option are set by hand after it."""
    now = options.pop("now", None)
    known = {k: v for k, v in options.items() if k not in ("crashes", "failures", "at_most_once")}
    columns = {k: v for k, v in options.items() if k not in known}
    row = a_row(name, payload, **known)
    task_id = create_one(connection, row, now=now)
    if columns:
        columns.setdefault("attempt", max(columns.get("crashes", 0), columns.get("failures", 0)))
        sets = ", ".join(f"{name} = :{name}" for name in columns)
        connection.execute(
            text(f"UPDATE task_pending SET {sets} WHERE id = :id"), {**columns, "id": task_id}
        )
    return task_id


def on_terms(row: TaskRow, **changes: Any) -> TaskRow:
    """Return the row on other terms, past admission."""
    return row._replace(terms=row.terms._replace(**changes))


def claimer(
    *names: str,
    owner: str = "w1",
    max_attempts: int = 3,
    at_most_once: bool = False,
    lease: timedelta = LEASE,
) -> Claimer:
    """A child that knows these names, each with the same policy."""
    names = names or ("t",)
    number = len(names)
    return Claimer(owner, lease, names, (max_attempts,) * number, (at_most_once,) * number)


def claimed_task(connection: Connection, task_id: int | None = None, **options: Any) -> ClaimedTask:
    """A RUNNING task, made and claimed."""
    owner = options.pop("owner", "w1")
    name = options.pop("name", "t")
    now = options.pop("now", None)
    policy = {k: options.pop(k) for k in ("lease", "max_attempts") if k in options}
    if task_id is None:
        task_id = pending_task(connection, name, now=now, **options)
    (task,) = claim(connection, [task_id], claimer(name, owner=owner, **policy), uuid4(), now=now)
    return task


def ending(task: ClaimedTask, event: Event = Event.SUCCEED, **changes: Any) -> Settlement:
    """What is to become of a run, with its counters as they are unless the test says otherwise."""
    settlement = Settlement(task.fence, event, task.failures, task.retry_level)
    return settlement._replace(**changes)


def succeed(connection: Connection, settlement: Settlement) -> bool:
    """Say the last word of a run in the transaction that is open; False: the fence is lost."""
    word, driver = success_statement(settlement), connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    answer = driver.pgconn.exec_params(word.sql, word.values, word.types)
    if answer.status != ExecStatus.FATAL_ERROR:
        return True
    error = errors.error_from_result(answer)
    if is_fence_lost(error):
        return False
    raise error


def row_of(connection: Connection, task_id: int, table: str = "task_pending") -> Any:
    """The row as the database has it, or None."""
    return connection.execute(
        text(f"SELECT * FROM {table} WHERE id = :id"), {"id": task_id}
    ).one_or_none()


def count(connection: Connection, table: str = "task_all") -> int:
    """How many rows a table holds."""
    return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()


def pool_of_task(connection: Connection, task_id: int) -> str | None:
    """The pools in which the id lies, joined by commas; None: nowhere."""
    pools = connection.execute(
        text("SELECT string_agg(pool || ' ' || state, ', ') FROM task_all WHERE id = :id"),
        {"id": task_id},
    ).scalar()
    return None if pools is None else str(pools)


def tables(connection: Connection) -> set[str]:
    query = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE tablename LIKE 'task%'"
    return set(connection.exec_driver_sql(query.replace("%", "%%")).scalars())


_OF_US = "'ALTER ROLE CURRENT_USER IN DATABASE ' || quote_ident(current_database())"
IN_BERLIN = f"DO $$BEGIN EXECUTE {_OF_US} || $q$ SET TimeZone = 'Europe/Berlin'$q$; END$$"
AS_BEFORE = f"DO $$BEGIN EXECUTE {_OF_US} || ' RESET TimeZone'; END$$"
"""In this database alone: others share the role on a server that is given."""
