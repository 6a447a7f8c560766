"""What the end of a run must answer and write: settle, give back, rescue; under its fence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tests.pool.stateful.world import Expected, Row, View

AT_ONCE = timedelta(0)
SOON = timedelta(seconds=5)
TARGETS = {
    "succeed": State.SUCCEEDED,
    "fail": State.FAILED,
    "skip": State.SKIPPED,
    "cancel": State.CANCELLED,
    "snooze": State.PENDING,
    "release": State.PENDING,
}


def holds(row: Row | None, fence: Fence) -> bool:
    """Whether this is the run that the fence is of."""
    return (
        row is not None
        and row.state is State.RUNNING
        and (row.attempt, row.token) == (fence.attempt, fence.token)
    )


def back(row: Row, due: datetime, **changes) -> Row:
    """Return it to PENDING; who was told to stop goes on to CANCELLED, as due as it was."""
    if row.cancel_requested_at:
        return over(row, State.CANCELLED, **changes)
    return row.but(
        **changes,
        state=State.PENDING,
        due_at=due,
        scan_at=due,
        parked=None,
        owner=None,
        token=None,
        lease_until=None,
    )


def over(row: Row, state: State, error: str | None = None, **changes) -> Row:
    """Move it to the pool where it stays; it keeps who ran it last, and the lease goes."""
    gone = {"scan_at": None, "parked": None, "token": None, "lease_until": None}
    if row.held_due_at:
        gone |= {"due_at": row.held_due_at, "held_due_at": None}
    return row.but(**gone, **changes, state=state, error=error)


class Ending(NamedTuple):
    """How a run is to end."""

    fence: Fence
    word: str
    wait: timedelta = AT_ONCE


def settled(row: Row, ending: Ending, now: datetime) -> Row:
    word, charge = ending.word, {}
    if word in ("fail", "charge"):
        charge = {"failures": row.failures + 1}
    if word == "charge":
        last = row.failures + 1 >= row.max_attempts
        word = "fail" if last else "snooze"
        charge["retry_level"] = row.retry_level + (0 if last else 1)
    target = TARGETS[word]
    error = None if ending.word in ("succeed", "snooze", "release") else "E: no"
    if row.cancel_requested_at and target in (State.PENDING, State.FAILED):
        return over(row, State.CANCELLED, error, **charge)
    if target is State.PENDING:
        return back(row, now + ending.wait, **charge)
    return over(row, target, error, **charge, result={"ok": 1} if word == "succeed" else None)


def _history(row: Row, ending: Ending) -> Counter:
    if ending.word == "charge":
        event = "fail" if row.failures + 1 >= row.max_attempts else "retry"
        return Counter([(event, row.id, row.attempt)])
    return Counter([("fail", row.id, row.attempt)] if ending.word == "fail" else [])


def settle(view: View, endings: Sequence[Ending], now: datetime, *, patient: bool) -> Expected:
    expected = Expected({})
    for ending in sorted(endings):
        row = view.pending(ending.fence.task_id)
        if row is None or not holds(row, ending.fence):
            continue
        if patient:
            view.wait_for(row.id)
        elif not view.free(row.id):
            continue
        after = settled(row, ending, now)
        expected.changes[row.id] = after
        expected.answer[row.id] = after.state
        expected.notes += _history(row, ending)
    return expected


def succeed(view: View, fence: Fence) -> Expected:
    """In the transaction of its effect: one, if the fence holds, and none otherwise."""
    row = view.pending(fence.task_id)
    if row is None or not holds(row, fence):
        return Expected(answer=False)
    view.wait_for(row.id)
    after = over(row, State.SUCCEEDED, result={"ok": 1})
    effect = Counter([("effect", row.id, row.attempt)])
    return Expected(answer=True, changes={row.id: after}, notes=effect)


def each_held(
    view: View, fences: Sequence[Fence], change: Callable[[Row], Row], *, patient: bool = False
) -> Expected:
    """Change the rows whose fence holds: lowest id first, or past what others hold."""
    expected = Expected({})
    for fence in sorted(fences):
        row = view.pending(fence.task_id)
        if row is None or not holds(row, fence):
            continue
        if patient:
            view.wait_for(row.id)
        elif not view.free(row.id):
            continue
        expected.changes[row.id] = expected.answer[row.id] = change(row)
    return expected


def rescued(row: Row, due: datetime, most: int, kind: str) -> Row:
    crashes = row.crashes + 1
    error = f"{kind} ({crashes} of at most {most} times)."
    if row.at_most_once:
        error = "outcome unknown: The worker vanished while an at_most_once task ran."
    if row.cancel_requested_at:
        return over(row, State.CANCELLED, error, crashes=crashes)
    if row.at_most_once or crashes >= most:
        return over(row, State.FAILED, error, crashes=crashes)
    return back(row, due, crashes=crashes)


def latest(row: Row, lease: timedelta) -> timedelta:
    """The longest distance at which a rescued task comes back."""
    farthest = lease * 2 ** min(row.crashes + 1, 10)
    return min(farthest, SOON) if row.crashes == 0 else farthest
