"""What must become of claims, runs and tasks that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from tasks_app.domain.operations import Amendment, BulkAction
from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tests.pool.stateful.world import Expected, Row, View


class Worker(NamedTuple):
    """A child, and its handlers: how often each is tried, and whether it is tried again at all."""

    owner: str
    handlers: dict[str, tuple[int, bool]]

    def once(self, row: Row) -> bool:
        return self.handlers[row.name][1] if row.at_most_once is None else row.at_most_once

    def alone(self, row: Row) -> bool:
        return row.crashes > 0 or self.once(row)


def can_run(view: View, row: Row, worker: Worker, now: datetime) -> bool:
    return (
        row.state is State.PENDING
        and row.order_key is None
        and row.name in worker.handlers
        and row.enabled
        and row.due_at <= now
        and (row.expires_at is None or row.expires_at > now)
        and not view.stands_still(row.queue)
        and view.free(row.id)
    )


def claimed(row: Row, worker: Worker, token: UUID, lease: timedelta, now: datetime) -> Row:
    return row.but(
        state=State.RUNNING,
        attempt=row.attempt + 1,
        token=token,
        owner=worker.owner,
        lease_until=now + lease,
        started_at=now,
        parked=None,
        max_attempts=row.max_attempts or worker.handlers[row.name][0],
        at_most_once=worker.once(row),
    )


def claim(view: View, ids: Sequence[int], worker: Worker, token, lease, now) -> Expected:
    rows = [view.pending(task_id) for task_id in sorted(set(ids))]
    there = [row for row in rows if row and can_run(view, row, worker, now)]
    taken = [row for row in there if not worker.alone(row)] or there[:1]
    after = {row.id: claimed(row, worker, token, lease, now) for row in taken}
    answer = [after[task_id] for task_id in dict.fromkeys(ids) if task_id in after]
    return Expected(answer, after, holds={row.id for row in there})


def claim_next(
    view: View, queues: Sequence[str], most: int, worker: Worker, token, lease, now, *, lonely: bool
) -> Expected:
    lanes: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(view.rows(), key=lambda row: (row.scan_at, row.id)):
        fits = row.queue in queues and can_run(view, row, worker, now) and row.scan_at <= now
        if fits and (lonely or not worker.alone(row)):
            lanes.setdefault((row.queue, row.priority), []).append(row)
    locked = [row for lane in lanes.values() for row in lane[:most]]
    line = sorted(locked, key=lambda row: (row.priority, row.scan_at, row.id))[:most]
    taken = line[:1] if line and worker.alone(line[0]) else [r for r in line if not worker.alone(r)]
    after = {row.id: claimed(row, worker, token, lease, now) for row in taken}
    answer = sorted(after.values(), key=lambda row: (row.priority, row.due_at, row.id))
    return Expected(answer, after, holds={row.id for row in locked})


ASIDE = timedelta(days=1)


def is_ready(row: Row, now: datetime) -> bool:
    late = row.expires_at is not None and row.expires_at <= now
    return row.state is State.PENDING and row.enabled and not late and row.due_at <= now


def head_of(view: View, key: str, now: datetime) -> Row | None:
    """Who may run next, if nobody runs: the first that can, unless one before it is in the way."""
    for row in view.everything():
        if row.order_key != key:
            continue
        if row.state is State.FAILED and not row.order_skips:
            return None
        begun = row.but(due_at=now) if row.attempt and not row.order_skips else row
        if is_ready(begun, now):
            return row
    return None


def runs(view: View, key: str) -> bool:
    return any(row.order_key == key and row.state is State.RUNNING for row in view.rows())


def claim_of_oracle_of_gates(
    view: View, ids: Sequence[int], worker: Worker, token: UUID, lease, now
) -> Expected:
    rows = [row for row in view.rows() if row.id in ids and row.order_key is not None]
    wishes = [
        row
        for row in rows
        if is_ready(row, now)
        and row.name in worker.handlers
        and (row.parked is None or row.scan_at <= now)
        and not view.stands_still(row.queue)
    ]
    keys = sorted({row.order_key for row in wishes})
    for key in keys:
        view.wait_for(f"order {key}")
    heads = {key: None if runs(view, key) else head_of(view, key, now) for key in keys}
    passing = [row for row in wishes if row == heads[row.order_key] and view.free(row.id)]
    taken = [row for row in passing if not worker.alone(row)] or passing[:1]
    held = [row for row in wishes if row != heads[row.order_key] and view.free(row.id)]
    after = {row.id: claimed(row, worker, token, lease, now) for row in taken}
    aside = {row.id: row.but(scan_at=now + ASIDE, parked=f"order {row.order_key}") for row in held}
    locked = {row.id for row in passing} | {f"order {key}" for key in keys}
    in_line = sorted(passing, key=lambda row: (row.priority, row.id))
    answer = [after[row.id] for row in in_line if row.id in after]
    return Expected(answer, after | aside, holds=locked)


def wake(view: View, key: str, now: datetime) -> Expected:
    view.wait_for(f"order {key}")
    head = None if runs(view, key) else head_of(view, key, now)
    expected = Expected([], holds={f"order {key}"})
    if head is not None and head.parked == f"order {key}" and view.free(head.id):
        if is_ready(head, now) and not view.stands_still(head.queue):
            expected.answer = [head.id]
        expected.changes[head.id] = head.but(scan_at=max(now, head.due_at), parked=None)
    return expected


def next_of(view: View, gone: Sequence[Row], now: datetime) -> dict[int, Row]:
    """Who waits behind those that were cancelled: the first of each key is looked at again."""
    freed: dict[int, Row] = {}
    for key in {row.order_key for row in gone if row.order_key}:
        behind = [
            row
            for row in view.rows()
            if row.parked == f"order {key}" and row not in gone and view.free(row.id)
        ]
        freed |= {row.id: row.but(scan_at=max(now, row.due_at), parked=None) for row in behind[:1]}
    return freed


def unblock(view: View, task_id: int) -> Expected:
    row = view.get(task_id)
    if row is None or row.state is not State.FAILED or row.order_key is None or row.order_skips:
        return Expected(answer=False)
    view.wait_for(task_id)
    view.wait_for(f"order {row.order_key}")
    after = row.but(order_skips=True)
    return Expected(answer=True, changes={task_id: after}, holds={f"order {row.order_key}"})


FAR = datetime(9899, 1, 1, tzinfo=UTC)


def amend(
    view: View, action: BulkAction, task_id: int, change: Amendment, now: datetime
) -> Expected:
    row = view.pending(task_id)
    changes = None if row is None or row.state is State.RUNNING else _of(row, action, change, now)
    if row is None or changes is None:
        return Expected([])
    view.wait_for(task_id)
    leaves = action in {BulkAction.HOLD, BulkAction.RESCHEDULE, BulkAction.DISABLE}
    behind = next_of(view, [row], now) if leaves else {}
    return Expected([task_id], {**behind, task_id: row.but(**changes)})


def _of(row: Row, action: BulkAction, change: Amendment, now: datetime) -> dict[str, Any] | None:
    """What changes in it; None: it is so already."""
    at, back = max(now, change.at or now), max(now, row.held_due_at or now)
    far = max(row.due_at, row.expires_at) if row.expires_at else FAR
    look = {"scan_at": max(now, row.due_at), "parked": None}
    moved = {"due_at": at, "scan_at": at}
    sooner = {"priority": change.to_priority, "scan_at": max(now, row.scan_at or now)}
    free = {"due_at": back, "scan_at": back, "held_due_at": None, "parked": None}
    gone = {"held_due_at": row.due_at, "due_at": far, "scan_at": far, "parked": None}
    whether: dict[BulkAction, tuple[bool, dict[str, Any]]] = {
        BulkAction.RUN_NOW: (row.due_at > now, {**moved, "held_due_at": None, "parked": None}),
        BulkAction.RESCHEDULE: (
            True,
            {"parked": None, **({"held_due_at": at} if row.held_due_at else moved)},
        ),
        BulkAction.REPRIORITISE: (row.priority != change.to_priority, sooner),
        BulkAction.MOVE: (row.queue != change.to_queue, {"queue": change.to_queue, **look}),
        BulkAction.HOLD: (row.held_due_at is None, gone),
        BulkAction.RELEASE: (row.held_due_at is not None, free),
        BulkAction.ENABLE: (not row.enabled, {"enabled": True, **look}),
        BulkAction.DISABLE: (row.enabled, {"enabled": False, **look}),
    }
    applies, changes = whether[action]
    return changes if applies else None


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
    farthest = lease * 2 ** min(row.crashes + 1, 10)
    return min(farthest, SOON) if row.crashes == 0 else farthest
