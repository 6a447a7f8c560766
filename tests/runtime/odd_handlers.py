"""What handlers do to their connection that no handler should, one function each.

Each counts the rows that stand if its run succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from psycopg import Error as DriverError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

WRITE = "INSERT INTO effect VALUES (:id, '')"
DRIVER_WRITE = "INSERT INTO effect VALUES (%s, '')"


@dataclass
class Run:
    """One run, as its handler knows it."""

    ctx: Any
    kept: list[tuple[Any, Callable[[], Any]]]
    """What runs, by their contexts, kept of their connections."""
    rows: int = 0
    stale_writes: list[int] = field(default_factory=list)

    @property
    def values(self) -> dict[str, int]:
        return {"id": self.ctx.task_id}

    @property
    def driver(self) -> Any:
        return self.ctx.connection.connection.driver_connection


Odd = Callable[[Run], None]


def write(run: Run) -> None:
    run.ctx.session.execute(text(WRITE), run.values)
    run.rows += 1


def write_by_connection(run: Run) -> None:
    run.ctx.connection.execute(text(WRITE), run.values)
    run.rows += 1


def write_by_driver(run: Run) -> None:
    run.driver.execute(DRIVER_WRITE, (run.ctx.task_id,))
    run.rows += 1


def write_many_by_driver(run: Run) -> None:
    run.driver.cursor().executemany(DRIVER_WRITE, [(run.ctx.task_id,)] * 3)
    run.rows += 3


def copy(run: Run) -> None:
    with run.ctx.connection.connection.cursor().copy("COPY effect FROM STDIN") as rows:
        rows.write_row((run.ctx.task_id, ""))
    run.rows += 1


def block(run: Run) -> None:
    with run.driver.transaction():
        write_by_driver(run)


def pipeline(run: Run) -> None:
    with run.driver.pipeline():
        write_by_driver(run)


def server_cursor(run: Run) -> None:
    with run.driver.cursor("odd") as cursor:
        cursor.execute("SELECT generate_series(1, 5)").fetchone()


def savepoint(run: Run) -> None:
    with run.ctx.session.begin_nested():
        write(run)


def lost_savepoint(run: Run) -> None:
    nested = run.ctx.session.begin_nested()
    run.ctx.session.execute(text(WRITE), run.values)
    nested.rollback()


def open_savepoint(run: Run) -> None:
    run.ctx.connection.begin_nested()
    write_by_connection(run)


def roll_back(run: Run) -> None:
    run.ctx.session.rollback()
    run.rows = 0


def roll_back_by_driver(run: Run) -> None:
    if run.ctx.connection.in_nested_transaction():
        return  # SQLAlchemy would release a savepoint that is gone, and the run would fail
    run.driver.rollback()
    run.rows = 0


def error_in_savepoint(run: Run) -> None:
    with suppress(DBAPIError), run.ctx.session.begin_nested():
        run.ctx.session.execute(text("SELECT 1 / 0"))


def refused_session_commit(run: Run) -> None:
    with suppress(RuntimeError):
        run.ctx.session.commit()


def set_in_session(run: Run) -> None:
    run.ctx.session.execute(text("SET app.tenant = 'seven'"))


def set_local(run: Run) -> None:
    run.ctx.session.execute(text("SET LOCAL statement_timeout = '9min'"))


def set_by_driver(run: Run) -> None:
    run.driver.execute("SELECT set_config('app.tenant', 'seven', false)")


def set_role(run: Run) -> None:
    write(run)
    run.ctx.session.execute(text("SET ROLE pg_monitor"))


def set_path(run: Run) -> None:
    run.ctx.connection.execute(text("SET LOCAL search_path TO public, pg_temp"))


def listen(run: Run) -> None:
    run.driver.execute("LISTEN odd")


def advisory_lock(run: Run) -> None:
    run.ctx.session.execute(text("SELECT pg_advisory_lock(:id)"), run.values)


def temp_table(run: Run) -> None:
    run.ctx.session.execute(text("CREATE TEMP TABLE odd (i int)"))


def prepare(run: Run) -> None:
    run.driver.execute("PREPARE odd AS SELECT 1")


def hold_cursor(run: Run) -> None:
    run.driver.execute("DECLARE held CURSOR WITH HOLD FOR SELECT 1")


def deferred_row(run: Run) -> None:
    run.ctx.session.execute(text("INSERT INTO odd_late VALUES (:id)"), run.values)


def keep(run: Run) -> None:
    connection, driver = run.ctx.connection, run.driver
    cursor, session = driver.cursor(), run.ctx.session
    for late in (
        lambda: connection.execute(text(WRITE), {"id": -1}),
        lambda: driver.execute(DRIVER_WRITE, (-1,)),
        lambda: cursor.execute(DRIVER_WRITE, (-1,)),
        lambda: session.execute(text(WRITE), {"id": -1}),
    ):
        run.kept.append((run.ctx, late))


def use_kept(run: Run) -> None:
    for ctx, late in run.kept:
        if not ctx._over:
            continue  # in its own run, or in another thread's, it may
        try:
            late()
        except Exception:
            continue
        run.stale_writes.append(ctx.task_id)


HARMLESS: list[Odd] = [
    *(write, write_by_connection, write_by_driver, write_many_by_driver, copy, block, pipeline),
    *(server_cursor, savepoint, lost_savepoint, open_savepoint, roll_back, roll_back_by_driver),
    *(error_in_savepoint, refused_session_commit, set_in_session, set_local, set_by_driver),
    *(set_role, set_path, listen, advisory_lock, temp_table, prepare, hold_cursor, deferred_row),
    use_kept,
]
"""After these a run succeeds."""


def error(run: Run) -> None:
    run.ctx.session.execute(text("SELECT 1 / 0"))


def swallowed_error(run: Run) -> None:
    with suppress(DBAPIError):
        error(run)


def swallowed_error_by_driver(run: Run) -> None:
    with suppress(DriverError):
        run.driver.execute("SELECT 1 / 0")


def commit(run: Run) -> None:
    run.ctx.connection.execute(text("COMMIT"))


def swallowed_commit(run: Run) -> None:
    with suppress(RuntimeError):
        run.ctx.connection.commit()


def swallowed_commit_by_driver(run: Run) -> None:
    with suppress(RuntimeError):
        run.driver.commit()


def autocommit(run: Run) -> None:
    run.driver.autocommit = True


def two_phases(run: Run) -> None:
    run.driver.tpc_begin(run.driver.xid(1, "odd", "odd"))


def close(run: Run) -> None:
    write_by_connection(run)
    run.ctx.connection.close()


def close_driver(run: Run) -> None:
    run.driver.close()


def broken_deferred_rows(run: Run) -> None:
    deferred_row(run)
    deferred_row(run)


def raises(run: Run) -> None:
    write(run)
    raise ValueError(run.ctx.task_id)


FAILING: list[Odd] = [
    *(error, swallowed_error, swallowed_error_by_driver, commit, swallowed_commit),
    *(swallowed_commit_by_driver, autocommit, two_phases, close, close_driver),
    *(broken_deferred_rows, raises),
]
"""After one of these it fails, charged, and nothing stands."""


def hidden_commit(run: Run) -> None:
    write(run)
    run.ctx.session.execute(text("SELECT $$a;b$$; COMMIT"))


def hidden_commit_and_begin(run: Run) -> None:
    write(run)
    run.driver.execute("SELECT $$a;b$$; COMMIT; BEGIN")


ENDING: list[Odd] = [hidden_commit, hidden_commit_and_begin]
"""After one of these it fails, and what it had written may stand."""


def die(run: Run) -> None:
    write(run)
    run.ctx.session.execute(text("RESET ROLE"))  # of pg_monitor's this would be refused
    run.ctx.session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))


def swallowed_death(run: Run) -> None:
    with suppress(DBAPIError):
        die(run)


LOSING: list[Odd] = [die, swallowed_death]
"""After one of these nothing stands, and nobody is charged."""
