"""The short way to claim: the same rows as the long one, or none at all."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.queues import check_queue_options
from tasks_app.pool.flow_control import circuit_breakers, queue_settings
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.runs.claim import Claimer, claim, claim_unhindered
from tests.factory import claimer, pending_task, row_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def taken(connection: Connection, ids: list[int], who: Claimer | None = None) -> list[int]:
    found = claim_unhindered(connection, ids, who or claimer(), uuid4(), now=NOON)
    return [task.task_id for task in found]


def said(connection: Connection, **options: Any) -> None:
    queue_settings.change_queue(connection, "other", check_queue_options(options))


def test_it_takes_and_tells_the_same_as_the_long_way(connection: Connection) -> None:
    options = {
        "payload": {"é": [1]},
        "biz_key": "order:1",
        "retry": "5s,30s",
        "timeout": 1,
        "hard_timeout": 2,
        "headers": {"trace": "x"},
        "failures": 1,
        "now": NOON,
    }
    one, other = (pending_task(connection, **options) for _ in range(2))
    token = uuid4()

    (long,) = claim(connection, [one], claimer(), token, now=NOON + HOUR)
    (short,) = claim_unhindered(connection, [other], claimer(), token, now=NOON + HOUR)

    key = row_of(connection, other).idempotency_key
    assert short == long._replace(fence=long.fence._replace(task_id=other), key_text=str(key))
    theirs, ours = (row_of(connection, i)._asdict() for i in (one, other))
    for column in ("id", "idempotency_key"):
        del theirs[column], ours[column]
    assert ours == theirs


def test_it_takes_a_whole_message_in_its_order_and_no_row_twice(connection: Connection) -> None:
    ids = [pending_task(connection, now=NOON) for _ in range(5)]
    message = [ids[n] for n in (3, 0, 4, 1, 2)]

    assert taken(connection, message) == message
    assert taken(connection, message) == []


@pytest.mark.parametrize(
    "row",
    [
        {"enabled": False},
        {"run_at": NOON + HOUR},
        {"run_at": NOON - HOUR, "expires_at": NOON},
        {"name": "strange"},
        {"at_most_once": True},
        {"crashes": 1},
        {"order_key": "k"},
        {"limit_key": "k"},
    ],
)
def test_a_row_that_is_not_there_to_take_with_others_is_left(
    connection: Connection, row: dict[str, Any]
) -> None:
    left, other = pending_task(connection, **row, now=NOON), pending_task(connection, now=NOON)

    assert taken(connection, [left, other]) == [other]
    assert taken(connection, [left]) == []


def test_what_a_handler_runs_at_most_once_is_left(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON)

    assert taken(connection, [task_id], claimer(at_most_once=True)) == []


Hindrance = Callable[[Connection], object]
ELSEWHERE: dict[str, Hindrance] = {
    "a pause": lambda c: pause(c, "other", now=NOON),
    "a window that is open": lambda c: said(c, windows=["00:00-24:00"]),
    "a gate that is shut": lambda c: (
        said(c, running_below=5),
        c.execute(text("UPDATE task_queue SET shut = 'running'")),
    ),
    "a default of a queue": lambda c: said(c, timeout=5),
    "a limit of a queue": lambda c: set_limit(c, Limit(GateKind.QUEUE, "other", 1)),
    "a limit of a name": lambda c: set_limit(c, Limit(GateKind.NAME, "other", 1)),
}


def opened(connection: Connection) -> None:
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["other"]}, ["other"])
    circuit_breakers.override(connection, "bank", BreakerMode.OPEN)


ELSEWHERE["a breaker"] = opened


@pytest.mark.parametrize("hindrance", ELSEWHERE.values(), ids=ELSEWHERE)
def test_it_takes_nothing_while_anything_stands_before_anybody(
    connection: Connection, hindrance: Hindrance
) -> None:
    task_id = pending_task(connection, now=NOON)
    hindrance(connection)

    assert taken(connection, [task_id]) == []
    (task,) = claim(connection, [task_id], claimer(), uuid4(), now=NOON)
    assert task.task_id == task_id


def test_what_holds_nobody_any_more_hinders_nobody(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON)
    pause(connection, "other", resume_at=NOON, now=NOON - HOUR)
    said(connection, running_below=5)
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["other"]}, ["other"])
    set_limit(connection, Limit(GateKind.KEY, "tenant:*", 1))

    assert taken(connection, [task_id]) == [task_id]
