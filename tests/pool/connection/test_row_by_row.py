"""One row that the database refuses stops no other, whichever statement comes upon it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.config.retention import Keep
from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit
from tasks_app.pool import retention
from tasks_app.pool.connection.row_by_row import Refusal, refusals, row_by_row
from tasks_app.pool.dispatch.set_aside import park_tasks, sweep, sweep_all
from tasks_app.pool.flow_control import circuit_breakers, order_and_limits, waiting_list
from tasks_app.pool.flow_control.capacity import capacities_of, insert_gates, lock_buckets
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.flow_control.waiting_list import park_at_gates
from tasks_app.pool.retention import Mark
from tasks_app.pool.runs.leases import release, rescue_claims, rescue_expired
from tasks_app.pool.runs.settle import settle_each
from tasks_app.pool.tables import ERROR
from tests.cases import in_one_test
from tests.factory import LEASE, claimed_task, ending, pending_task, unknown
from tests.pool.database import NAME, day_of, failed, finished, old_day

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OVER = NOON + LEASE + timedelta(seconds=1)
KEY = Gate(GateKind.KEY, "l")
ROWS = 5
POISON = """
    CREATE FUNCTION poisoned() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF OLD.id = {id} THEN
            RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}';
        END IF;
        IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER poisoned BEFORE UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION poisoned()
"""


def poison(connection: Connection, task_id: int, table: str, state: str = "23514") -> None:
    statement = POISON.format(id=task_id, table=table, state=state)
    connection.execute(text(statement.replace(":=", r"\:=")))


def claims(connection: Connection) -> list[Any]:
    return [
        claimed_task(connection, pending_task(connection, now=NOON), now=NOON) for _ in range(ROWS)
    ]


def tasks(connection: Connection, **options: Any) -> list[int]:
    return [int(pending_task(connection, now=NOON, **options)) for _ in range(ROWS)]


def late(connection: Connection) -> list[int]:
    return tasks(connection, expires_at=NOON + timedelta(seconds=1))


def limited(connection: Connection) -> list[int]:
    set_limit(connection, Limit(GateKind.KEY, "l", 1))
    return tasks(connection, limit_key="l")


def held_by_gate(connection: Connection, ids: Sequence[int] = ()) -> list[int]:
    ids = ids or limited(connection)
    limits = order_and_limits.read_limits(connection)
    insert_gates(connection, [KEY])
    rooms = capacities_of(connection, lock_buckets(connection, [KEY]), limits, now=NOON)
    park_at_gates(connection, {KEY: ids}, rooms, limits, now=NOON)
    return list(ids)


def woken(connection: Connection, _ids: Sequence[int]) -> None:
    """With room for one, in whose place the refused one stands."""
    for _ in range(ROWS - 1):
        limits = order_and_limits.read_limits(connection)
        rooms = capacities_of(connection, lock_buckets(connection, [KEY]), limits, now=NOON)
        waiting_list.wake_tasks(connection, rooms, limits, careful=True, now=NOON)


def broken(connection: Connection) -> list[int]:
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["t"]}, ["t"])
    circuit_breakers.override(connection, "bank", BreakerMode.OPEN, now=NOON)
    return tasks(connection)


def held_by_breaker(connection: Connection) -> list[int]:
    ids = broken(connection)
    circuit_breakers.hold_tasks(connection, ids, now=NOON)
    return ids


def let_through(connection: Connection) -> list[int]:
    ids = held_by_breaker(connection)
    circuit_breakers.release_tasks(connection, "bank", ROWS, marked=True, now=NOON)
    return ids


def a_day(connection: Connection) -> list[int]:
    day = old_day(connection).day
    return [finished(connection, "t", day + timedelta(hours=1)) for _ in range(ROWS)]


def thin(connection: Connection, _ids: Sequence[int]) -> None:
    retention.thin_partition(connection, day_of(connection), Mark(names=("t",)))


RUNNING, PENDING, PARKED = "state = 'RUNNING'", "true", "parked IS NOT NULL"
HERE = "true"


class Case(NamedTuple):
    make: Callable[[Connection], list[Any]]
    act: Callable[[Connection, Any], object]
    stays: str
    """The condition that a row is as it was."""
    table: str = "task_pending"


KEPT = Keep(timedelta(days=1), {})
CASES = {
    "rescue of what is over": Case(
        claims, lambda c, _: rescue_expired(c, lease=LEASE, max_crashes=5, now=OVER), RUNNING
    ),
    "rescue of claims": Case(
        claims,
        lambda c, made: rescue_claims(c, [t.fence for t in made], lease=LEASE, max_crashes=5),
        RUNNING,
    ),
    "release": Case(claims, lambda c, made: release(c, [t.fence for t in made]), RUNNING),
    "settling": Case(claims, lambda c, made: settle_each(c, [ending(t) for t in made]), RUNNING),
    "sweep of what the scan found": Case(late, lambda c, ids: sweep(c, ids, now=OVER), HERE),
    "sweep of all": Case(late, lambda c, _: sweep_all(c, 100, now=OVER), HERE),
    "parking": Case(
        tasks, lambda c, ids: park_tasks(c, ids, unknown("t"), LEASE, now=NOON), "parked IS NULL"
    ),
    "holding at a gate": Case(limited, held_by_gate, "parked IS NULL"),
    "waking at a gate": Case(held_by_gate, woken, PARKED),
    "holding at a breaker": Case(
        broken, lambda c, ids: circuit_breakers.hold_tasks(c, ids, now=NOON), "parked IS NULL"
    ),
    "letting go at a breaker": Case(
        held_by_breaker,
        lambda c, _: circuit_breakers.release_tasks(c, "bank", 100, marked=False, now=NOON),
        PARKED,
    ),
    "unmarking at a breaker": Case(
        let_through, lambda c, _: circuit_breakers.unmark_released(c, "bank"), PARKED
    ),
    "pruning of errors": Case(
        lambda c: [failed(c, now=NOON) for _ in range(ROWS)],
        lambda c, _: retention.delete_old(c, ERROR, KEPT, now=NOON + timedelta(days=2)),
        HERE,
        "task_error",
    ),
    "pruning of a day": Case(a_day, thin, HERE, NAME),
}


@in_one_test("name", CASES)
def test_one_refused_row_stops_no_other_and_is_named(
    connection: Connection, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, act, stays, table = CASES[name]
    caplog.clear()
    with connection.begin_nested() as trial:
        made = make(connection)
        ids = [getattr(each, "task_id", each) for each in made]
        poison(connection, ids[0], table)

        act(connection, made)

        left = text(f"SELECT id FROM {table} WHERE id = ANY(:ids) AND {stays}")
        assert connection.execute(left, {"ids": ids}).scalars().all() == ids[:1]
        (told,) = refusals(connection, now=NOON)
        assert (told.rows, told.why) == (str(ids[0]), "CheckViolation 23514")
        assert f"The database refuses {told.what}: {ids[0]} (" in caplog.text
        trial.rollback()


def test_more_refused_rows_than_are_read_do_not_hide_the_others(connection: Connection) -> None:
    made = claims(connection)
    ids = [task.task_id for task in made]
    poison(connection, ids[0], "task_pending")
    moved = rescue_expired(connection, lease=LEASE, max_crashes=5, most=1, now=OVER)
    assert list(moved) == [ids[1]]


def test_what_is_nobodys_row_is_raised(connection: Connection) -> None:
    def forbidden(_rows: Sequence[int]) -> None:
        connection.exec_driver_sql("SELECT no_such_column FROM task_pending")

    with pytest.raises(DBAPIError):
        row_by_row(connection, [1, 2], forbidden, "this")
    assert refusals(connection) == []


def test_many_refusals_are_noted(connection: Connection, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_rows: Sequence[int]) -> None:
        connection.exec_driver_sql("SELECT 1 / 0")

    assert row_by_row(connection, range(1, 9), refuse, "this", now=NOON) == []
    rows, why = "1, 2, 3, 4, 5 and 3 more", "DivisionByZero 22012"
    assert refusals(connection, now=NOON) == [Refusal("this", rows, why, NOON)]
    assert [r.levelno for r in caplog.records] == [logging.ERROR]
    assert refusals(connection, now=NOON + timedelta(hours=2)) == []


def test_whatever_a_trigger_raises_is_of_one_row(connection: Connection) -> None:
    """As ASSERT does, and SELECT INTO STRICT."""
    for ends in ("ASSERT false", "RAISE no_data_found", "RAISE 'no'"):

        def refuse(_rows: Sequence[int], ends: str = ends) -> None:
            connection.exec_driver_sql(f"DO $$ BEGIN {ends}; END $$")

        assert row_by_row(connection, [1], refuse, ends, now=NOON) == []
    whys = [each.why for each in refusals(connection, now=NOON)]
    assert sorted(whys) == ["AssertFailure P0004", "NoDataFound P0002", "RaiseException P0001"]


def test_a_role_without_it_logs(connection: Connection, caplog: pytest.LogCaptureFixture) -> None:
    """As an admin's, who leaves a breaker to the outcomes again."""

    def refuse(_rows: Sequence[int]) -> None:
        connection.exec_driver_sql("SELECT 1 / 0")

    with connection.begin_nested() as trial:
        connection.exec_driver_sql("CREATE ROLE looks_only; SET LOCAL ROLE looks_only")
        assert row_by_row(connection, [7], refuse, "this") == []
        trial.rollback()
    assert "The database refuses this: 7 (DivisionByZero 22012)" in caplog.text
