"""Undoing a flow: each step that succeeded is undone by a step of its own, in reversed order."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

from tasks_app.domain.creation import NewTask, item_payload
from tasks_app.domain.flows import (
    UNDO_STEP,
    UNDO_TASK,
    After,
    Flow,
    FlowStep,
    PlannedStep,
    ended,
    undo_name,
)
from tasks_app.domain.handlers.outcomes import Fail, WaitForNeeds
from tasks_app.domain.rerun import told
from tasks_app.domain.tasks.options import check_id
from tasks_app.domain.tasks.records import TaskRow, row_of_json
from tasks_app.domain.tasks.states import State
from tasks_app.domain.undo import check_undo, steps_to_undo, undone_before
from tasks_app.pool import flow_rerun, flows
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api.flows import check_transaction, graft, unknown
from tasks_app.runtime.api.groups import cancel_group
from tasks_app.runtime.api.tasks import in_full
from tasks_app.runtime.db.connections import Sync, connection_of, made_async
from tasks_app.runtime.encryption.values import is_secret, opened_value
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.large_values import large_values

_FRAME = 100  # what is written around a payload and a result


def undo_flow(session: Sync, flow_id: int, *, by: str = "", why: str = "") -> list[str]:
    """Cancel what has not ended, and undo the steps that have succeeded and have an ``undo=``.

    A step that runs is asked to stop, and undone if it succeeds. Those that needed a step are
    undone before it. Each is undone by a step of the flow with a name as ``undo:pay``, which is
    tried again, stands and is requeued as any other. A second call changes nothing.

    >>> flow = Flow("order")
    >>> pay = flow.step("pay", send_mail, {"to": "bank@example.org"}, undo="card.refund")
    >>> _ = flow.step("ship", send_mail, {"to": "shop@example.org"}, needs=pay, undo="order.return")
    >>> made = create_flow(session, flow)
    >>> drained = drain(session)
    >>> undo_flow(session, made.id, by="anna")
    ['ship', 'pay']

    Returns:
        The names of the steps that are undone, in that order; those that run only if they succeed.

    Raises:
        TasksError: there is no such flow, no step of it has an ``undo=``, a newer flow has the key,
            a step was requeued after the flow had succeeded, or each statement commits by itself.
            Nothing was written.
    """
    connection, flow_id = connection_of(session), check_id(flow_id, "flow_id")
    check_transaction(connection, "undo_flow")
    flow = flow_rerun.lock_flow(connection, flow_id)
    if flow is None:
        raise unknown(flow_id)
    check_undo(flow)
    if not any(step.name == UNDO_STEP for step in flow.steps):
        flow_rerun.lock_rows(connection, flow, {})
        flow_rerun.take_key(connection, flow)
        cancel_group(connection, flow_id, by=by, why=why)
        flows.begin_undo(connection, flow_id)
    return [step.name for step in steps_to_undo(flow)]


aundo_flow: Final = made_async(undo_flow)


@handler(UNDO_TASK, registry=Registry())
def run_undo(ctx: TaskContext) -> None:
    """Create the steps that undo others, in one commit, once those that run have ended."""
    assert ctx.flow_id is not None  # noqa: S101  it is a step
    flow = flow_rerun.lock_flow(ctx.connection, ctx.flow_id)
    assert flow is not None  # noqa: S101  its step runs
    found = steps_to_undo(flow)
    running = [ended(step.name) for step in found if step.state is State.RUNNING]
    if running:
        flows.add_needs(ctx.connection, ctx.task_id, running)
        ctx.commit()
        raise WaitForNeeds("Steps that are to be undone run.")
    kept, rows, more = flows.undoes(ctx.connection, flow.id), dict[str, TaskRow](), Flow("undo")
    there = {step.name for step in flow.steps}
    for step in found:
        row = _row(ctx.connection, step, kept[step.name])
        if row is not None and undo_name(step.name) not in there:
            rows[step.name] = row
    for name, before in undone_before(flow, rows).items():
        needs = {undo_name(other): After.SUCCESS for other in before}
        more.steps[undo_name(name)] = PlannedStep(NewTask(rows[name].name), needs)
    named = {undo_name(name): row for name, row in rows.items()}
    graft(ctx.session, flow.id, more, rows=named)


def _row(connection: Connection, step: FlowStep, undo: dict[str, Any]) -> TaskRow | None:
    """Return the row of the task that undoes a step; None: the step was skipped."""
    task = browse.get(connection, step.task_id)
    if task is None:
        raise Fail(f"{told(step)} cannot be undone: its row was pruned.")
    if task.state is State.SKIPPED:
        return None
    payload = in_full(connection, task.id, task.payload, "payload")
    result = in_full(connection, task.id, step.result, "result")
    given = {
        "payload": opened_value(payload, "payload", task.name),
        "result": opened_value(result, "result", task.name),
    }
    row, values = row_of_json(undo["row"]), large_values()
    limit = values.payload_limit + values.result_limit + _FRAME  # each of them was admitted
    secret = row.terms.encrypted or is_secret(task.payload) or is_secret(step.result)
    return row._replace(
        payload=item_payload(given, limit, wraps=undo["wraps"]),
        terms=row.terms._replace(encrypted=secret),
    )
