"""Handlers. Each app's tasks.py is found by itself."""

from django.db import transaction
from orders.models import Order, Points
from tasks_app import handler


@handler("orders.award", retry="5s,1m,10m")
def award(ctx, payload):
    """Points and outcome commit together, or not at all."""
    order = Order.objects.get(pk=payload["order"])
    Points.objects.create(order=order, number=order.amount // 10)
    transaction.on_commit(lambda: print(f"order {order.pk} has its points"))
