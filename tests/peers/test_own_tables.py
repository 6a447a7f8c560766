"""The guide from tables of one's own, step by step: its SQL is read from the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app import (
    Fail,
    cancel_task,
    create_task,
    fill_fingerprints,
    list_errors,
    list_schedules,
    requeue_task,
)
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.testing import drain, fail_next, travel
from tests.factory import claimed_task, plain_url
from tests.peers.own_tables import ASYNC
from tests.peers.own_tables_guide import (
    BACK,
    EXAMPLES,
    IMPORTS,
    PAGE,
    SCHEDULES,
    SQL,
    Move,
    functions,
    tables,
)
from tests.pool.database import bare_database
from tests.servers import Databases, named


@pytest.fixture(scope="module")
def database(databases: Databases) -> Iterator[Database]:
    """One of its own: the guide lets ids begin higher, which no rollback takes back."""
    with bare_database(databases, "own_tables", "SELECT 1") as database:
        yield database


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


DUE = """
    UPDATE task_pending SET due_at = now(), scan_at = now(), retry = coalesce(retry, '1d')
    WHERE attempt = 0"""
"""By default a retry waits at random up to 5 s: a drain might meet it."""


def inserted(move: Move, key: int) -> Any:
    """Write a row as an old producer does; return its task, which is due."""
    move.sql(move.old.insert % {"k": f"'{key}'"})
    task = move.session.execute(text("SELECT id, name FROM task_pending ORDER BY id DESC")).first()
    move.sql(DUE)
    return task


@tables
def test_the_view_shows_each_state_as_the_old_table_would(name: str, session: Session) -> None:
    move = begun(name, session)
    for key, error in ((1, None), (2, ConnectionError()), (3, Fail("no"))):
        task = inserted(move, key)
        if error is not None:
            fail_next(task.name, error)
        drain(session)
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
