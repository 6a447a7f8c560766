"""What a worker runs: TASKS_APP_IMPORTS=flask_app.tasks."""

from __future__ import annotations

from pydantic import BaseModel

from flask_app.models import Order
from tasks_app import TaskContext, handler


class Placed(BaseModel):
    """The payload."""

    order_id: int


@handler(retry="5s,30s,1m")
def confirm_order(ctx: TaskContext, payload: Placed) -> None:
    """Confirm an order; what ctx.session writes commits with the task's outcome."""
    order = ctx.session.get_one(Order, payload.order_id)  # not db.session
    order.confirmed = True
