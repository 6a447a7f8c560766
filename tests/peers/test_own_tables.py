"""The guide from tables of one's own: its SQL is read from the page, and runs beside old code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app import (
    Fail,
    cancel_task,
    create_schedule,
    create_task,
    disable_schedule,
    fill_fingerprints,
    list_errors,
    list_schedules,
    requeue_task,
)
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.testing import drain, fail_next, travel
from tests.clock import until
from tests.docs.reading import blocks, text_of
from tests.factory import claimed_task, plain_url
from tests.peers.own_tables import ASYNC, AUDIT, OLD, always_fails, write
from tests.peers.shops import Shop
from tests.pool.database import bare_database
from tests.servers import Databases, named

PAGE = text_of("docs/from/own-tables.md")
SQL = dict(
    re.findall(
        r"^-- ((?:common|whole|left|rename|redirect|move|failed)(?: \w+)?)\n(.*?)(?=^-- [a-z]|\Z)",
        "".join(blocks(PAGE, "sql")),
        re.DOTALL | re.MULTILINE,
    )
)
"""What runs, by its name on the page."""
EXAMPLES, SCHEDULES, BACK = blocks(PAGE, "python")
IMPORTS = "from sqlalchemy import text\nfrom tasks_app import TaskContext, handler\n\n"
KEYS = {"notice": "task_no"}
"""The column with the id, where it has another name."""
tables = pytest.mark.parametrize("name", OLD)


@pytest.fixture(scope="module")
def database(databases: Databases) -> Iterator[Database]:
    """One of its own: the guide lets ids begin higher, which no rollback takes back."""
    with bare_database(databases, "own_tables", "SELECT 1") as database:
        yield database


class Move:
    """The guide's steps, on one connection, which may be in a transaction of its own."""

    def __init__(self, name: str, session: Session) -> None:
        self.name, self.old, self.session = name, OLD[name], session
        self.key = KEYS.get(name, "id")
        self.view = "notice_now" if name == "notice" else f"{self.old.table}_now"

    def sql(self, statements: str, *values: Any) -> Any:
        """Send them as psql would; return the first column of the first row, if there is one."""
        raw: Any = self.session.connection().connection.driver_connection
        cursor = raw.execute(statements, values or None)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]

    def run(self, script: str) -> Any:
        return self.sql(SQL[script if script == "common" else f"{script} {self.name}"])

    def named(self, script: str) -> str:
        """A script that the page shows for one table."""
        found = SQL[script].replace("async_task_now", self.view)
        found = re.sub(r"\bid\b(?!')", self.key, found)
        for old, new in (("'async_task'", f"'{self.name}'"), ("async_task", self.old.table)):
            found = found.replace(old, new)
        return found

    def rows(self, query: str) -> list[Any]:
        return [tuple(row) for row in self.session.execute(text(query))]

    def seen(self, columns: str, view: str = "") -> list[Any]:
        return self.rows(f"SELECT {columns} FROM {view or self.view} ORDER BY {self.key}")


@pytest.fixture
def session(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Nothing of it is committed; the handlers of the guide are known."""
    monkeypatch.setattr(HANDLERS, "specs", {})
    exec(compile(IMPORTS + EXAMPLES, "guide", "exec"), {"__name__": "guide"})
    with (
        database.engine.connect() as connection,
        connection.begin(),
        Session(connection, join_transaction_mode="create_savepoint") as session,
    ):
        yield session
        connection.rollback()


def begun(name: str, session: Session) -> Move:
    """The old table, and the guide's functions, view and trigger."""
    move = Move(name, session)
    move.sql(move.old.schema)
    move.run("common")
    move.run("redirect")
    return move


def functions(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {
        "Session": Session, "text": text, "create_schedule": create_schedule,
        "create_task": create_task, "cancel_task": cancel_task,
    }  # fmt: skip
    exec(compile(code, "guide", "exec"), names)
    return names


ENDED = {
    "async_task": "INSERT INTO async_task (id, key_work, biz_id, status)"
    " VALUES (7, 'points.grant', '7', 3), (8, 'points.grant', '8', 0)",
    "notice": "INSERT INTO notice_error (task_no, content, status, retry_times, fail_reason)"
    " VALUES (7, '{}', -1, 3, 'no');"
    "INSERT INTO notice_finished (task_no, content, status) VALUES (8, '{}', 1);"
    "INSERT INTO notice_waiting (task_no, content, skip) VALUES (9, '{}', true)",
    "cron_task": "INSERT INTO cron_task (id, task_name, payload, status, retry_count)"
    " VALUES (7, 'report.write', '{}', 'FAILED', 2), (8, 'report.write', '{}', 'SUCCESS', 0)",
    "delay_task": "INSERT INTO delay_task (id, request_id, current_level, is_finished)"
    " VALUES (7, 7, 10, 0), (8, 8, 1, 1)",
}
"""What was over before the move: row 7 had failed for good, row 8 was done."""
VIEWS = {
    "async_task": (
        "id, status",
        [(1, 0), (2, 1), (3, 3), (5, -1), (6, -2), (7, 3), (8, 0)],
    ),
    "notice": (
        "task_no, pool, status, retry_times, skip",
        [
            (1, "completed", 1, 0, False),
            (2, "pending", -1, 1, False),
            (3, "error", -1, 1, False),
            (5, "pending", 2, 0, False),
            (6, "pending", 0, 0, False),
            (7, "error", -1, 3, False),
            (8, "completed", 1, 0, False),
            (9, "completed", 0, 0, True),
        ],
    ),
    "cron_task": (
        "id, status, retry_count",
        [
            (1, "SUCCESS", 0), (2, "PENDING", 1), (3, "FAILED", 1), (5, "RUNNING", 0),
            (6, "PENDING", 0), (7, "FAILED", 2), (8, "SUCCESS", 0),
        ],
    ),
    "delay_task": (
        "id, current_level, is_finished",
        [(1, 1, 1), (2, 2, 0), (3, 10, 0), (5, 1, 0), (6, 1, 0), (7, 10, 0), (8, 1, 1)],
    ),
}  # fmt: skip
"""Rows 1 to 6: succeeded, retried, failed, cancelled, running, waiting."""


LATER = """
    UPDATE task_pending SET due_at = now() + interval '1h', scan_at = now() + interval '1h'
    WHERE failures > 0"""
"""A retry waits at random up to 5 s; the next drain must not meet it."""


def inserted(move: Move, key: int) -> Any:
    """Write a row as an old producer does; return its task, which is due."""
    move.sql(move.old.insert % {"k": f"'{key}'"})
    task = move.session.execute(text("SELECT id, name FROM task_pending ORDER BY id DESC")).first()
    move.sql("UPDATE task_pending SET due_at = now(), scan_at = now() WHERE attempt = 0")
    return task


@tables
def test_the_view_shows_each_state_as_the_old_table_would(name: str, session: Session) -> None:
    move = begun(name, session)
    for key, error in ((1, None), (2, ConnectionError()), (3, Fail("no"))):
        task = inserted(move, key)
        if error is not None:
            fail_next(task.name, error)
        drain(session)
        move.sql(LATER)
    cancel_task(session, inserted(move, 4).id)
    move.sql(ENDED[name])
    drain(session)
    running = inserted(move, 5)
    claimed_task(session.connection(), running.id, name=running.name)
    inserted(move, 6)

    columns, rows = VIEWS[name]
    assert move.seen(columns) == rows
    assert move.run("failed") == 1
    assert move.seen(columns) == rows


@tables
def test_the_view_has_the_columns_of_the_table(name: str, session: Session) -> None:
    move = begun(name, session)
    old = move.old.table
    columns = """
        SELECT column_name FROM information_schema.columns WHERE table_name = '{}'
        ORDER BY ordinal_position"""
    assert move.rows(columns.format(f"{old}_now")) == move.rows(columns.format(old))
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        move.sql(move.old.insert.replace(old, f"{old}_now") % {"k": "'1'"})


def test_a_business_id_is_found_by_our_index(session: Session) -> None:
    move = begun("async_task", session)
    move.sql("SET LOCAL enable_seqscan = off")
    plan = move.rows("EXPLAIN SELECT * FROM async_task_now WHERE biz_id = '7'")
    read = {index for (line,) in plan for index in re.findall(r" on (task_\w+)", line)}
    by_key = {table for (line,) in plan for table in re.findall(r"biz_key\w* on (task_\w+)", line)}
    assert {"task_pending", "task_completed_default", "task_error"} < read == by_key


@tables
def test_what_waits_goes_there_and_back_as_it_is(name: str, session: Session) -> None:
    move = Move(name, session)
    move.sql(move.old.schema)
    for key in (1, 2, 3):
        move.sql(move.old.insert % {"k": f"'{key}'"})
    move.sql(FAILED_ONCE[name])
    before = move.seen("*", move.old.table)
    move.run("common")
    move.run("redirect")
    assert [move.run("move"), move.run("move")] == [3, 0]
    assert move.seen("*", move.old.table) == []
    go_back = functions(BACK)["go_back"]
    move.sql(f"DROP TRIGGER redirect ON {move.old.table}")
    asked = (session, move.old.table, name, move.key)
    assert [go_back(*asked), go_back(*asked)] == [3, 0]

    assert [same(name, row) for row in move.seen("*", move.old.table)] == [
        same(name, row) for row in before
    ]
    assert move.rows("SELECT DISTINCT state FROM task_all") == [("CANCELLED",)]
    assert move.sql(move.named("whole")) == 3


FAILED_ONCE = {
    "async_task": "UPDATE async_task SET status = 1 WHERE id = 2",
    "notice": "UPDATE notice_waiting SET status = -1, retry_times = 1 WHERE task_no = 2",
    "cron_task": "UPDATE cron_task SET retry_count = 1 WHERE id = 2",
    "delay_task": 'UPDATE delay_task SET current_level = 3, "current_time" = now() WHERE id = 2',
}
CHANGED = {"async_task": {6}, "notice": {7}, "cron_task": {11}, "delay_task": set()}
"""The place of the column that says when a row was changed last."""


def same(name: str, row: tuple[Any, ...]) -> list[Any]:
    kept = [value for place, value in enumerate(row) if place not in CHANGED[name]]
    return [value.strip() if isinstance(value, str) else value for value in kept]


@pytest.mark.parametrize(
    ("level", "retry", "attempts"),
    [
        (1, "30s,1m,10m,30m,1h,6h,1d,2d", 9),
        (8, "2d", 2),
        (9, None, 1),
    ],
)
def test_a_task_goes_on_at_the_level_of_its_row(
    session: Session, level: int, retry: str | None, attempts: int
) -> None:
    move = Move("delay_task", session)
    move.sql(move.old.schema)
    move.sql(f"INSERT INTO delay_task (request_id, current_level) VALUES (7, {level})")
    move.run("common")
    move.run("redirect")
    move.run("move")
    assert move.rows("SELECT retry, max_attempts FROM task_pending") == [(retry, attempts)]
    fail_next("request.send", ConnectionError(), times=attempts)
    travel("5s", session)
    for wait in [*(retry.split(",") if retry else []), ""]:
        drain(session)
        assert move.seen("current_level") == [(level + 1,)]
        level += 1
        if wait:
            travel(wait, session)
    assert move.rows("SELECT state FROM task_all") == [("FAILED",)]


def test_new_code_begins_where_an_old_row_does(session: Session) -> None:
    move = begun("delay_task", session)
    call = re.search(r"`(create_task\(session, \"request\.send\".*?\))`", PAGE)
    assert call
    names = {"create_task": create_task, "session": session, "payload": {"request_id": 3003}}
    exec(call[1], names)
    inserted(move, 1)
    [new], [old] = (
        move.rows(f"SELECT retry, max_attempts, retry_level FROM task_pending WHERE {which}")
        for which in ("headers IS NULL", "headers IS NOT NULL")
    )
    assert (new[1], new[2]) == (9, 1)
    assert (old[1], old[2]) == (9, 0)
    assert new[0] == f"5s,{old[0]}"
    assert move.rows("SELECT current_level FROM delay_task_now") == [(1,), (1,)]


def test_what_new_writers_create_is_in_the_view(session: Session) -> None:
    move = begun("async_task", session)
    inserted(move, 1)
    call = re.search(r"`(create_task\(session, \"points\.grant\".*?\))`", PAGE)
    assert call
    task_id = eval(call[1], {"create_task": create_task, "session": session})
    assert move.seen("id, key_work, biz_id, biz_data, status") == [
        (1, "points.grant", "1", "5", -2),
        (task_id, "points.grant", "A7", "5", -2),
    ]


@tables
def test_what_had_failed_is_requeued_with_the_attempts_of_its_handler(
    name: str, session: Session
) -> None:
    move = begun(name, session)
    move.sql(ENDED[name].replace("'{}'", """'{"document": "7", "about": "7"}'"""))
    move.run("failed")
    [(task_id, error)] = move.rows("SELECT id, error FROM task_error")
    assert error == ("no" if name == "notice" else "failed before the move")
    assert fill_fingerprints(session) == 1
    assert [(group.number, group.error) for group in list_errors(session)] == [(1, error)]
    requeue_task(session, task_id)
    [run] = [run for run in drain(session).runs if run.task_id == task_id]
    assert str(run.state) == "SUCCEEDED"
    assert move.rows(f"SELECT * FROM {move.old.effect}") == [("7",)]
    assert move.rows(f"SELECT max_attempts FROM task_completed WHERE id = {task_id}") == [(3,)]


def test_a_writer_needs_no_right_but_to_insert(session: Session) -> None:
    move = begun("async_task", session)
    role = named("writer")
    move.sql(f"CREATE ROLE {role}; GRANT INSERT, SELECT ON async_task TO {role}")
    move.sql(f"SET ROLE {role}")
    assert move.sql(move.old.insert % {"k": "'1'"}) == 1
    with pytest.raises(errors.InsufficientPrivilege), session.begin_nested():
        move.sql(
            "CREATE TEMP TABLE mine (id int);"
            "CREATE TRIGGER mine AFTER INSERT ON mine FOR EACH ROW"
            " EXECUTE FUNCTION public.move_new_row('id', '1')"
        )
    move.sql("RESET ROLE")
    assert move.rows("SELECT unique_key FROM task_pending") == [("async_task:1",)]


def test_schedules_move_and_no_run_that_is_due_is_lost(session: Session) -> None:
    move = begun("cron_task", session)
    move.sql("""
        INSERT INTO cron_task
            (task_name, cron_expression, payload, status, next_run_time, retry_count)
        SELECT 'report.write', '0 0 1 1 *', '{"about": "the year"}', status, at, tries FROM (VALUES
            ('PENDING', date_trunc('year', now(), 'Europe/Berlin') + interval '1 year', 0),
            ('PENDING', now() - interval '1 minute', 0),
            ('PENDING', now() + interval '1 minute', 2),
            ('RUNNING', now() - interval '1 minute', 0),
            ('FAILED', now() - interval '1 minute', 2)) AS r (status, at, tries)""")
    move_schedules = functions(SCHEDULES)["move_schedules"]
    before = move.sql("SELECT next_run_time FROM cron_task WHERE id = 1")
    assert [move_schedules(session), move_schedules(session)] == [3, 0]

    schedules = [each for each in list_schedules(session) if each.task == "report.write"]
    assert {each.next_run_at for each in schedules} == {before}
    assert move.rows(
        "SELECT headers ->> 'schedule', max_attempts FROM task_pending ORDER BY 1"
    ) == [
        ("report.write.2", 3),
        ("report.write.3", 1),
    ]
    assert move.seen("id, status, cron_expression") == [
        (1, "PENDING", "0 0 1 1 *"),
        (2, "PENDING", "0 0 1 1 *"),
        (3, "PENDING", "0 0 1 1 *"),
        (4, "RUNNING", "0 0 1 1 *"),
        (5, "FAILED", "0 0 1 1 *"),
    ]


@pytest.fixture
def committed(database: Database) -> Iterator[str]:
    """The URL of a database in which the guide's first steps were done for `async_task`."""
    url = plain_url(database.engine.url.render_as_string(hide_password=False))
    with psycopg.connect(url, autocommit=True) as connection:
        for script in (ASYNC.schema, SQL["common"], SQL["redirect async_task"]):
            connection.execute(script)
        yield url
        connection.execute("""
            DROP TABLE async_task, points CASCADE;
            DROP FUNCTION move_rows, move_new_row, into_error_pool CASCADE;
            DELETE FROM task_pending""")


def test_a_row_is_the_old_workers_or_ours(committed: str) -> None:
    move = SQL["move async_task"]
    with psycopg.connect(committed) as worker, psycopg.connect(committed) as mover:
        mover.execute("ALTER TABLE async_task DISABLE TRIGGER redirect")
        for key in ("1", "2"):
            mover.execute(ASYNC.insert, {"k": key})
        mover.execute("ALTER TABLE async_task ENABLE TRIGGER redirect")
        mover.commit()

        mover.execute("SET lock_timeout = '2s'")
        worker.execute("UPDATE async_task SET status = -1 WHERE id = 1 AND status = -2")
        assert mover.execute(move).fetchone() == (1,)  # and does not wait for the first
        worker.execute("SET lock_timeout = '50ms'")
        with pytest.raises(errors.LockNotAvailable), worker.transaction():
            worker.execute("UPDATE async_task SET status = -1 WHERE id = 2 AND status = -2")
        mover.commit()
        late = worker.execute("UPDATE async_task SET status = -1 WHERE id = 2 AND status = -2")
        assert late.rowcount == 0
        worker.commit()
        assert mover.execute(move).fetchone() == (0,)
        tasks = mover.execute("SELECT unique_key FROM task_pending").fetchall()
        assert tasks == [("async_task:2",)]


def test_the_trigger_comes_after_writers_that_were_there_before(committed: str) -> None:
    create = SQL["redirect async_task"][SQL["redirect async_task"].index("CREATE TRIGGER") :]
    with psycopg.connect(committed) as writer, psycopg.connect(committed) as owner:
        owner.execute("DROP TRIGGER redirect ON async_task")
        owner.commit()
        writer.execute(ASYNC.insert, {"k": "1"})
        owner.execute("SET lock_timeout = '50ms'")
        with pytest.raises(errors.LockNotAvailable), owner.transaction():
            owner.execute(create)
        writer.commit()
        owner.execute(create)
        owner.commit()
        writer.execute(ASYNC.insert, {"k": "2"})
        writer.commit()
        assert owner.execute("SELECT id FROM async_task").fetchall() == [(1,)]
        assert owner.execute(SQL["move async_task"]).fetchone() == (1,)


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[Shop]:
    """Its tables are dropped afterwards."""
    shop = Shop(tmp_path, Path(sys.executable).parent, database.engine, "")
    shop.environment["TASKS_APP_IMPORTS"] = "shop.handlers,shop.faults"
    shop.write(handlers=IMPORTS + EXAMPLES, faults=FAULTS)
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute(AUDIT)
        yield shop
        made = "SELECT string_agg(format('DROP %s %s CASCADE', kind, name), ';') FROM ({}) AS x"
        kinds = "CASE relkind WHEN 'v' THEN 'VIEW IF EXISTS' ELSE 'TABLE IF EXISTS' END"
        drops = connection.execute(
            made.format(f"""
            SELECT {kinds} AS kind, relname AS name FROM pg_class
            WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')
            AND relname !~ '^tasks?_'
            UNION ALL SELECT 'FUNCTION IF EXISTS', proname FROM pg_proc
            WHERE proname IN ('move_rows', 'move_new_row', 'into_error_pool')""")
        ).fetchone()
        connection.execute(drops[0] if drops else "")
        connection.execute("TRUNCATE task_pending, task_completed, task_error, task_attempt")
        connection.execute("DELETE FROM task_schedule")


FAULTS = """
import os
import psycopg
from tasks_app import middleware
from tests.peers.own_tables import attempt

@middleware
def fail_some(ctx, call):
    if "schedule" not in ctx.headers:
        with psycopg.connect(os.environ["PGDSN"], autocommit=True) as connection:
            attempt(connection, ctx.headers["id"], "ours")
    return call()
"""
SEED = 400
TICK = 1_000_001
"""Of a schedule; an id at which nothing fails."""
BESIDE = {
    "notice": "INSERT INTO notice_waiting (task_no, content, skip)"
    " SELECT n, '{}', true FROM generate_series(2000001, 2000005) AS n",
    "cron_task": f"""
        INSERT INTO cron_task (id, task_name, cron_expression, payload, next_run_time)
        VALUES ({TICK}, 'report.write', '*/5 * * * * *', '{{"about": "tick"}}',
            date_bin('5s', now(), 'epoch') + interval '5s')""",
}
"""What waits beside the rows that are audited."""
SOON = """
    UPDATE task_pending SET due_at = now(), scan_at = now() WHERE id IN (
        SELECT id FROM task_pending WHERE state = 'PENDING' AND due_at > now()
        FOR UPDATE SKIP LOCKED)"""
"""Nobody waits for a level of two days."""
LEFT = "SELECT count(*) FROM task_pending"


class Load:
    """Programs of both sides, and what the guide's queries show meanwhile."""

    def __init__(self, move: Move, shop: Shop) -> None:
        self.move, self.shop, self.rows = move, shop, 0
        self.move_schedules = functions(SCHEDULES)["move_schedules"]

    @contextmanager
    def programs(self, role: str) -> Iterator[None]:
        with ExitStack() as running:
            for number in (1, 2):
                program = ("tests.peers.own_tables", role, self.move.name, f"{role}-{number}")
                running.enter_context(self.shop.serving("-m", *program))
            yield

    def moved(self) -> int:
        """Rows that a round has taken over."""
        rows = self.move.run("move")
        if self.move.name == "cron_task":
            with Session(self.shop.engine) as session:
                rows += self.move_schedules(session)
        return rows

    def look(self) -> None:
        """No row is seen twice, and none is gone."""
        [(rows, ids)] = self.move.rows(self.move.named("whole"))
        assert rows == ids >= self.rows
        self.rows = rows

    def grows(self, what: str, by: int) -> None:
        enough = self.move.sql(f"SELECT count(*) FROM {what}") + by
        until(lambda: self.move.sql(f"SELECT count(*) FROM {what}") >= enough, 60, what)

    def over(self) -> bool:
        self.look()
        self.move.sql(SOON)
        return not self.move.sql(LEFT)


@pytest.mark.test_all
@pytest.mark.timeout(300, method="thread")
@tables
def test_a_table_moves_while_its_workers_and_producers_run(name: str, shop: Shop) -> None:
    with (
        shop.engine.connect() as connection,
        Session(connection.execution_options(isolation_level="AUTOCOMMIT")) as session,
    ):
        move = Move(name, session)
        seeded(move, shop)
        first = (
            move.sql(f"SELECT next_run_time FROM cron_task WHERE id = {TICK}")
            if (name == "cron_task")
            else None
        )
        load = Load(move, shop)
        with shop.serving("-m", "tasks_app", "work", "-c", "2"):
            with load.programs("produce"):
                with load.programs("work"):
                    load.grows("attempt", 100)
                    move.run("common")
                    move.run("redirect")
                    while load.moved():
                        load.look()
                    load.grows("attempt WHERE by_whom = 'ours'", 20)
                while load.moved() or move.run("failed"):
                    load.look()
                load.grows("written", 50)
            if first:
                until(lambda: move.sql("SELECT last_run_at FROM task_schedule"), 60, "its run")
                disable_schedule(session, f"report.write.{TICK}")
            until(load.over, 60, "the end of all tasks")

        check_audit(move)
        if first:
            last = move.sql("SELECT last_run_at FROM task_schedule")
            ticks = move.sql("SELECT count(*) FROM report WHERE key = 'tick'")
            assert ticks == (last - first) / timedelta(seconds=5) + 1
        check_names(move)


def seeded(move: Move, shop: Shop) -> None:
    move.sql(move.old.schema)
    with psycopg.connect(shop.url) as connection:
        for number in range(SEED):
            write(connection, move.old, number)
    if move.name in BESIDE:
        move.sql(BESIDE[move.name])


def check_audit(move: Move) -> None:
    """Each row that was committed has its effect once, or as many attempts as it may have."""
    written = dict(move.rows("SELECT id, key FROM written"))
    failing = {row_id for row_id in written if always_fails(row_id)}
    effects = dict(move.rows(f"SELECT key, count(*) FROM {move.old.effect} GROUP BY key"))
    effects.pop("tick", None)
    assert effects == {key: 1 for row_id, key in written.items() if row_id not in failing}
    attempts = dict(move.rows(f"SELECT id, count(*) FROM attempt WHERE id <> {TICK} GROUP BY id"))
    assert attempts == {
        row_id: move.old.attempts if row_id in failing else 2 if row_id % 7 == 0 else 1
        for row_id in written
    }
    assert move.rows("SELECT DISTINCT by_whom FROM attempt ORDER BY 1") == [("ours",), ("theirs",)]
    errors_of = "SELECT (headers ->> 'id')::bigint FROM task_error"
    assert {row_id for (row_id,) in move.rows(errors_of)} == failing
    states = dict(move.rows("SELECT state, count(*) FROM task_completed GROUP BY state"))
    assert states.get("SKIPPED", 0) == (5 if move.name == "notice" else 0)


def check_names(move: Move) -> None:
    """The queries of completeness, and old readers under the old name."""
    state = "is_finished" if move.name == "delay_task" else "status"
    still, last = move.named("left").replace("status", state).split(";")[:2]
    over = {"async_task": [0], "notice": [], "cron_task": ["SUCCESS"], "delay_task": [1]}
    assert [row[0] for row in move.rows(still)] == over[move.name]
    assert move.sql(last) is not None
    before = move.rows(move.named("whole").replace(move.view, f"{move.old.table}_now"))
    move.sql(move.named("rename").replace(move.view, f"{move.old.table}_now"))
    assert move.rows(f"SELECT count(*), count(*) FROM {move.old.table}") == before
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        move.sql(move.old.insert % {"k": "'1'"})
