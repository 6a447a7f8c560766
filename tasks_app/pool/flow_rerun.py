"""Flows that run again from a step: ended steps come back, and wait for each other as before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.errors import TasksError
from tasks_app.domain.flows import NOT_NEEDED, FlowProgress, FlowState, FlowStep, StepEnd
from tasks_app.domain.operations import NO_AUTHOR, Author, BulkAction
from tasks_app.domain.rerun import steps_from, told
from tasks_app.domain.tasks.states import Event, Pool, State, pool_of
from tasks_app.pool.flows import get_flow, insert_flow
from tasks_app.pool.fragments.transition_log import log_operator_action
from tasks_app.pool.tables import (
    ALL,
    COMPLETED,
    EVENT_WAIT,
    FLOW_NEED,
    FLOW_STEP,
    GROUP,
    PENDING,
    PUT_OFF,
    TABLE_OF,
    Clock,
)
from tasks_app.pool.task_groups import GOOD, flow_key_taken
from tasks_app.pool.tasks.amend import amend
from tasks_app.pool.tasks.requeue import move_back

_LOCK = text(f"""
    SELECT g.outcome FROM {GROUP} g WHERE g.id = :id AND g.flow IS NOT NULL FOR NO KEY UPDATE""")
_LOCK_ROWS = {
    pool: text(f"""
    SELECT t.id, t.state FROM {table} t
    WHERE t.id = ANY(CAST(:ids AS bigint[])) ORDER BY t.id FOR UPDATE""")
    for pool, table in TABLE_OF.items()
}
_MOVED = text(f"SELECT t.id FROM {ALL} t WHERE t.id = ANY(CAST(:ids AS bigint[])) ORDER BY t.id")
_ENTER_LATER_ENDS = text(f"""
    UPDATE {FLOW_STEP} s
    SET ended = '{StepEnd.SUCCESS}', result = c.result, ended_at = c.finished_at
    FROM {COMPLETED} c
    WHERE s.flow_id = :id AND c.id = ANY(CAST(:ids AS bigint[])) AND c.id = s.task_id
      AND c.state = '{State.SUCCEEDED}' AND c.finished_at <> s.ended_at""")
_UNCOUNT = text(f"""
    UPDATE {GROUP} g SET succeeded = g.succeeded - :succeeded, failed = g.failed - :failed,
        total = g.total - :total
    WHERE g.id = :id""")
_ALL_STEPS = text(f"SELECT s.step, s.task_id FROM {FLOW_STEP} s WHERE s.flow_id = :id")
_ITEMS = text(f"""
    SELECT e.step, e.task_id, e.ended FROM {FLOW_NEED} n
    CROSS JOIN LATERAL (
        SELECT * FROM {FLOW_STEP} e WHERE e.flow_id = n.flow_id AND e.step = n.needs OFFSET 0) AS e
    WHERE n.flow_id = :id AND n.step = ANY(CAST(:maps AS text[])) AND n.needs LIKE '%]'""")
_DROP_ITEMS = (
    text(f"""
    DELETE FROM {FLOW_NEED} n
    WHERE n.flow_id = :id AND n.step = ANY(CAST(:maps AS text[])) AND n.needs LIKE '%]'"""),
    text(f"""
    DELETE FROM {FLOW_STEP} s WHERE s.flow_id = :id AND s.step = ANY(CAST(:items AS text[]))"""),
    *(
        text(f"UPDATE {table} t SET batch_id = NULL WHERE t.id = ANY(CAST(:ids AS bigint[]))")
        for table in (TABLE_OF[Pool.ERROR], TABLE_OF[Pool.COMPLETED])
    ),
)
_FORGET = text(f"DELETE FROM {GROUP} g WHERE g.id = :id")
_REOPEN = text(f"""
    UPDATE {FLOW_STEP} s SET ended = NULL, result = NULL, ended_at = NULL
    WHERE s.flow_id = :id AND s.step = ANY(CAST(:steps AS text[]))""")
# They have no needs for a moment: so those that are open now can be counted anew.
_FREE = text(f"""
    UPDATE {PENDING} p
    SET due_at = CASE WHEN p.waits_for > 0 THEN p.held_due_at ELSE p.due_at END,
        scan_at = CASE WHEN p.waits_for > 0 THEN p.held_due_at ELSE p.scan_at END,
        held_due_at = CASE WHEN p.waits_for > 0 THEN NULL ELSE p.held_due_at END,
        waits_for = NULL,
        enabled = p.enabled OR p.sub_status IS NOT DISTINCT FROM '{NOT_NEEDED}',
        sub_status = nullif(p.sub_status, '{NOT_NEEDED}')
    WHERE p.id = ANY(CAST(:ids AS bigint[]))""")
# Those that wait for it again have their time-outs before them again.
_BEGIN_TIME_OUTS_ANEW = text(f"""
    UPDATE {EVENT_WAIT} w SET until = NULL, not_before = NULL
    WHERE w.task_id = ANY(CAST(:ids AS bigint[])) AND w.until IS NOT NULL
      AND (SELECT p.waits_for FROM {PENDING} p WHERE p.id = w.task_id) IS NOT NULL""")
_PUT_OFF = text(f"SELECT {PUT_OFF}(:id, CAST(:steps AS text[]))")


def lock_flow(connection: Connection, flow_id: int) -> FlowProgress | None:
    """Lock a flow, so that no step of it ends meanwhile, and return it."""
    if connection.execute(_LOCK, {"id": flow_id}).scalar() == State.SUCCEEDED:
        # It took no note of the ends of steps that were requeued since.
        ids = [step.task_id for step in connection.execute(_ALL_STEPS, {"id": flow_id})]
        _lock_rows(connection, ids)
        connection.execute(_ENTER_LATER_ENDS, {"id": flow_id, "ids": ids})
    return get_flow(connection, flow_id)


def rerun(
    connection: Connection,
    flow: FlowProgress,
    name: str,
    *,
    by: Author = NO_AUTHOR,
    now: Clock = None,
) -> list[FlowStep]:
    """Put back a step of a locked flow, and all that hang on it; return them.

    Raises:
        TasksError: it is refused, and nothing was written; see ``steps_from``.
        UniqueKeyTakenError: another pending task has the name and unique_key of one.
    """
    again = steps_from(flow, name)
    ids, steps = [step.task_id for step in again], [step.name for step in again]
    maps = [step.name for step in again if step.items is not None]
    of_maps = {"id": flow.id, "maps": maps}
    items = connection.execute(_ITEMS, of_maps).all() if maps else []
    tasks = {step.name: step.task_id for step in again} | {i.step: i.task_id for i in items}
    states = lock_rows(connection, flow, tasks)
    _check(again, items, states)
    moved = {i: states[i] for i in ids if pool_of(states[i]) is not Pool.PENDING}
    good = [state in GOOD for state in moved.values()]
    for item in items:  # of one that was pruned only the end is known
        state = states.get(item.task_id)
        good.append(state in GOOD if state else item.ended != StepEnd.FAILURE)
    if flow.state is FlowState.SUCCEEDED:  # it has counted each as a success, whatever came later
        good = [True] * (len(again) + len(items))
    take_key(connection, flow)
    values = {"succeeded": sum(good), "failed": len(good) - sum(good), "total": len(items)}
    connection.execute(_UNCOUNT, {"id": flow.id, **values})
    of_items = {"items": [i.step for i in items], "ids": [i.task_id for i in items]}
    for drop in _DROP_ITEMS if items else ():
        connection.execute(drop, {**of_maps, **of_items})
    connection.execute(_REOPEN, {"id": flow.id, "steps": steps})
    for pool in (Pool.ERROR, Pool.COMPLETED):
        some = {i: state for i, state in moved.items() if pool_of(state) is pool}
        move_back(connection, TABLE_OF[pool], some, now=now)
    for state in {*moved.values()}:
        of_state = [i for i in moved if moved[i] is state]
        log_operator_action(connection, Event.REQUEUE, of_state, by, origin=state, now=now)
    connection.execute(_FREE, {"ids": ids})
    connection.execute(_PUT_OFF, {"id": flow.id, "steps": steps})
    connection.execute(_BEGIN_TIME_OUTS_ANEW, {"ids": ids})
    amend(connection, BulkAction.RUN_NOW, [ids[steps.index(name)]], by=by, now=now)
    return again


def lock_rows(
    connection: Connection, flow: FlowProgress, tasks: Mapping[str, int]
) -> dict[int, State]:
    """Lock the rows of these steps of a locked flow; return the tasks' states.

    Raises:
        TasksError: the flow has succeeded, and another step of it was requeued since.
    """
    others: dict[str, int] = {}
    if flow.state is FlowState.SUCCEEDED:  # it counts no end of them until it is open again
        every = connection.execute(_ALL_STEPS, {"id": flow.id})
        others = {row.step: row.task_id for row in every if row.step not in tasks}
    states = _lock_rows(connection, [*tasks.values(), *others.values()])
    for name, task_id in others.items():
        state = states.get(task_id, State.SUCCEEDED)
        if state not in GOOD:
            raise TasksError(
                f"Step {name} (task {task_id}) was requeued after its flow had succeeded, and is "
                f"{state}. Let it succeed first, or run the flow again from there."
            )
    return states


def _lock_rows(connection: Connection, ids: Sequence[int]) -> dict[int, State]:
    """Lock the tasks' rows in all pools; return their states."""
    found: dict[int, State] = {}
    left = sorted(ids)
    while left:
        for pool in TABLE_OF:
            rows = connection.execute(_LOCK_ROWS[pool], {"ids": left})
            found |= {row.id: State(row.state) for row in rows}
        # A task of a flow that succeeded may end, or be requeued, until its row is locked.
        moved = {"ids": [i for i in left if i not in found]}
        left = list(connection.execute(_MOVED, moved).scalars())
    return found


def _check(
    again: Sequence[FlowStep],
    items: Sequence[Any],
    states: Mapping[int, State],
) -> None:
    for step in again:
        state = states.get(step.task_id)
        if state is State.RUNNING:
            raise TasksError(f"{told(step)} runs. Wait for its end, or cancel it first.")
        if state is None:
            problem = "cannot run again: its row was pruned. Create the flow anew."
            raise TasksError(f"{told(step)} {problem}")
    for item in items:
        if pool_of(states.get(item.task_id, State.SUCCEEDED)) is Pool.PENDING:
            raise TasksError(
                f"Step {item.step} (task {item.task_id}) has not ended. Wait, or cancel it first."
            )


def take_key(connection: Connection, flow: FlowProgress) -> None:
    """Keep others from opening a flow with the key of this one, which is over and opens again.

    Raises:
        UniqueKeyTakenError: one is open, and nothing was written.
    """
    if flow.key is None or flow.state in {FlowState.RUNNING, FlowState.STALLED}:
        return
    # The insert waits for who creates one now, and others wait for us.
    other, is_free = insert_flow(connection, flow.name, flow.key, flow.on_failure, 1)
    if not is_free:
        raise flow_key_taken(flow.name, flow.key, other)
    connection.execute(_FORGET, {"id": other})
