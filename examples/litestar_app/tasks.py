"""What a worker runs: TASKS_APP_IMPORTS=litestar_app.tasks."""

from __future__ import annotations

from pydantic import BaseModel

from litestar_app.models import Order
from tasks_app import AsyncTaskContext, handler


class Placed(BaseModel):
    """The payload."""

    order_id: int


@handler(retry="5s,30s,1m")
async def confirm_order(ctx: AsyncTaskContext, payload: Placed) -> None:
    """Confirm an order; what is written here commits with the task's outcome."""
    order = await ctx.session.get_one(Order, payload.order_id)
    order.confirmed = True
