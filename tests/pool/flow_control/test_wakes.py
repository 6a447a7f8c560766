"""Who is woken when there is room: one who may run now, whoever stands before it in line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit
from tasks_app.domain.queues import parse_window
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control import (
    circuit_breakers,
    order_and_limits,
    queue_settings,
    waiting_list,
)
from tasks_app.pool.flow_control.capacity import capacities_of, insert_gates, lock_buckets
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.flow_control.admission import let_pass
from tests.factory import claimer, ending, pending_task, row_of

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
KEY = Gate(GateKind.KEY, "l")
CLAIMER = claimer("t", "bank.pay")


def shut(connection: Connection) -> None:
    queue_settings.change_queue(connection, "a", {"windows": (parse_window("22:00-06:00"),)})


def broken(connection: Connection) -> None:
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["bank.pay"]}, ["bank.pay", "t"])
    circuit_breakers.override(connection, "bank", BreakerMode.OPEN)


STOPS: dict[str, Callable[[Connection], object]] = {
    "a paused queue": lambda connection: pause(connection, "a"),
    "a closed window": shut,
    "an open breaker": broken,
}


@pytest.fixture
def limited(connection: Connection) -> Connection:
    set_limit(connection, Limit(GateKind.KEY, "l", 1))
    return connection


def made(connection: Connection, number: int, name: str = "t", **options: Any) -> list[int]:
    options = {"limit_key": "l", "now": NOON, **options}
    return [int(pending_task(connection, name, **options)) for _ in range(number)]


def passing(connection: Connection, *ids: int, now: datetime = NOON) -> list[ClaimedTask]:
    found = order_and_limits.waiting(connection, ids, now=now)
    insert_gates(connection, found.gates)
    return let_pass(connection, found, CLAIMER, uuid4(), now=now)[0]


def ended(connection: Connection, run: ClaimedTask, now: datetime = NOON) -> list[int]:
    """Those who hear that they may run, now that this one is over."""
    settle_one(connection, ending(run))
    return woken(connection, {KEY: 1}, now)


def woken(
    connection: Connection, most: dict[Gate, int] | None = None, now: datetime = NOON
) -> list[int]:
    limits = order_and_limits.read_limits(connection)
    rooms = capacities_of(connection, lock_buckets(connection, [KEY]), limits, now=now)
    return [
        task_id for _, task_id in waiting_list.wake_tasks(connection, rooms, limits, most, now=now)
    ]


def reasons(connection: Connection, ids: Sequence[int]) -> set[str | None]:
    return {row_of(connection, task_id).parked for task_id in ids}


@pytest.mark.parametrize("stop", STOPS)
def test_a_wake_up_passes_over_those_that_stand_still(limited: Connection, stop: str) -> None:
    (first,) = made(limited, 1)
    still = made(limited, 20, "bank.pay", queue="a")
    others = made(limited, 3)
    (run,) = passing(limited, first, *still, *others)
    STOPS[stop](limited)

    assert ended(limited, run) == others[:1]
    assert [task.task_id for task in passing(limited, others[0])] == others[:1]
    assert reasons(limited, still) == {None}, "they wait in their queue, for its sake alone"
    assert reasons(limited, others[1:]) == {"limit key l"}


@pytest.mark.parametrize("barred", ["enabled = false", "expires_at = '2026-06-01T11:00Z'"])
def test_a_wake_up_passes_over_those_that_never_run(limited: Connection, barred: str) -> None:
    first, *others = made(limited, 9)
    (run,) = passing(limited, first, *others)
    late = text(f"UPDATE task_pending SET {barred} WHERE id = ANY(:ids)")
    limited.execute(late, {"ids": others[:5]})

    assert ended(limited, run) == others[5:6]
    assert reasons(limited, others[:5]) == {None}


def test_a_wake_up_passes_over_those_that_another_gate_holds(limited: Connection) -> None:
    """They stand in line of the limit, and their order key was taken since."""
    (head,) = made(limited, 1, order_key="k", limit_key=None, delay="1m")
    (first,) = made(limited, 1)
    ordered = made(limited, 5, order_key="k")
    others = made(limited, 2)
    (run,) = passing(limited, first, *ordered[:1], *others)
    limited.execute(
        text(
            "UPDATE task_pending SET parked = 'limit key l', parked_kind = 'key', parked_for = 'l',"
            " scan_at = :at WHERE id = ANY(:ids)"
        ),
        {"at": NOON + timedelta(days=1), "ids": ordered},
    )
    (_,) = passing(limited, head, now=NOON + MINUTE)

    assert ended(limited, run, NOON + MINUTE) == others[:1]
    assert reasons(limited, ordered) == {None}


@pytest.mark.test_all
def test_of_a_very_long_line_that_stands_still_the_rest_is_read_soon(limited: Connection) -> None:
    (first,) = made(limited, 1)
    (run,) = passing(limited, first)
    columns = "name, queue, limit_key, due_at, scan_at, parked_kind, parked_for"
    line = f"INSERT INTO task_pending ({columns})"
    held = "SELECT 't', 'a', 'l', :now, CAST(:now AS timestamptz) + interval '1d', 'key', 'l'"
    values = {
        "now": NOON,
        "number": sum(n * waiting_list.FARTHER + 1 for n in range(waiting_list.MOST_READS)) + 1,
    }
    limited.execute(text(f"{line} {held} FROM generate_series(1, :number)"), values)
    (other,) = made(limited, 1)
    assert passing(limited, other) == []
    pause(limited, "a")

    assert ended(limited, run) == []
    soon = limited.execute(text("SELECT look_at FROM task_gate")).scalar_one()
    assert soon - NOON <= timedelta(seconds=0.05)
    assert woken(limited) == [other]


def test_a_wake_up_that_nobody_used_is_followed_by_another_after_a_second(
    limited: Connection,
) -> None:
    first, *others = made(limited, 4)
    (run,) = passing(limited, first, *others)
    assert ended(limited, run) == others[:1]

    look_at = limited.execute(text("SELECT look_at FROM task_gate")).scalar_one()

    assert look_at == NOON + timedelta(seconds=1)
    assert woken(limited, now=look_at) == others[1:2]


def test_behind_a_head_that_waits_for_its_retry_it_is_looked_when_that_expires(
    connection: Connection,
) -> None:
    until = NOON + timedelta(seconds=10)
    (head,) = made(connection, 1, order_key="k", limit_key=None, expires_at=until)
    (run,) = passing(connection, head)
    settle_one(connection, ending(run, Event.RETRY, wait=timedelta(hours=1)), now=NOON)
    (behind,) = made(connection, 1, order_key="k", limit_key=None)
    assert passing(connection, behind) == []

    look_at = connection.execute(text("SELECT look_at FROM task_gate")).scalar_one()

    assert look_at == until
    assert passing(connection, behind, now=until) == []  # it is held until it is looked at
    order = Gate(GateKind.ORDER, "k")
    rooms = capacities_of(connection, [order], order_and_limits.read_limits(connection), now=until)
    assert waiting_list.wake_tasks(
        connection, rooms, order_and_limits.read_limits(connection), now=until
    ) == [("default", behind)]


def test_a_gate_wakes_nobody_of_another_key(limited: Connection) -> None:
    set_limit(limited, Limit(GateKind.KEY, "other", 0))
    first, behind = made(limited, 2)
    (run,) = passing(limited, first)
    (other,) = made(limited, 1, limit_key="other", priority=0)
    assert passing(limited, other, behind) == []

    assert ended(limited, run) == [behind]
    assert reasons(limited, [other]) == {"limit key other"}
