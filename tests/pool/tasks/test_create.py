"""Create: rows in the caller's transaction, whoever else wants the same unique_key."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError, OperationalError

from tasks_app.pool.connection import psycopg_connection
from tasks_app.pool.tasks.create import CHUNK, create_many, create_one
from tests.factory import a_row, claimed_task, count, on_terms, pending_task, row_of
from tests.pool.interleave import blocked, two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_created_task_is_a_pending_row_due_now(connection: Connection) -> None:
    task_id = create_one(connection, a_row(), now=NOON)
    row = row_of(connection, task_id)
    assert task_id.created
    assert (row.state, row.attempt, row.failures, row.crashes) == ("PENDING", 0, 0, 0)
    assert (row.due_at, row.scan_at, row.created_at) == (NOON, NOON, NOON)
    assert (row.queue, row.priority, row.enabled, row.payload) == ("default", 5, True, {})
    assert (row.max_attempts, row.at_most_once, row.retry, row.headers) == (None,) * 4
    assert row.idempotency_key is not None


def test_every_column_of_a_row_is_written_by_one_and_by_many_alike(connection: Connection) -> None:
    row = a_row(
        payload={"a": [1, "é", None, 1.5]},
        queue="q",
        priority=2,
        run_at=NOON + timedelta(hours=1),
        biz_key="order:1",
        max_attempts=7,
        retry="5s,30s",
        wait_first=True,
        timeout=1,
        hard_timeout=2,
        expires_at=NOON + timedelta(days=1),
        enabled=False,
        headers={"trace": "x"},
    )

    one = create_one(connection, row, now=NOON)
    (many,) = create_many(connection, [row], now=NOON)

    first, second = row_of(connection, one), row_of(connection, many)
    ignored = {"id", "idempotency_key"}
    assert {k: v for k, v in first._mapping.items() if k not in ignored} == {
        k: v for k, v in second._mapping.items() if k not in ignored
    }
    assert first.idempotency_key != second.idempotency_key
    assert first.due_at == NOON + timedelta(hours=1, seconds=5)
    assert first.scan_at == first.due_at
    assert (first.retry_level, first.max_attempts, first.retry) == (1, 7, "5s,30s")
    assert (first.payload, first.headers) == ({"a": [1, "é", None, 1.5]}, {"trace": "x"})


def test_a_delay_counts_from_the_insert(connection: Connection) -> None:
    task_id = create_one(connection, a_row(delay="90s"), now=NOON)
    assert row_of(connection, task_id).due_at == NOON + timedelta(seconds=90)


def test_without_now_the_databases_clock_decides(connection: Connection) -> None:
    task_id = create_one(connection, a_row())
    age = connection.execute(
        text("SELECT statement_timestamp() - due_at FROM task_pending WHERE id = :id"),
        {"id": task_id},
    ).scalar_one()
    assert timedelta(0) <= age < timedelta(seconds=10)


@pytest.mark.parametrize("make", [create_one, lambda c, row: create_many(c, [row])])
def test_a_rollback_leaves_nothing(engine: Engine, make) -> None:
    with engine.connect() as connection:
        make(connection, a_row())
        connection.rollback()
    with engine.connect() as connection:
        assert count(connection) == 0


def test_creating_does_not_commit(engine: Engine) -> None:
    with two(engine) as (producer, reader):
        create_one(producer, a_row())
        assert count(reader) == 0


def test_many_ids_rise_in_the_order_of_the_input(connection: Connection) -> None:
    rows = [a_row(f"t{9 - n}", {"n": n}, unique_key=f"k{n * 7 % 10}") for n in range(10)]
    ids = create_many(connection, rows)
    assert ids == sorted(ids)
    assert [row_of(connection, i).payload["n"] for i in ids] == list(range(10))
    assert all(i.created for i in ids)


def test_more_than_one_statement_full_of_tasks_keeps_the_order(connection: Connection) -> None:
    rows = [a_row("b" if n % 2 else "a", {"n": n}) for n in range(2 * CHUNK + 1)]
    ids = create_many(connection, rows)
    assert ids == sorted(ids)
    assert count(connection, "task_pending") == len(rows)
    assert row_of(connection, ids[1]).payload == {"n": 1}
    assert row_of(connection, ids[-1]).payload == {"n": 2 * CHUNK}


def test_none_is_a_number_of_tasks(connection: Connection) -> None:
    assert create_many(connection, []) == []


def test_a_batch_meets_keys_that_were_taken_before(connection: Connection) -> None:
    holder = create_one(connection, a_row(unique_key="k"))
    new, old = create_many(connection, [a_row(unique_key="new"), a_row(unique_key="k")])
    assert new.created
    assert (old, old.created) == (holder, False)


def test_rows_without_a_key_are_never_duplicates(connection: Connection) -> None:
    ids = create_many(connection, [a_row()] * 3)
    assert len(set(ids)) == 3


@pytest.mark.parametrize("make", [create_one, lambda c, row: create_many(c, [row])[0]])
def test_a_key_that_a_running_task_holds_counts_as_taken_and_is_warned_about(
    connection: Connection, caplog: pytest.LogCaptureFixture, make
) -> None:
    holder = claimed_task(connection, unique_key="k")
    with caplog.at_level(logging.WARNING):
        again = make(connection, a_row(unique_key="k"))
    assert (again, again.created) == (holder.task_id, False)
    assert f"Task {holder.task_id}, which is RUNNING, holds the unique_key" in caplog.text


def test_a_key_that_a_pending_task_holds_is_no_reason_to_warn(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    pending_task(connection, unique_key="k")
    create_one(connection, a_row(unique_key="k"))
    assert caplog.text == ""


def test_a_batch_waits_for_the_producer_of_a_key_and_then_names_its_task(engine: Engine) -> None:
    with two(engine) as (a, b):
        first = create_one(a, a_row(unique_key="k1"))
        rows = [a_row(unique_key=f"k{n}") for n in range(3)]
        waiting = blocked(engine, b, a, lambda c: create_many(c, rows))
        a.commit()
        ids = waiting.result()
        assert [i.created for i in ids] == [True, False, True]
        assert ids[1] == first


def test_a_batch_takes_its_keys_in_the_order_of_their_bytes(connection: Connection) -> None:
    keys = ["b", "B", "ä", "a", "_", "Z", "aa"]
    connection.execute(text("TRUNCATE task_pending"))  # no holes that new rows could fill
    create_many(connection, [a_row(unique_key=key) for key in keys])
    stored = connection.execute(text("SELECT unique_key FROM task_pending ORDER BY ctid")).scalars()
    assert list(stored) == sorted(keys)


def test_one_bad_row_of_a_batch_leaves_nothing_of_it(engine: Engine) -> None:
    with two(engine) as (a, b):
        bad = on_terms(a_row(), priority=10)  # past admission, as a bug of ours would be
        with pytest.raises(Exception, match="numbers_are_sane"):
            create_many(a, [a_row(), bad])
        a.rollback()
        assert count(b) == 0


class TestBelowSqlalchemy:
    """Where nobody listens, statements go to psycopg itself; nobody can tell."""

    @pytest.fixture
    def engine(self, engine: Engine) -> Iterator[Engine]:
        """One of its own: on the session's somebody may have listened, which SQLAlchemy keeps."""
        own = create_engine(engine.url)
        yield own
        own.dispose()

    @pytest.fixture(autouse=True)
    def sent(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What psycopg got past SQLAlchemy."""
        sent: list[str] = []
        do = psycopg_connection.do
        monkeypatch.setattr(
            psycopg_connection, "do", lambda c, step: sent.append(step.sql) or do(c, step)
        )
        return sent

    def test_it_begins_a_transaction_without_an_end(self, engine: Engine, sent: list[str]) -> None:
        with engine.connect() as connection:
            kept = create_one(connection, a_row())
            connection.commit()
            undone = create_one(connection, a_row())
            connection.rollback()
            assert len(sent) == 2
            assert row_of(connection, kept) is not None
            assert row_of(connection, undone) is None

    def test_an_sqlalchemy_error_undoes_a_savepoint(self, engine: Engine, sent: list[str]) -> None:
        with engine.begin() as connection:
            kept = create_one(connection, a_row())
            with (
                pytest.raises(IntegrityError, match="numbers_are_sane") as error,
                connection.begin_nested(),
            ):
                create_one(connection, on_terms(a_row(), priority=10))
            assert sent[1] == error.value.statement
            assert error.value.params["priority"] == 10
            assert row_of(connection, kept) is not None

    def test_sqlalchemy_knows_a_lost_connection(self, engine: Engine, sent: list[str]) -> None:
        with engine.connect() as connection, engine.connect() as other:
            pid = connection.connection.driver_connection.info.backend_pid
            other.execute(text("SELECT pg_terminate_backend(:pid, 9000)"), {"pid": pid})
            with pytest.raises(OperationalError) as lost:
                create_one(connection, a_row())
            assert len(sent) == 1
            assert lost.value.connection_invalidated
            assert connection.invalidated

    @pytest.mark.parametrize("whom", ["engine", "connection"])
    def test_a_listener_hears_of_it(self, engine: Engine, sent: list[str], whom: str) -> None:
        heard: list[str] = []
        heeded = create_engine(engine.url)
        with heeded.connect() as connection:
            target = {"engine": heeded, "connection": connection}[whom]
            event.listen(target, "before_cursor_execute", lambda *a: heard.append(a[2]))
            create_one(connection, a_row())
        heeded.dispose()
        assert (len(heard), sent) == (1, [])

    def test_an_echo_shows_it(
        self, engine: Engine, sent: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        echoing = create_engine(engine.url, echo=True)
        with echoing.connect() as connection:
            create_one(connection, a_row())
        echoing.dispose()
        assert sent == []
        assert "INSERT INTO task_pending" in caplog.text
