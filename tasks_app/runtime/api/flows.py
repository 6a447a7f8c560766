"""Flows: tasks that need each other. Nothing here commits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any, Final

from sqlalchemy import Connection

from tasks_app.domain.creation import NewTask, item_row
from tasks_app.domain.errors import InvalidTaskError, TasksError
from tasks_app.domain.flows import (
    MAP_TASK,
    MOST_STEPS,
    CreatedFlow,
    Flow,
    FlowProgress,
    FlowState,
    Need,
    StepEnd,
    check_flow,
    check_needs,
    check_type,
    is_item,
    is_open,
)
from tasks_app.domain.groups import member_row
from tasks_app.domain.operations import BulkAction, check_author
from tasks_app.domain.tasks.options import check_id
from tasks_app.domain.tasks.records import TaskId, TaskRow, row_as_json
from tasks_app.pool import events, flow_rerun, flows
from tasks_app.pool.connection.execute import commits_itself
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tasks.cancel import CancelledMany
from tasks_app.runtime.api.amend_waiting import check_payload, edit_payload
from tasks_app.runtime.api.groups import cancel_group
from tasks_app.runtime.api.producer import admitted, create_ready, ready
from tasks_app.runtime.db.connections import Raw, Sync, connection_of, made_async, on_connection
from tasks_app.runtime.encryption.values import opened_result
from tasks_app.runtime.handlers.registry import HANDLERS, Registry


def create_flow(
    session: Sync | Raw, flow: Flow, *, key: str | None = None, on_failure: str = "wait"
) -> CreatedFlow:
    """Create the tasks of a flow in the caller's transaction: they exist iff that commits.

    A step starts when all its needs are met: the transaction that ends a step, with its effects,
    releases what waits for it. ``key`` is that of at most one open flow of this name.

    >>> flow = Flow("order")
    >>> pay = flow.step("pay", send_mail, {"to": "bank@example.org"})
    >>> _ = flow.step("ship", send_mail, {"to": "shop@example.org"}, needs=pay)
    >>> made = create_flow(session, flow, key="order:7")
    >>> drained = drain(session)
    >>> get_flow(session, made.id).state
    <FlowState.SUCCEEDED: 'succeeded'>

    Args:
        session: what create_task takes.
        flow: its steps, each a task.
        key: None: any number of flows of this name may be open.
        on_failure: when a step fails for good: ``wait`` lets the others go on as far as they can,
            and once the step is requeued and succeeds, the rest goes on; ``cancel`` skips those
            that wait and asks those that run to stop, but not steps that need a failure; ``undo``
            does the same, and then undoes those that have succeeded, as :func:`undo_flow`.

    Returns:
        Its ids; its ``created`` is False when another open flow has the name and key.

    Raises:
        InvalidTaskError: refused before anything was written, with the path of the bad value.
        UniqueKeyTakenError: a step's unique_key is taken. Roll back: the flow is written.
        TasksError: each statement commits by itself.
    """
    when_failed = check_flow(flow, key, on_failure)
    rows = {name: _row(name, flow) for name in flow.steps}
    with on_connection(session) as connection:
        check_transaction(connection, "create_flow")
        _lock_events(connection, flow)
        flow_id, created = flows.insert_flow(connection, flow.name, key, when_failed, len(rows))
        if not created:
            return CreatedFlow(flow_id, dict(flows.task_ids(connection, flow_id)), created=False)
        steps, ids = _made(session, flow_id, rows, flow, {})
        flows.enter_steps(connection, flow_id, steps, ids)
    return CreatedFlow(flow_id, dict(zip(steps, ids, strict=True)))


def extend_flow(session: Sync | Raw, flow_id: int, more: Flow) -> dict[str, TaskId]:
    """Add steps to a flow; until the caller commits, no end of its steps can be counted.

    The steps may need those that are there, in any way that can still be met. A handler extends its
    own flow with ``ctx.flow_id``. The name of ``more`` is not used.

    >>> flow = Flow("order")
    >>> _ = flow.step("pay", send_mail, {"to": "bank@example.org"})
    >>> made, more = create_flow(session, flow), Flow("more")
    >>> _ = more.step("thank", send_mail, {"to": "a@example.org"}, needs="pay")
    >>> [*extend_flow(session, made.id, more)]
    ['thank']

    Returns:
        The ids of their tasks, by step.

    Raises:
        InvalidTaskError: refused before anything was written, with the path of the bad value.
        UniqueKeyTakenError: a step's unique_key is taken. Roll back: steps may be written.
        TasksError: the flow is over or unknown, or each statement commits by itself.
    """
    check_type(more)
    return graft(session, check_id(flow_id, "flow_id"), more)


def graft(
    session: Sync | Raw,
    flow_id: int,
    more: Flow,
    *,
    rows: Mapping[str, TaskRow] | None = None,
    reopens: bool = False,
) -> dict[str, TaskId]:
    """Do what extend_flow does; ``reopens``: a flow that is over, too, which is open then.

    ``rows``: those of the steps, by name, if they are made already.
    """
    counts = rows is None  # our own steps, items and such that undo others, are not limited
    rows = {name: _row(name, more) for name in more.steps} if rows is None else rows
    named = {need for step in more.steps.values() for need in step.needs}
    with on_connection(session) as connection:
        check_transaction(connection, "extend_flow")
        _lock_events(connection, more)
        flow = flows.lock_flow(connection, flow_id, named | more.steps.keys(), reopens=reopens)
        check_needs(more, flow.ends)
        number = flow.steps + sum(not is_item(name) for name in more.steps)
        if counts and number > MOST_STEPS:
            raise InvalidTaskError("steps", f"would be {number}", f"at most {MOST_STEPS}")
        steps, ids = _made(session, flow_id, rows, more, flow.ends)
        flows.add_steps(connection, flow_id, steps, ids, reopens=reopens)
    return dict(zip(steps, ids, strict=True))


def check_transaction(connection: Connection, verb: str) -> None:
    if commits_itself(connection):
        raise TasksError(
            f"{verb} needs a transaction: here steps might start and end while it has done a part. "
            "Use a connection without AUTOCOMMIT."
        )


def _lock_events(connection: Connection, flow: Flow) -> None:
    """Lock what steps wait for before the flow is locked, as those do who send it."""
    if keys := {key for step in flow.steps.values() for key in step.events}:
        events.lock(connection, keys)


def _made(
    session: Sync | Raw,
    flow_id: int,
    rows: Mapping[str, TaskRow],
    flow: Flow,
    ends: Mapping[str, StepEnd | None],
) -> tuple[dict[str, flows.NewStep], list[TaskId]]:
    """Create the tasks of steps; ``ends`` are those of steps that were there before."""
    steps, members, starts = dict[str, flows.NewStep](), list[TaskRow](), list[bool]()
    for name, row in rows.items():
        needs, awaited = flow.steps[name].needs, flow.steps[name].events
        opens = (is_open(need, ends.get(need.step)) for need in starmap(Need, needs.items()))
        waits = bool(awaited) or any(opens)
        delay, undo = row.terms.delay or None if waits else None, flow.steps[name].undo
        undone_by = _undo(name, undo, row.biz_key) if undo else None
        steps[name] = flows.NewStep(row.name, delay, needs, awaited, undone_by)
        members.append(_member(name, row, flow_id))
        starts.append(not waits)
    return steps, create_ready(session, ready(members), starts) if members else []


def _row(name: str, flow: Flow) -> TaskRow:
    step = flow.steps[name]
    try:
        return admitted(step.task if step.over is None else _map(step.task, step.over), large=True)
    except InvalidTaskError as error:
        raise error.at(f"steps.{name}") from None


def _map(item: NewTask, over: str) -> NewTask:
    """Return the task of a map; the process that runs it need not know the handler of its items."""
    row, wraps = _template(item)
    payload = {"over": over, "item": row_as_json(row), "wraps": wraps}
    return NewTask(
        MAP_TASK, payload, queue=row.terms.queue, priority=row.terms.priority, biz_key=row.biz_key
    )


def _undo(name: str, undo: NewTask, biz_key: str | None) -> str:
    """Return what is kept of the task that undoes a step; see ``runtime/api/undo``."""
    try:
        row, wraps = _template(undo)
    except InvalidTaskError as error:
        raise error.at(f"steps.{name}.undo") from None
    return json.dumps({"row": row_as_json(row._replace(biz_key=biz_key)), "wraps": wraps})


def _template(new: NewTask) -> tuple[TaskRow, bool]:
    """Return a row without its payload, and whether its handler's type wraps objects."""
    spec = HANDLERS.specs.get(new.task) if isinstance(new.task, str) else new.task.spec
    kind = None if spec is None else spec.payload_type
    return item_row(new, spec), kind is not None and kind.wraps({})


def _member(name: str, row: TaskRow, flow_id: int) -> TaskRow:
    try:
        return member_row(row, flow_id)
    except InvalidTaskError as error:
        raise error.at(f"steps.{name}") from None


def get_flow(session: Sync, flow_id: int) -> FlowProgress | None:
    """Return a flow and its steps, or None.

    >>> flow = Flow("order")
    >>> pay = flow.step("pay", send_mail, {"to": "bank@example.org"})
    >>> _ = flow.step("ship", send_mail, {"to": "shop@example.org"}, needs=pay)
    >>> made = create_flow(session, flow)
    >>> get_flow(session, made.id).steps[1].open_needs
    (Need(step='pay', after=<After.SUCCESS: 'success'>),)
    """
    found = flows.get_flow(connection_of(session), check_id(flow_id, "flow_id"))
    if found is None:
        return None
    steps = [replace(step, result=opened_result(step.result, step.task)) for step in found.steps]
    return replace(found, steps=tuple(steps))


def list_flows(
    session: Sync,
    *,
    name: str | None = None,
    key: str | None = None,
    state: FlowState | None = None,
    limit: int = 100,
) -> Sequence[FlowProgress]:
    """Return flows without their steps, newest first.

    >>> _ = create_flow(session, Flow("order"), key="order:7")
    >>> [(flow.key, flow.total) for flow in list_flows(session, name="order")]
    [('order:7', 0)]
    """
    connection = connection_of(session)
    return flows.newest_flows(connection, limit, name=name, key=key, state=state)


def cancel_flow(session: Sync, flow_id: int, *, by: str = "", why: str = "") -> CancelledMany:
    """Cancel the steps that have not ended; running ones are interrupted.

    >>> flow = Flow("order")
    >>> pay = flow.step("pay", send_mail, {"to": "bank@example.org"})
    >>> made = create_flow(session, flow)
    >>> cancel_flow(session, made.id, by="anna").cancelled
    1

    Raises:
        TasksError: there is no such flow.
    """
    _known(connection_of(session), flow_id)
    return cancel_group(session, flow_id, by=by, why=why)


def rerun_flow(
    session: Sync | Raw,
    flow_id: int,
    from_: str,
    payload: dict[str, Any] | None = None,
    *,
    by: str = "",
    why: str = "",
    registry: Registry = HANDLERS,
) -> list[str]:
    """Let a step run again, at once, and all that hang on it when their needs are met again.

    The other steps keep their ends and results. A flow that was over is open again.

    >>> flow = Flow("order")
    >>> pay = flow.step("pay", send_mail, {"to": "bank@example.org"})
    >>> ship = flow.step("ship", send_mail, {"to": "shop@example.org"}, needs=pay)
    >>> _ = flow.step("thanks", send_mail, {"to": "a@example.org"}, needs=ship)
    >>> made = create_flow(session, flow)
    >>> drained = drain(session)
    >>> rerun_flow(session, made.id, from_="ship", by="anna")
    ['ship', 'thanks']

    Args:
        session: of the transaction; until it commits, no step of the flow ends.
        flow_id: of the flow.
        from_: the name of the step.
        payload: of the step from now on, as ``tasks-app edit`` would write it. None: its own.
        by: who does it, for the audit.
        why: kept beside.
        registry: of the handler whose model checks the payload.

    Returns:
        The names of the steps that run again, in the order of their needs.

    Raises:
        TasksError: there is no such flow or step, one of the steps runs or was pruned, the step
            itself waits for another one, the flow was undone, a newer flow has the key, or each
            statement commits by itself. Nothing was written.
        InvalidSelectionError: the payload was refused. Nothing was written.
        UniqueKeyTakenError: a step's unique_key is taken. Roll back: others were put back.
    """
    flow_id, author = check_id(flow_id, "flow_id"), check_author(by, why)
    with on_connection(session) as connection:
        check_transaction(connection, "rerun_flow")
        flow = flow_rerun.lock_flow(connection, flow_id)
        if flow is None:
            raise unknown(flow_id)
        task = next((step for step in flow.steps if step.name == from_), None)
        if payload is not None and task is not None:
            check_payload(task.task, payload, registry)
        again = flow_rerun.rerun(connection, flow, from_, by=author)
        if payload is not None and task is not None:
            edit_payload(connection, task.task_id, payload, by=by, why=why, registry=registry)
        what = {"flow": flow_id, "step": from_, **author.reason}
        ids, answers = sorted(step.task_id for step in again), {"requeued": len(again)}
        note(connection, BulkAction.REQUEUE, what, who=by, ids=ids, answers=answers)
    return [step.name for step in again]


acreate_flow: Final = made_async(create_flow)
aextend_flow: Final = made_async(extend_flow)
aget_flow: Final = made_async(get_flow)
alist_flows: Final = made_async(list_flows)
acancel_flow: Final = made_async(cancel_flow)
arerun_flow: Final = made_async(rerun_flow)


def _known(connection: Connection, flow_id: int) -> FlowProgress:
    found = flows.get_flow(connection, check_id(flow_id, "flow_id"))
    if found is None:
        raise unknown(flow_id)
    return found


def unknown(flow_id: int) -> TasksError:
    return TasksError(f"There is no flow {flow_id}. It may have been over for long.")
