"""Moving tasks between databases, and indexes made anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from tasks_app import create_task, hold_task
from tasks_app.domain.errors import ConfigurationError, InvalidSelectionError
from tasks_app.locks import Locks
from tasks_app.pool.operations.maintenance import LEAST_WASTE, RelationSize, invalid_indexes, sizes
from tasks_app.pool.schema import migrate
from tasks_app.pool.tasks.transfer import prune
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.maintainer import FORGET_IMPORTS_AFTER
from tasks_app.runtime.migration import reindex
from tasks_app.runtime.transfer import Imported, MoveEnded, cancel_moved, export_tasks, import_tasks
from tests.factory import claimed_task, do, rows_of, run_sql
from tests.servers import Databases
from tests.statements import once_after

LATER = datetime(2031, 5, 1, 12, tzinfo=UTC)
OPTIONS: dict[str, Any] = {
    "queue": "slow",
    "priority": 2,
    "run_at": LATER,
    "biz_key": "order:42",
    "unique_key": "order 42",
    "order_key": "customer:7",
    "order_policy": "skips",
    "limit_key": ["tenant:7", "bank:ü"],
    "weight": 7,
    "fair_key": "tenant:7",
    "locks": Locks(["account:7"], "rates", {"license": 3}),
    "max_attempts": 7,
    "retry": "5s,30s",
    "timeout": "1500ms",
    "hard_timeout": "1m",
    "expires_at": LATER + timedelta(days=1),
    "enabled": False,
    "headers": {"trace": "ü"},
}
TAKEN_ALONG = (
    *("name", "queue", "priority", "biz_key", "unique_key", "order_key", "order_skips"),
    *(
        "limit_key",
        "more_limit_keys",
        "weight",
        "fair_key",
        "locks",
        "payload",
        "headers",
        "enabled",
        "attempt",
        "failures",
        "crashes",
    ),
    *("retry_level", "max_attempts", "retry", "expires_at", "timeout_ms", "hard_timeout_ms"),
    *("idempotency_key", "created_at", "state"),
)


@pytest.fixture(scope="module")
def elsewhere(databases: Databases) -> Iterator[Engine]:
    made = create_engine(databases.create("elsewhere"))
    with made.connect() as connection:
        migrate(connection)
        connection.commit()
    yield made
    made.dispose()


@pytest.fixture
def there(elsewhere: Engine) -> Engine:
    with elsewhere.begin() as connection:
        connection.execute(text("TRUNCATE task_pending, task_completed, task_import"))
    return elsewhere


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


def rows(engine: Engine, *columns: str, table: str = "task_pending") -> list[tuple]:
    return rows_of(engine, f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")


def made(engine: Engine, number: int, **options: Any) -> list[int]:
    with engine.begin() as connection:
        return [create_task(connection, "t", {"n": n}, **options) for n in range(number)]


def held(engine: Engine, number: int) -> list[int]:
    ids = made(engine, number)
    with engine.begin() as connection:
        for one in ids:
            hold_task(connection, one)
    return ids


def brought(engine: Engine, file: Path) -> Imported:
    """Import the file; its receipt stands beside it, in place of an earlier one."""
    receipt(file).unlink(missing_ok=True)
    return import_tasks(engine, file, receipt(file))


def receipt(file: Path) -> Path:
    return file.with_name("moved.jsonl")


def test_a_task_takes_all_its_options_along(engine: Engine, there: Engine, file: Path) -> None:
    with engine.begin() as connection:
        create_task(connection, "bank.pay", {"sum": 0.1, "big": 2**62, "ä": ["\\n"]}, **OPTIONS)
        connection.execute(
            text("UPDATE task_pending SET attempt = 3, failures = 2, crashes = 1, retry_level = 2")
        )
    export_tasks(engine, file, name="bank.pay")
    brought(there, file)
    assert rows(there, *TAKEN_ALONG) == rows(engine, *TAKEN_ALONG)
    assert rows(there, "due_at", "scan_at") == [(LATER, LATER)]


def test_an_encrypted_payload_goes_as_stored(engine: Engine, there: Engine, file: Path) -> None:
    stored = {"$encrypted": "v1.2026-11.c2VhbGVk"}
    made(engine, 1)
    run_sql(engine, "UPDATE task_pending SET payload = :p", p=json.dumps(stored))
    export_tasks(engine, file, name="t")
    brought(there, file)
    assert rows(there, "payload") == [(stored,)]


def test_a_held_task_takes_its_own_date_along(engine: Engine, there: Engine, file: Path) -> None:
    (task_id,) = made(engine, 1, run_at=LATER)
    do(engine, hold_task, task_id)
    export_tasks(engine, file, held=True)
    brought(there, file)
    assert rows(there, "due_at", "held_due_at") == [(LATER, None)]


def test_only_its_owner_reads_the_file_and_none_is_written_over(engine: Engine, file: Path) -> None:
    made(engine, 1)
    file.with_name("tasks.jsonl.part").write_text("of one that was killed")
    export_tasks(engine, file, name="t")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["tasks.jsonl"]
    with pytest.raises(InvalidSelectionError, match="exists already"):
        export_tasks(engine, file, name="t")


def test_what_runs_is_over_or_in_a_group_stays(engine: Engine, there: Engine, file: Path) -> None:
    (waits, member) = made(engine, 2)
    with engine.begin() as connection:
        claimed_task(connection)
        connection.execute(
            text("UPDATE task_pending SET batch_id = 5 WHERE id = :id"), {"id": member}
        )
    done = export_tasks(engine, file, queue="default")
    brought(there, file)
    assert (done.tasks, done.members) == (1, [member])
    assert json.loads(file.read_text())["id"] == waits


@pytest.mark.test_all
def test_each_is_created_once_in_many_tries(engine: Engine, there: Engine, file: Path) -> None:
    """Also when it is over, and gone, where it was brought."""
    made(engine, 450)
    export_tasks(engine, file, name="t")
    own = there.execution_options()

    def killed() -> None:
        raise KeyboardInterrupt

    second = once_after(own, "INSERT INTO task_audit", killed, number=2)
    with pytest.raises(KeyboardInterrupt), second:
        import_tasks(own, file, receipt(file))
    assert not receipt(file).exists()
    assert len(rows(there, "id")) == 200
    run_sql(there, "DELETE FROM task_pending WHERE id % 200 = 1")
    gone = 450 - len(rows(there, "id")) - 250
    assert brought(there, file).tasks == 450
    assert brought(there, file).tasks == 450

    keys = rows(there, "idempotency_key")
    assert len(keys) == 450 - gone
    assert set(keys) < set(rows(engine, "idempotency_key"))


def test_a_taken_unique_key_leaves_it_out_first(engine: Engine, there: Engine, file: Path) -> None:
    (task_id,) = made(engine, 1, unique_key="a")
    made(there, 1, unique_key="a")
    export_tasks(engine, file, name="t")
    assert brought(there, file) == Imported(0, [task_id])
    run_sql(there, "DELETE FROM task_pending")
    assert brought(there, file) == Imported(1, [])


def test_a_move_cancels_only_what_arrived(engine: Engine, there: Engine, file: Path) -> None:
    held(engine, 3)
    with engine.begin() as connection:
        released, stays = held(engine, 1)[0], create_task(connection, "t", unique_key="a")
        hold_task(connection, stays)
    made(there, 1, unique_key="a")
    export_tasks(engine, file, held=True)
    run_sql(engine, "UPDATE task_pending SET due_at = created_at WHERE id = :id", id=released)
    run_sql(engine, "UPDATE task_pending SET scan_at = due_at")

    assert brought(there, file).left_out == [stays]
    assert cancel_moved(engine, receipt(file)) == MoveEnded(3, [released])
    assert cancel_moved(engine, receipt(file)).cancelled == 0

    assert rows(engine, "id") == [(released,), (stays,)]
    assert rows(engine, "state", table="task_completed") == [("CANCELLED",)] * 3


def test_a_receipt_is_void_in_other_databases(engine: Engine, there: Engine, file: Path) -> None:
    """There an id is another task's."""
    ids = held(engine, 1)
    export_tasks(engine, file, held=True)
    brought(there, file)
    run_sql(engine, "UPDATE task_pending SET idempotency_key = gen_random_uuid()")
    assert cancel_moved(engine, receipt(file)) == MoveEnded(0, ids)


def test_both_databases_may_give_a_task_one_id(engine: Engine, there: Engine, file: Path) -> None:
    """A move goes on all the same, and a receipt cancels nothing where the tasks went."""
    ids = held(engine, 2)
    export_tasks(engine, file, held=True)
    run_sql(there, f"ALTER SEQUENCE task_pending_id_seq RESTART WITH {ids[0]}")
    brought(there, file)
    assert brought(there, file).tasks == 2
    assert rows(there, "id") == [(one,) for one in ids]
    with there.begin() as connection:
        for one in ids:
            hold_task(connection, one)

    assert cancel_moved(there, receipt(file)) == MoveEnded(0, ids)
    assert cancel_moved(engine, receipt(file)) == MoveEnded(2, [])


def test_tasks_are_not_imported_where_they_wait(engine: Engine, file: Path) -> None:
    made(engine, 2)
    export_tasks(engine, file, name="t")
    with pytest.raises(InvalidSelectionError, match="was exported from here"):
        brought(engine, file)
    assert len(rows(engine, "id")) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "no name"}, "Line 2: name"),
        ({"payload": []}, "Line 2: payload"),
        ({"options": {"priority": 11}}, "Line 2: options.priority"),
        ({"options": {"colour": "red"}}, "Line 2: options.colour is unknown"),
        ({"failures": 3}, "Line 2 is not a task"),
        ({"idempotency_key": "x"}, "Line 2 is not a task"),
        ({"tasks_app": 2}, "Line 2 is of another version"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_imported(
    engine: Engine, there: Engine, file: Path, change: dict, says: str
) -> None:
    made(engine, 2)
    export_tasks(engine, file, name="t")
    first, second = map(json.loads, file.read_text().splitlines())
    file.write_text(f"{json.dumps(first)}\n{json.dumps(second | change)}\n")
    with pytest.raises(InvalidSelectionError) as told:
        brought(there, file)
    assert says in str(told.value)
    assert rows(there, "id") == []


NESTED, ENDLESS = "[" * 100_000, '{"tasks_app": 1, "options": {}, "id": 1e999}'


@pytest.mark.parametrize("words", ["", "no JSON", '{"id": 1}', "[]", NESTED, ENDLESS])
def test_files_of_other_kinds_are_refused(there: Engine, file: Path, words: str) -> None:
    file.write_text(words + "\n")
    with pytest.raises(InvalidSelectionError, match="Line 1 is not a task"):
        brought(there, file)
    with pytest.raises(InvalidSelectionError, match="isn't a receipt"):
        cancel_moved(there, file)
    with pytest.raises(InvalidSelectionError, match="cannot be read"):
        brought(there, file.with_name("none"))


def test_what_was_imported_long_ago_is_gone(engine: Engine, there: Engine, file: Path) -> None:
    made(engine, 1)
    export_tasks(engine, file, name="t")
    brought(there, file)
    with there.begin() as connection:
        now = datetime.now(UTC)
        assert prune(connection, FORGET_IMPORTS_AFTER, 10, now=now) == 0
        later = now + FORGET_IMPORTS_AFTER + timedelta(minutes=1)
        assert prune(connection, FORGET_IMPORTS_AFTER, 10, now=later) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"id": 2**63},
        {"id": 0},
        {"created_at": "9999-12-31T23:59:59Z"},
        {"created_at": "1066-10-14T00:00:00Z"},
    ],
)
def test_numbers_and_instants_that_no_database_holds_are_refused_before_the_first_task(
    engine: Engine, there: Engine, file: Path, changed: dict[str, Any]
) -> None:
    made(engine, 1)
    export_tasks(engine, file, name="t")
    line = json.loads(file.read_text())
    file.write_text(json.dumps({**line, **changed}) + "\n")
    with pytest.raises(InvalidSelectionError, match="Line 1 is not a task"):
        brought(there, file)
    assert rows(there, "id") == []


def test_a_receipt_with_an_id_that_no_task_has_is_none(engine: Engine, file: Path) -> None:
    for number in ("1" + "0" * 30, "1e999", "0"):
        file.write_text(f'{{"id": {number}, "idempotency_key": "{uuid4()}", "became": 1}}\n')
        with pytest.raises(InvalidSelectionError, match="isn't a receipt"):
            cancel_moved(engine, file)


INDEX = "task_attempt_task"
FILL = """
    INSERT INTO task_attempt (task_id, attempt, event, kind, message)
    SELECT n, 1, 'retry', '', '' FROM generate_series(1, 20000) AS n
"""
EMPTY = "DELETE FROM task_attempt WHERE mod(task_id, 20) > 0"


@pytest.fixture
def database(engine: Engine) -> Database:
    return Database(engine.url.render_as_string(hide_password=False))


@pytest.fixture
def bloated(engine: Engine) -> None:
    """An index of 20,000 entries of which every twentieth is left."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in (FILL, EMPTY, "VACUUM ANALYZE task_attempt"):
            connection.exec_driver_sql(statement)


def size_of(engine: Engine, name: str = INDEX) -> RelationSize:
    with engine.connect() as connection:
        (found,) = [size for size in sizes(connection) if size.name == name]
    return found


def halves(engine: Engine) -> list[str]:
    return do(engine, invalid_indexes)


def valid(engine: Engine) -> bool:
    found = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"
    return bool(run_sql(engine, found, name=INDEX))


@pytest.mark.test_all
@pytest.mark.usefixtures("bloated")
def test_what_an_index_wastes_is_estimated(engine: Engine, database: Database) -> None:
    before = size_of(engine)
    assert before.wasted > 0.8 * before.bytes
    reindex(database, [INDEX])
    after = size_of(engine)
    assert after.bytes < before.bytes / 5
    assert after.wasted <= 0.5 * after.bytes


@pytest.mark.test_all
def test_a_fresh_index_is_not_called_bloated(engine: Engine, database: Database) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in (FILL, "VACUUM ANALYZE task_attempt"):
            connection.exec_driver_sql(statement)
    reindex(database, [INDEX])
    found = size_of(engine)
    assert found.wasted < 0.3 * found.bytes


def test_small_waste_is_not_worth_it() -> None:
    def bloated(size: int, estimate: int | None) -> bool:
        return RelationSize("t", "i", "index", size, estimate).is_bloated

    assert bloated(3 * LEAST_WASTE, LEAST_WASTE)
    assert not bloated(LEAST_WASTE, 1000)
    assert not bloated(3 * LEAST_WASTE, 2 * LEAST_WASTE)
    assert not bloated(3 * LEAST_WASTE, None)


@pytest.mark.test_all
@pytest.mark.usefixtures("bloated")
def test_others_write_meanwhile(engine: Engine, database: Database) -> None:
    said: list[str] = []

    def write(words: str) -> None:
        said.append(words)
        with engine.begin() as connection:
            connection.exec_driver_sql(FILL)

    result = reindex(database, [INDEX, INDEX], write)
    assert [name for name, *_ in result.done] == [INDEX]
    assert said == [f"{INDEX}: {result.done[0][1]:,} bytes became {result.done[0][2]:,}"]
    assert valid(engine)


@pytest.mark.test_all
@pytest.mark.usefixtures("bloated")
def test_an_open_transaction_leaves_the_old_index_alone(engine: Engine, database: Database) -> None:
    with engine.connect() as other:
        other.exec_driver_sql("UPDATE task_attempt SET attempt = 2 WHERE task_id = 20")
        result = reindex(database, [INDEX], patience_s=0.3)
        other.rollback()
    assert (result.in_use, result.done) == ([INDEX], [])
    assert valid(engine)
    reindex(database, [INDEX])
    assert halves(engine) == []


@pytest.mark.usefixtures("bloated")
def test_what_a_killed_try_left_half_done_is_dropped(engine: Engine, database: Database) -> None:
    with engine.connect() as other:
        other.exec_driver_sql("UPDATE task_attempt SET attempt = 2 WHERE task_id = 20")
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as killed:
            killed.exec_driver_sql("SET lock_timeout = '300ms'")
            with pytest.raises(DBAPIError):
                killed.exec_driver_sql(f"REINDEX INDEX CONCURRENTLY {INDEX}")
            killed.exec_driver_sql("RESET lock_timeout")
        other.rollback()
    assert halves(engine) == [f"{INDEX}_ccnew"]

    result = reindex(database)

    assert result.dropped == [f"{INDEX}_ccnew"]
    assert halves(engine) == []
    assert valid(engine)


def test_an_index_of_somebody_else_is_refused(engine: Engine, database: Database) -> None:
    run_sql(engine, "CREATE TABLE theirs (id bigint PRIMARY KEY)")
    try:
        with pytest.raises(InvalidSelectionError, match="tasks_app has no index theirs_pkey"):
            reindex(database, ["theirs_pkey"])
    finally:
        run_sql(engine, "DROP TABLE theirs")


def test_only_the_owner_may(engine: Engine) -> None:
    run_sql(engine, "DROP ROLE IF EXISTS reindex_nobody")
    run_sql(engine, "CREATE ROLE reindex_nobody LOGIN PASSWORD 'x'")
    url = engine.url.set(username="reindex_nobody", password="x")
    other = create_engine(url)
    try:
        with pytest.raises(ConfigurationError, match="does not own the tables"):
            reindex(Database(url.render_as_string(hide_password=False)))
    finally:
        other.dispose()
        run_sql(engine, "DROP ROLE reindex_nobody")
