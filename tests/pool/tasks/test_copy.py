"""Many at once: COPY writes the rows that INSERT would, on any connection, or INSERT does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.pool.tasks import create
from tasks_app.pool.tasks.create import create_many, create_one
from tasks_app.pool.tasks.insert import copy_of
from tests.factory import count, on_terms, row_of
from tests.pool.interleave import two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_row(name: str = "t", payload=None, **options) -> TaskRow:
    return validate_task(NewTask(name, payload, options), None, 65536)


@pytest.fixture
def statements(connection: Connection) -> list[str]:
    """What SQLAlchemy sent; COPY goes past it."""
    seen: list[str] = []
    event.listen(connection, "before_cursor_execute", lambda *a: seen.append(a[2]))
    return seen


def inserts(statements: list[str]) -> int:
    return sum("INSERT" in statement for statement in statements)


KINDS = [
    {},
    {"queue": "q", "priority": 0},
    {"biz_key": "tab\tline\nreturn\rslash\\N \\. é"},
    {"limit_key": ["bank:acme", 'tab\tline\nslash\\ quote" {comma,}', "NULL"]},
    {"headers": {"a": 'quote " slash \\ line \n'}},
    {"run_at": NOON + timedelta(days=2), "expires_at": NOON + timedelta(days=9)},
    {"delay": "90s", "timeout": 1, "hard_timeout": 2},
    {"retry": "5s,30s", "wait_first": True, "max_attempts": 7, "enabled": False},
]


def test_rows_of_many_kinds_are_copied_as_they_would_be_inserted(
    connection: Connection, statements: list[str]
) -> None:
    rows = [a_row(payload={"n": n}, **kind) for n, kind in enumerate(KINDS)]
    ones = [create_one(connection, row, now=NOON) for row in rows]
    before = inserts(statements)

    many = create_many(connection, rows, now=NOON)

    assert inserts(statements) == before
    assert many == sorted(many)
    for one, other in zip(ones, many, strict=True):
        first, second = dict(row_of(connection, one)._mapping), row_of(connection, other)._mapping
        first |= {key: second[key] for key in ("id", "idempotency_key")}
        assert first == second


def test_copied_rows_that_are_due_at_once_have_one_instant_by_the_databases_clock(
    connection: Connection,
) -> None:
    create_many(connection, [a_row()] * 3)

    row = connection.execute(
        text("SELECT DISTINCT created_at, due_at, scan_at, now() - due_at AS age FROM task_pending")
    ).one()
    assert row.created_at == row.due_at == row.scan_at
    assert abs(row.age) < timedelta(seconds=10)


def test_with_a_given_now_all_moments_are_written(connection: Connection) -> None:
    (task_id, *_) = create_many(connection, [a_row()] * 2, now=NOON)

    row = row_of(connection, task_id)
    assert row.created_at == row.due_at == row.scan_at == NOON


def test_a_delay_beside_tasks_that_are_due_counts_from_the_databases_clock(
    connection: Connection,
) -> None:
    now, later = create_many(connection, [a_row(), a_row(delay="1d")])

    first, second = row_of(connection, now), row_of(connection, later)
    assert second.due_at - first.due_at == timedelta(days=1)
    assert first.due_at == first.created_at == second.created_at


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize(
    "make", [create_one, lambda c, row, now: create_many(c, [row], now=now)[0]]
)
def test_a_day_of_delay_has_24_hours_even_when_the_clocks_change(
    connection: Connection, zone: str, make: Callable
) -> None:
    connection.execute(text(f"SET LOCAL TIME ZONE '{zone}'"))
    eve = datetime(2026, 3, 28, 12, tzinfo=UTC)

    task_id = make(connection, a_row(delay="1d"), now=eve)

    assert row_of(connection, task_id).due_at == eve + timedelta(days=1)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e300, 1e300)
JSON = st.recursive(
    LEAVES | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
KEYS = TEXT.filter(bool)


@pytest.mark.test_all
@given(st.lists(st.tuples(JSON, KEYS), min_size=1, max_size=4))
def test_whatever_is_copied_is_read_back(shared_engine: Engine, written: list) -> None:
    rows = [a_row(payload={"x": value}, biz_key=key) for value, key in written]
    with shared_engine.connect() as connection:
        ids = create_many(connection, rows)
        read = [row_of(connection, task_id) for task_id in ids]
        connection.rollback()

    assert [(row.payload["x"], row.biz_key) for row in read] == written


def test_every_copied_row_has_a_random_idempotency_key_of_its_own(connection: Connection) -> None:
    create_many(connection, [a_row()] * 2500)

    keys = connection.execute(text("SELECT idempotency_key FROM task_pending")).scalars().all()
    assert len(set(keys)) == 2500
    assert {(key.version, key.variant) for key in keys} == {(4, RFC_4122)}


def test_in_one_batch_keyed_rows_are_inserted_and_the_others_copied(
    connection: Connection, statements: list[str]
) -> None:
    holder = create_one(connection, a_row(unique_key="k1"))
    rows = [
        a_row(payload={"n": n}, unique_key=f"k{n}" if n % 2 else None, biz_key=f"b{n}")
        for n in range(6)
    ]
    before = inserts(statements)

    ids = create_many(connection, rows)

    assert inserts(statements) == before + 1
    assert [task_id.created for task_id in ids] == [True, False, True, True, True, True]
    assert ids[1] == holder
    assert [row_of(connection, i).payload["n"] for i in ids if i != holder] == [0, 2, 3, 4, 5]


def test_keyed_rows_of_many_kinds_are_inserted_as_they_would_be_alone(
    connection: Connection,
) -> None:
    rows = [a_row(payload={"n": n}, **kind) for n, kind in enumerate(KINDS * 2)]
    keyed = [row._replace(unique_key=f"k{n}") for n, row in enumerate(rows)]
    others = [row._replace(unique_key=f"o{n}") for n, row in enumerate(rows)]

    many = create_many(connection, keyed, now=NOON)

    for task_id, row in zip(many, others, strict=True):
        first = dict(row_of(connection, create_one(connection, row, now=NOON))._mapping)
        second = row_of(connection, task_id)._mapping
        assert second["unique_key"] == f"k{row.unique_key[1:]}"
        first |= {key: second[key] for key in ("id", "idempotency_key", "unique_key")}
        assert first == second


def test_ids_are_right_when_others_take_some_meanwhile(connection: Connection) -> None:
    """Every second id goes to somebody else."""
    connection.execute(text("ALTER SEQUENCE task_pending_id_seq INCREMENT BY 2"))

    ids = create_many(connection, [a_row(payload={"n": n}) for n in range(5)])

    assert ids[-1] - ids[0] == 8
    assert [row_of(connection, task_id).payload["n"] for task_id in ids] == list(range(5))


def test_an_empty_copy_is_none(connection: Connection, statements: list[str]) -> None:
    assert create_many(connection, []) == []
    assert statements == []


def test_a_row_that_the_table_refuses_is_sqlalchemys_error_and_undoes_the_savepoint(
    engine: Engine,
) -> None:
    with two(engine) as (a, b):
        kept = create_one(a, a_row())
        savepoint = a.begin_nested()
        with pytest.raises(IntegrityError, match="numbers_are_sane"):
            create_many(a, [a_row(), on_terms(a_row(), priority=10)])
        savepoint.rollback()
        a.commit()

        assert count(b) == 1
        assert row_of(b, kept) is not None


def test_a_connection_that_is_lost_within_a_copy_is_known_to_sqlalchemy(engine: Engine) -> None:
    rows = [a_row(payload={"n": n}) for n in range(5)]
    with engine.connect() as connection, engine.connect() as other:
        pid = connection.connection.driver_connection.info.backend_pid

        class Cutting(list):
            def __iter__(self):
                other.execute(text("SELECT pg_terminate_backend(:pid, 9000)"), {"pid": pid})
                return super().__iter__()

        sql, pieces = copy_of(range(5), rows, NOON)
        plan = iter([create.Copy(sql, Cutting(pieces))])
        with pytest.raises(OperationalError) as lost:
            create.run_statements(connection, (step for step in plan))

        assert lost.value.connection_invalidated
        assert connection.invalidated


def test_a_driver_without_copy_gets_inserts_in_words_of_its_own(
    connection: Connection, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.dialect, "driver", "another")
    rows = [a_row(payload={"n": n}, **kind) for n, kind in enumerate(KINDS)]

    ids = create_many(connection, [*rows, a_row(unique_key="k")], now=NOON)
    one = create_one(connection, rows[5], now=NOON)
    again = create_one(connection, a_row(unique_key="k"))

    assert inserts(statements) == 3
    numbers = [row_of(connection, task_id).payload.get("n") for task_id in ids]
    assert numbers == [*range(len(KINDS)), None]
    assert row_of(connection, one).due_at == row_of(connection, ids[5]).due_at
    assert (again, again.created) == (ids[-1], False)


def test_a_pipeline_gets_inserts_for_there_is_no_copy_in_it(engine: Engine) -> None:
    url = make_url(engine.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as raw, raw.pipeline():
        ids = create_many(raw, [a_row(payload={"n": n}) for n in range(3)])

        read = raw.execute("SELECT id, payload FROM task_pending ORDER BY id").fetchall()

    assert read == [(task_id, {"n": n}) for n, task_id in enumerate(ids)]


def test_an_async_connection_of_sqlalchemy_copies_too(engine: Engine) -> None:
    async def run() -> list[int]:
        asynchronous = create_async_engine(engine.url)
        async with asynchronous.begin() as connection:
            ids = await connection.run_sync(create_many, [a_row()] * 3)
            with pytest.raises(IntegrityError, match="numbers_are_sane"):
                async with connection.begin_nested():
                    await connection.run_sync(create_many, [on_terms(a_row(), priority=10)])
        await asynchronous.dispose()
        return ids

    ids = asyncio.run(run())

    with engine.connect() as connection:
        assert count(connection) == 3
        assert all(row_of(connection, task_id) for task_id in ids)
