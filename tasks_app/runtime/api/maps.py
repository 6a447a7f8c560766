"""What runs a step that is a map: it creates a step for each item, and waits for all of them."""

from __future__ import annotations

from typing import Any

from tasks_app.domain.creation import NewTask, item_payload
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.flows import (
    MAP_TASK,
    MOST_ITEMS,
    Flow,
    Need,
    PlannedStep,
    is_open,
)
from tasks_app.domain.handlers.outcomes import Fail, WaitForNeeds
from tasks_app.domain.tasks.records import TaskRow, row_of_json
from tasks_app.pool.flows import add_needs, items_of, needed_steps, step_name
from tasks_app.runtime.api.flows import graft
from tasks_app.runtime.encryption.values import is_secret
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.large_values import large_values


@handler(MAP_TASK, registry=Registry())
def run_map(ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Create the items once, in one commit; succeed when all of them have."""
    items = items_of(ctx.connection, ctx.task_id)
    if not items:
        rows = _rows(ctx, payload)
        if not rows:
            return
        more = Flow("items")
        more.steps = {name: PlannedStep(NewTask(row.name), {}) for name, row in rows.items()}
        assert ctx.flow_id is not None  # noqa: S101  it is a step
        graft(ctx.session, ctx.flow_id, more, rows=rows)
        add_needs(ctx.connection, ctx.task_id, [Need(name) for name in rows])
        ctx.commit()
        raise WaitForNeeds("Its items run.")
    if any(is_open(Need(item.step), item.end) for item in items):
        raise WaitForNeeds("Its items have not all succeeded.")


def _rows(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, TaskRow]:
    """Return the rows of all items by the names of their steps."""
    over = payload["over"]
    step, items = step_name(ctx.connection, ctx.task_id), ctx.need(over)
    if not isinstance(items, list):
        raise Fail(
            f"Step {over} returned {_JSON.get(type(items), 'a number')}, and not a list. "
            "Requeue it when it returns one, and then this step."
        )
    if len(items) > MOST_ITEMS:
        raise Fail(
            f"Step {over} returned {len(items):,} items, and a map has {MOST_ITEMS:,} at most. "
            "Let it return lists of items, each a part of the work."
        )
    row, limit = row_of_json(payload["item"]), large_values().payload_limit
    if is_secret(needed_steps(ctx.connection, ctx.task_id)[over].result):
        row = row._replace(terms=row.terms._replace(encrypted=True))
    try:
        return {
            f"{step}[{place}]": row._replace(
                payload=item_payload(item, limit, wraps=payload["wraps"])
            )
            for place, item in enumerate(items)
        }
    except InvalidTaskError as error:
        raise Fail(f"An item cannot be a payload: {error}") from None


_JSON = {dict: "an object", str: "a text", bool: "a boolean", type(None): "nothing"}
