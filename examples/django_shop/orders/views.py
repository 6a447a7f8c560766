"""An order and its task commit together."""

from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from orders.models import Order
from orders.tasks import award
from tasks_app.django import create_task


@csrf_exempt
@require_POST
def place_order(request):
    """Take an order."""
    with transaction.atomic():
        order = Order.objects.create(
            customer=request.POST["customer"], amount=int(request.POST["amount"])
        )
        task_id = create_task(award, {"order": order.pk}, biz_key=f"order-{order.pk}")
    return JsonResponse({"order": order.pk, "task": task_id})
