"""What people do to a task that waits, and what becomes of its runs: acts on one id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine

from tasks_app import (
    cancel_task,
    disable_task,
    enable_task,
    hold_task,
    move_task,
    release_task,
    reprioritise_task,
    reschedule_task,
    run_task_now,
)
from tasks_app.domain.tasks.run import Cause, ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.leases import release, rescue_claims
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.api.amend_waiting import edit_payload
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tests.factory import LEASE, claimed_task, ending, pending_task, pool_of_task

Act = Callable[[Connection, int], Any]
KNOWN = Registry()
HALF_AN_HOUR = timedelta(minutes=30)


@handler("t", registry=KNOWN)
def known(ctx: TaskContext, payload: dict) -> None: ...


WAITING: dict[str, Act] = {
    "run-now": run_task_now,
    "reschedule": partial(reschedule_task, delay="2h"),
    "reprioritise": partial(reprioritise_task, to_priority=0),
    "move": partial(move_task, to_queue="slow"),
    "hold": hold_task,
    "release": release_task,
    "enable": enable_task,
    "disable": disable_task,
}
EDIT: Act = partial(edit_payload, payload={"n": 2}, registry=KNOWN)
VERBS: dict[str, Act] = {**WAITING, "edit": EDIT, "cancel": cancel_task}


def ended(event: Event) -> Callable[[Connection, ClaimedTask], Any]:
    return lambda c, t: settle_one(c, ending(t, event, wait=HALF_AN_HOUR))


LEAVES: dict[str, Callable[[Connection, ClaimedTask], Any]] = {
    "claimed": lambda c, t: None,
    "succeeded": ended(Event.SUCCEED),
    "failed": ended(Event.FAIL),
    "retried": ended(Event.RETRY),
    "snoozed": ended(Event.SNOOZE),
    "given back": lambda c, t: release(c, [t.fence]),
    "rescued": lambda c, t: rescue_claims(c, [t.fence], lease=LEASE, max_crashes=1),
}
"""What becomes of a run; all that fits between the look of a verb and its lock."""


def run(leave: Callable[[Connection, ClaimedTask], Any], connection: Connection, id_: int) -> None:
    """Run a task, after others made it fit to be claimed."""
    for verb in (release_task, enable_task, run_task_now):
        verb(connection, id_)
    leave(connection, claimed_task(connection, id_))


RUNS: dict[str, Act] = {word: partial(run, leave) for word, leave in LEAVES.items()}


def failed_task(
    connection: Connection,
    kind: str = "builtins.E",
    message: str = "m",
    *,
    traceback: str | None = None,
    **options: Any,
) -> int:
    task = claimed_task(connection, **options)
    cause = Cause(kind, message, traceback)
    settle_one(connection, ending(task, Event.FAIL, cause=cause))
    return task.task_id


def make(engine: Engine, number: int, **options: Any) -> list[int]:
    with engine.begin() as connection:
        return [int(pending_task(connection, **options)) for _ in range(number)]


def pools(engine: Engine, ids: list[int]) -> Counter[str | None]:
    with engine.connect() as connection:
        return Counter(pool_of_task(connection, one) for one in ids)
