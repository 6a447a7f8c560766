"""The schema: complete, named, missing."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import InternalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tasks_app import NewTask, TasksError, acreate_task, create_task, create_tasks
from tasks_app.domain.errors import SchemaError
from tasks_app.pool.retention import add_partition
from tasks_app.pool.schema import (
    _config,
    _migrations,
    check_schema,
    check_version,
    current,
    is_behind,
    migrate,
    migration_sql,
    newest,
)
from tasks_app.pool.tables import TABLES, pool_name
from tasks_app.runtime import migration
from tasks_app.runtime.db.database import Database
from tests.clock import until
from tests.factory import claimed_task, pending_task, pool_of_task, tables
from tests.pool.interleave import PATIENCE_S, pid_of, two
from tests.servers import Databases

CATALOGUE = text(
    """
    SELECT c.relname, c.relkind, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
        pg_get_expr(d.adbin, d.adrelid)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND c.relname LIKE 'task%'
    ORDER BY 1, a.attnum""".replace("::", r"\:\:")
)
CHECKS = text(
    """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text LIKE 'task%'
    ORDER BY 1, 2""".replace("::", r"\:\:")
)


def picture(connection: Connection) -> tuple:
    return connection.execute(CATALOGUE).all(), connection.execute(CHECKS).all()


def test_an_empty_database_is_brought_to_the_newest_version(database: Connection) -> None:
    assert current(database) is None
    assert migrate(database) == (None, newest())
    assert current(database) == newest()
    check_schema(database)
    assert pending_task(database).created


def test_of_every_table_and_partition_deletes_may_be_replicated(connection: Connection) -> None:
    """A publication FOR ALL TABLES refuses DELETE and UPDATE where nothing tells rows apart."""
    add_partition(connection, datetime(2020, 1, 1, tzinfo=UTC))
    found = connection.exec_driver_sql("""
        SELECT c.relname, c.relreplident = 'f' OR c.relreplident = 'd' AND EXISTS (
            SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid)
        FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
    """)
    told_apart = dict(row for row in found if row.relname.startswith("task"))
    assert set(told_apart) > TABLES | {"task_completed_default", "task_completed_p20200101"}
    assert [name for name, is_so in told_apart.items() if not is_so] == []


def test_migrating_twice_is_harmless(database: Connection) -> None:
    migrate(database)
    task_id = pending_task(database)
    before = picture(database)
    assert migrate(database) == (newest(), newest())
    assert picture(database) == before
    assert pool_of_task(database, task_id) == "pending PENDING"


@pytest.mark.test_all
def test_step_by_step_the_schema_is_the_same(empty: Engine) -> None:
    url = empty.url.render_as_string(hide_password=False)
    with empty.begin() as connection:
        migrate(connection)
        at_once = picture(connection)
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    assert migration.migrate(Database(url)) == (None, newest())
    with empty.connect() as connection:
        assert picture(connection) == at_once


def test_a_migration_that_rolls_back_leaves_nothing(database: Connection) -> None:
    migrate(database)
    database.rollback()
    assert current(database) is None
    assert tables(database) == set()


def rests_between_two_questions(monitor: Connection, pid: int) -> bool:
    """It waits without a statement, so without a snapshot that others would wait for."""
    query = text(
        "SELECT state, query FROM pg_stat_activity WHERE pid = :pid AND xact_start < now()"
    )
    monitor.rollback()
    row = monitor.execute(query, {"pid": pid}).one_or_none()
    return row is not None and row.state.startswith("idle in") and "advisory" in row.query


@pytest.mark.test_all
def test_a_migration_is_open_then_the_second_waits_and_finds_it_done(empty: Engine) -> None:
    with two(empty) as (a, b), ThreadPoolExecutor(1) as thread:
        migrate(a)
        second = thread.submit(migrate, b)
        with empty.connect() as monitor:
            until(lambda: rests_between_two_questions(monitor, pid_of(b)) or second.done())
        assert not second.done()
        a.commit()
        assert second.result(PATIENCE_S) == (newest(), newest())


def test_the_newest_version_is_the_head_of_the_chain() -> None:
    """Read off the names of the files: who runs tasks shall not load what migrates."""
    scripts = ScriptDirectory.from_config(_config())
    assert newest() == scripts.get_current_head()


@pytest.mark.test_all
def test_a_worker_starts_without_loading_what_migrates() -> None:
    code = "import tasks_app.celery, sys; print([m for m in sys.modules if 'alembic' in m])"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "[]"


def test_a_missing_schema_is_refused_with_the_command_that_makes_it(database: Connection) -> None:
    with pytest.raises(SchemaError, match=r"is missing; .* Run: tasks-app migrate"):
        check_schema(database)


def stands_at(connection: Connection, version: str, oldest: str | None = None) -> None:
    """Say that code which this one knows nothing of has migrated, or migrated back."""
    connection.execute(
        text("UPDATE tasks_app_version SET version_num = :v, oldest_code = :oldest"),
        {"v": version, "oldest": oldest},
    )


def test_an_older_schema_is_refused_with_the_command_that_helps(connection: Connection) -> None:
    assert check_schema(connection) is None
    stands_at(connection, "0000")
    with pytest.raises(SchemaError, match=f"0000; {newest()} is needed. Run: tasks-app migrate$"):
        check_schema(connection)


def test_a_newer_schema_that_admits_this_code_is_a_notice(connection: Connection) -> None:
    stands_at(connection, "9999", oldest=newest())
    assert check_schema(connection) == (
        f"The schema has version 9999; this code is of {newest()}, and may still run on it. "
        "Upgrade tasks_app soon."
    )
    assert not is_behind(connection)


@pytest.mark.parametrize("oldest", ["9998", None])
def test_a_schema_too_new_calls_the_code_old(connection: Connection, oldest: str | None) -> None:
    """Not "migrate": this code has not the files for that, and would die in Alembic."""
    stands_at(connection, "9999", oldest)
    said = (
        "^This code is older than the schema: the schema has version 9999 and needs code of "
        f"{oldest or 9999} or newer, this code is of {newest()}. Upgrade tasks_app.$"
    )
    for look in (check_schema, check_version, is_behind, migrate):
        with pytest.raises(SchemaError, match=said):
            look(connection)


def test_a_version_that_nobody_made_is_not_migrated(connection: Connection) -> None:
    stands_at(connection, "0000")
    with pytest.raises(SchemaError, match="has version 0000, which this code does not know"):
        migrate(connection)


def test_a_role_that_may_not_see_the_version_passes(connection: Connection) -> None:
    """A producer's that was granted before there was such a grant."""
    stands_at(connection, "9999")
    connection.exec_driver_sql("CREATE ROLE of_old")
    connection.exec_driver_sql("SET LOCAL ROLE of_old")
    assert check_version(connection) is None


def test_the_oldest_code_is_that_of_the_newest_migration(database: Connection) -> None:
    migrate(database)
    oldest = text("SELECT oldest_code FROM tasks_app_version")
    assert "0001" <= database.execute(oldest).scalar_one() <= newest()


def test_a_migration_without_a_word_admits_no_older(database: Connection, tmp_path: Path) -> None:
    migrate(database)
    shutil.copytree(_migrations(), tmp_path / "migrations")
    silent = f"revision, down_revision = '9999', {newest()!r}\ndef upgrade(): pass\n"
    (tmp_path / "migrations" / "versions" / "9999_silent.py").write_text(silent)
    config = _config()
    config.set_main_option("script_location", str(tmp_path / "migrations"))
    config.attributes["connection"] = database
    command.upgrade(config, "head")
    oldest = database.execute(text("SELECT oldest_code FROM tasks_app_version")).scalar_one()
    assert oldest == "9999"


def test_every_migration_says_which_code_may_run_on_it() -> None:
    scripts = ScriptDirectory.from_config(_config())
    silent = [
        script.revision
        for script in scripts.walk_revisions()
        if not hasattr(script.module, "OLDEST_CODE")
    ]
    assert silent == []


def test_the_sql_for_a_dba_makes_the_same_schema(database: Connection) -> None:
    with database.begin_nested() as savepoint:
        migrate(database)
        by_command = picture(database)
        savepoint.rollback()
    assert picture(database) == ([], [])
    database.connection.driver_connection.execute(migration_sql())
    check_schema(database)
    assert picture(database) == by_command


LIFE = """
import sys
from uuid import uuid4
from sqlalchemy import create_engine
from tasks_app.pool import schema
from tasks_app.pool.tasks.browse import get
from tasks_app.pool.tasks.create import create_many
from tasks_app.domain.creation import validate_task
from tasks_app.domain.creation import NewTask
from tasks_app.pool.retention import add_partition, missing_partitions
from tests.factory import claimed_task, ending, pending_task
from tasks_app.pool.runs.settle import settle_one

engine = create_engine(sys.argv[1])
with engine.begin() as connection:
    print(*schema.migrate(connection))
with engine.begin() as connection:
    print(*schema.migrate(connection))
    schema.check_schema(connection)
with engine.begin() as connection:
    add_partition(connection, missing_partitions(connection)[0])
    task = claimed_task(connection, pending_task(connection))
    print(settle_one(connection, ending(task)))
    print(get(connection, task.task_id).pool)
    print(len(create_many(connection, [validate_task(NewTask("t"), None, 1024)] * 3)))
with engine.begin() as connection:
    print(connection.exec_driver_sql("SELECT inside.task_create('t') > 0").scalar())
"""


def in_schema(project: Path, code: str, url: str, schema: str) -> str:
    environment = {**os.environ, "TASKS_APP_SCHEMA": schema}
    done = subprocess.run(
        [sys.executable, "-c", code, url],
        env=environment,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.test_all
def test_everything_lies_and_works_in_a_schema_of_its_own(empty: Engine, project: Path) -> None:
    url = empty.url.render_as_string(hide_password=False)

    said = in_schema(project, LIFE, url, "inside")

    assert said.split("\n")[:-1] == [
        f"None {newest()}",
        f"{newest()} {newest()}",
        "SUCCEEDED",
        "completed",
        "3",
        "True",
    ]
    with empty.connect() as connection:
        schemas = {name.split(".")[0] for name in tables(connection)}
        assert schemas == {"inside"}
        assert connection.exec_driver_sql("SELECT count(*) FROM inside.task_all").scalar() == 5


STEPS = """
import sys
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.migration import migrate

print(*migrate(Database(sys.argv[1])))
"""


@pytest.mark.test_all
def test_step_by_step_everything_lies_in_the_schema_too(empty: Engine, project: Path) -> None:
    url = empty.url.render_as_string(hide_password=False)
    assert in_schema(project, STEPS, url, "inside") == f"None {newest()}\n"
    with empty.connect() as connection:
        assert {name.split(".")[0] for name in tables(connection)} == {"inside"}
        of_indexes = text("SELECT DISTINCT schemaname FROM pg_indexes WHERE indexname LIKE 'task%'")
        assert connection.execute(of_indexes).scalars().all() == ["inside"]


@pytest.mark.test_all
def test_the_sql_for_a_dba_names_the_schema(empty: Engine, project: Path) -> None:
    code = "from tasks_app.pool.schema import migration_sql; print(migration_sql())"
    sql = in_schema(project, code, "", "inside")
    with empty.connect() as connection:
        connection.connection.driver_connection.execute(sql)
        assert {name.split(".")[0] for name in tables(connection)} == {"inside"}


def test_the_shared_database_was_migrated_and_is_good(connection: Connection) -> None:
    check_schema(connection)
    assert claimed_task(connection)


OPTIONS = text("""
    SELECT option_name, CAST(option_value AS double precision)
    FROM pg_class c CROSS JOIN LATERAL pg_options_to_table(c.reloptions)
    WHERE c.oid = CAST(:name AS regclass) AND option_value ~ '^[0-9.]+$'
""")
ROWS = 1_000_000
SERVERS_OWN = 50 + 0.2 * ROWS
"""Dead rows at which a server vacuums by default."""


@pytest.mark.parametrize("name", ["task_pending", "task_progress", "task_lock", "task_batch"])
def test_dead_rows_go_early_and_updates_have_room(connection: Connection, name: str) -> None:
    found = dict(tuple(row) for row in connection.execute(OPTIONS, {"name": name}))
    share = found["autovacuum_vacuum_scale_factor"]
    assert found["autovacuum_vacuum_threshold"] + share * ROWS <= SERVERS_OWN / 2 + 1_000
    assert found.get("fillfactor", 70) <= 70


SECRET = {"card": "canary4111"}
NAME = "no_schema_yet"


@pytest.fixture(scope="module")
def bare_url(postgres: Any) -> Iterator[str]:
    administrator = create_engine(postgres.url_of("postgres"), isolation_level="AUTOCOMMIT")
    with administrator.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {NAME}"))
    yield postgres.url_of(NAME)
    with administrator.connect() as connection:
        connection.execute(text(f"DROP DATABASE {NAME} WITH (FORCE)"))
    administrator.dispose()


WAYS: list[Callable[[Any], object]] = [
    lambda session: create_task(session, "t", SECRET),
    lambda session: create_tasks(session, [NewTask("t", SECRET), NewTask("t", SECRET)]),
]


def check(refusal: pytest.ExceptionInfo[Any]) -> None:
    said = str(refusal.value)
    assert said.startswith("The schema of tasks_app is missing in this database, or not where ")
    assert "Run: tasks-app migrate." in said
    assert said.endswith(
        "The transaction is in error now, as after any statement that failed: roll it back."
    )
    assert "canary" not in "".join(traceback.format_exception(refusal.value))
    assert refusal.value.__context__ is None  # nor where those look who show all of an error
    assert isinstance(refusal.value, TasksError)


@pytest.mark.parametrize("create", WAYS, ids=["one", "many"])
def test_it_is_said_and_the_transaction_failed(
    bare_url: str, create: Callable[[Any], object]
) -> None:
    engine = create_engine(bare_url)  # a producer's own: it shows parameters in its errors
    with Session(engine) as session:
        with pytest.raises((SchemaError, ProgrammingError)) as refusal:
            create(session)
        with pytest.raises(InternalError, match="current transaction is aborted"):
            session.execute(text("SELECT 1"))
        session.rollback()
        assert session.execute(text("SELECT 1")).scalar() == 1
    engine.dispose()
    check(refusal)


@pytest.mark.parametrize("create", WAYS, ids=["one", "many"])
def test_also_on_a_connection_of_psycopg(bare_url: str, create: Callable[[Any], object]) -> None:
    url = make_url(bare_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection, pytest.raises(SchemaError) as refusal:
        create(connection)
    check(refusal)


def test_also_in_an_async_session(bare_url: str) -> None:
    async def create() -> None:
        engine = create_async_engine(bare_url)
        try:
            async with AsyncSession(engine) as session:
                await acreate_task(session, "t", SECRET)
        finally:
            await engine.dispose()

    with pytest.raises(SchemaError) as refusal:
        asyncio.run(create())
    check(refusal)


def test_a_schema_that_is_too_old_is_said(bare_url: str) -> None:
    engine = create_engine(bare_url)
    with engine.connect() as connection:  # and never commit
        connection.execute(text("CREATE TABLE task_pending (id int)"))
        with pytest.raises(SchemaError, match="is not the one that this version needs") as refusal:
            create_task(connection, "t", SECRET)
    engine.dispose()
    assert "canary" not in "".join(traceback.format_exception(refusal.value))


def test_it_stays_as_it_is(engine: Engine) -> None:
    names = []
    for _ in range(2):
        with engine.connect() as connection:
            names.append(pool_name(connection))
    assert names[0] == names[1]
    assert len(names[0] or "") == 12


@pytest.mark.test_all
def test_a_copy_of_the_database_has_another(engine: Engine, databases: Databases) -> None:
    body = "SELECT prosrc FROM pg_proc WHERE proname = 'task_pool'"
    with engine.connect() as connection:
        own, source = pool_name(connection), connection.execute(text(body)).scalar_one()
    copy = create_engine(databases.create("pool_copy"))
    try:
        with copy.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE FUNCTION task_pool() RETURNS text LANGUAGE sql AS $${source}$$"
            )
            assert pool_name(connection) not in (None, own)
    finally:
        copy.dispose()
        databases.drop("pool_copy")


def test_a_schema_that_knows_none_fails_nobodys_transaction(connection: Connection) -> None:
    connection.execute(text("DROP FUNCTION task_pool()"))
    assert pool_name(connection) is None
    assert connection.execute(text("SELECT 1")).scalar() == 1


@pytest.mark.parametrize("role", ["pool_name_stranger"])
def test_whoever_may_use_the_schema_may_ask(connection: Connection, role: str) -> None:
    own = pool_name(connection)
    connection.exec_driver_sql(f"CREATE ROLE {role}")
    connection.exec_driver_sql(f"SET LOCAL ROLE {role}")
    assert pool_name(connection) == own
