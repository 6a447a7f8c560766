"""Many rows by COPY, in order, with their instants."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from typing import Any
from uuid import RFC_4122

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from tasks_app import NewTask, create_task, create_tasks
from tasks_app.domain.operations import WAITING, BulkAction, parse_amendment
from tasks_app.domain.tasks.records import OnConflict
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event, Pool
from tasks_app.pool.dispatch.set_aside import sweep
from tasks_app.pool.runs.leases import release, renew, rescue_expired
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.tasks import create
from tasks_app.pool.tasks.amend import amend, change_payload, spread
from tasks_app.pool.tasks.browse import get
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.create import create_many, create_one
from tasks_app.pool.tasks.insert import copy_of
from tasks_app.pool.tasks.requeue import requeue
from tests.factory import LEASE, a_row, claimed_task, count, ending, on_terms, pending_task, row_of
from tests.pool.interleave import blocked, two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


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
    {"limit_key": ["bank:acme", 'tab\tline\nslash\\ quote" {comma,}', "NULL"], "weight": 7},
    {"headers": {"a": 'quote " slash \\ line \n'}},
    {"run_at": NOON + timedelta(days=2), "expires_at": NOON + timedelta(days=9)},
    {"delay": "90s", "timeout": 1, "hard_timeout": 2},
    {"retry": "5s,30s", "wait_first": True, "max_attempts": 7, "enabled": False},
]


def test_copied_rows_equal_inserted_ones(connection: Connection, statements: list[str]) -> None:
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


def test_copied_rows_due_at_once_have_one_instant_of_the_database(connection: Connection) -> None:
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


def test_a_delay_beside_due_tasks_counts_from_the_databases_clock(connection: Connection) -> None:
    now, later = create_many(connection, [a_row(), a_row(delay="1d")])
    first, second = row_of(connection, now), row_of(connection, later)
    assert second.due_at - first.due_at == timedelta(days=1)
    assert first.due_at == first.created_at == second.created_at


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize(
    "make", [create_one, lambda c, row, now: create_many(c, [row], now=now)[0]]
)
def test_a_day_of_delay_has_24_hours(connection: Connection, zone: str, make: Callable) -> None:
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


def test_keyed_rows_inserted_others_copied(connection: Connection, statements: list[str]) -> None:
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


def test_keyed_rows_of_many_kinds_are_inserted_as_if_alone(connection: Connection) -> None:
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


def test_a_refused_row_is_sqlalchemys_error_and_undoes_the_savepoint(engine: Engine) -> None:
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


PROCESSES, CREATES, STRICT_KEYS = 16, 40, 3
LOOK_EVERY_S = 0.002
VISIBLE = text("SELECT order_key, array_agg(id) FROM task_pending GROUP BY order_key")


def strict(connection: Connection, key: str = "k") -> int:
    return int(create_task(connection, "t", order_key=key, strict_order=True))


def test_the_second_producer_of_a_key_waits_for_the_first_ones_commit(engine: Engine) -> None:
    with two(engine) as (a, b):
        first = strict(a)
        waiting = blocked(engine, b, a, strict)
        a.commit()
        assert waiting.result() > first


def test_producers_of_other_keys_and_ones_not_strict_wait_for_nobody(engine: Engine) -> None:
    with two(engine) as (a, b):
        strict(a)
        assert strict(b, "other")
        assert create_task(b, "t", order_key="k")


def test_many_are_locked_in_one_order_before_any_has_an_id(engine: Engine) -> None:
    options = [{"order_key": key, "strict_order": True} for key in ("x", "y", "z")]
    new = [NewTask("t", None, given) for given in options]  # type: ignore[arg-type]
    with two(engine) as (a, b):
        first = create_tasks(a, new)
        waiting = blocked(engine, b, a, lambda c: create_tasks(c, new[::-1]))
        a.commit()
        assert min(waiting.result()) > max(first)


def produce(url: str, seed: int, *, strict_order: bool) -> None:
    dice = random.Random(seed)
    with psycopg.connect(url) as connection:
        for _ in range(CREATES):
            key = f"k{dice.randrange(STRICT_KEYS)}"
            create_task(connection, "t", order_key=key, strict_order=strict_order)
            connection.execute("SELECT pg_sleep(%s)", [dice.random() * 0.004])
            connection.rollback() if dice.random() < 0.1 else connection.commit()


def late_ones(engine: Engine, *, strict_order: bool) -> int:
    """How many tasks became visible after one of their key with a higher id had been visible."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    seen: dict[str, set[int]] = {f"k{n}": set() for n in range(STRICT_KEYS)}
    late = 0
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool, engine.connect() as watcher:
        ends = [pool.submit(produce, url, n, strict_order=strict_order) for n in range(PROCESSES)]
        over = False
        while not over:
            over = not wait(ends, LOOK_EVERY_S).not_done
            for key, ids in watcher.execute(VISIBLE).all():
                late += sum(1 for i in ids if i not in seen[key] and i < max(seen[key], default=0))
                seen[key].update(ids)
            watcher.rollback()
        for end in ends:
            end.result()
    assert sum(map(len, seen.values())) > PROCESSES * CREATES / 2
    return late


@pytest.mark.timeout(300)
@pytest.mark.test_all
def test_sixteen_producers_at_once_commit_in_the_order_of_their_ids(engine: Engine) -> None:
    assert late_ones(engine, strict_order=True) == 0


@pytest.mark.timeout(300)
@pytest.mark.test_all
def test_without_it_ids_become_visible_late_which_this_watcher_sees(engine: Engine) -> None:
    assert late_ones(engine, strict_order=False) > 0


CAUSE = Cause("E", "no")
HOUR = timedelta(hours=1)


def updated_at(connection: Connection, task_id: int) -> datetime | None:
    task = get(connection, task_id)
    assert task is not None
    shown = connection.execute(
        text("SELECT updated_at FROM task_all WHERE id = :id"), {"id": task_id}
    ).scalar_one()
    assert task.updated_at == shown
    return task.updated_at


@pytest.mark.parametrize("settle", [settle_one, lambda c, s, now: settle_group(c, [s], now=now)])
def test_it_is_the_instant_of_each_move(connection: Connection, settle: Any) -> None:
    task_id, now = pending_task(connection, now=NOON), NOON
    assert updated_at(connection, task_id) == NOON

    def ends(event: Event) -> None:
        nonlocal now
        now += HOUR
        task = claimed_task(connection, task_id, now=now)
        assert updated_at(connection, task_id) == now
        now += HOUR / 2
        renew(connection, [task.fence], LEASE, now=now - HOUR / 4)
        settle(connection, ending(task, event, wait=timedelta(0), cause=CAUSE), now=now)
        assert updated_at(connection, task_id) == now

    for back in (Event.RETRY, Event.SNOOZE):
        ends(back)
    for end in (Event.FAIL, Event.SKIP, Event.CANCEL, Event.SUCCEED):
        ends(end)
        now += HOUR
        requeue(connection, task_id, now=now)
        assert updated_at(connection, task_id) == now


def test_it_is_the_instant_at_which_a_claim_is_given_back(connection: Connection) -> None:
    given, lost = (claimed_task(connection, now=NOON) for _ in range(2))
    release(connection, [given.fence], now=NOON + HOUR)
    rescue_expired(connection, lease=LEASE, max_crashes=5, now=NOON + HOUR)
    assert updated_at(connection, given.task_id) == NOON + HOUR
    assert updated_at(connection, lost.task_id) == NOON + HOUR


def test_it_is_the_instant_of_a_cancel_or_a_sweep(connection: Connection) -> None:
    waiting, off = (pending_task(connection, now=NOON, enabled=e) for e in (True, False))
    running = claimed_task(connection, now=NOON).task_id
    for task_id in (waiting, running):
        cancel(connection, task_id, now=NOON + HOUR)
    sweep(connection, [off], now=NOON + HOUR)
    for task_id in (waiting, off, running):
        assert updated_at(connection, task_id) == NOON + HOUR


BEFORE = {BulkAction.RELEASE: BulkAction.HOLD, BulkAction.ENABLE: BulkAction.DISABLE}
WORDS: dict[BulkAction, dict[str, Any]] = {
    BulkAction.RESCHEDULE: {"at": NOON},
    BulkAction.REPRIORITISE: {"to_priority": 0},
    BulkAction.MOVE: {"to_queue": "slow"},
}


@pytest.mark.parametrize("action", sorted(WAITING))
def test_it_is_the_instant_an_operator_changed(connection: Connection, action: BulkAction) -> None:
    task_id = pending_task(connection, now=NOON, delay="9h")
    if action in BEFORE:
        amend(connection, BEFORE[action], [task_id], now=NOON)
    change = parse_amendment(action, WORDS.get(action, {}))
    amend(connection, action, [task_id], change, now=NOON + HOUR)
    assert updated_at(connection, task_id) == NOON + HOUR


def test_a_rate_an_edit_and_a_unique_key_change_it_too(connection: Connection) -> None:
    spread_out = pending_task(connection, now=NOON, delay="9h")
    spread(
        connection, BulkAction.RUN_NOW, [spread_out], timedelta(seconds=1), None, now=NOON + HOUR
    )
    assert updated_at(connection, spread_out) == NOON + HOUR

    waiting = pending_task(connection, now=NOON)
    failed = claimed_task(connection, now=NOON)
    settle_one(connection, ending(failed, Event.FAIL, cause=CAUSE), now=NOON)
    assert change_payload(connection, Pool.PENDING, waiting, "{}")
    assert change_payload(connection, Pool.ERROR, failed.task_id, "{}")
    for task_id in (waiting, failed.task_id):
        assert updated_at(connection, task_id) != NOON

    row = a_row(unique_key="k", on_conflict=OnConflict.REPLACE_PAYLOAD)
    held = create_one(connection, row, now=NOON)
    assert create_one(connection, row, now=NOON + HOUR) == held
    assert updated_at(connection, held) == NOON + HOUR
