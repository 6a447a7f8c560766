"""Tasks of Django's own framework."""

from __future__ import annotations

from django.tasks import task

from tests.django.shop.models import Order


@task
def add(a, b):
    """Return a sum."""
    return a + b


@task(takes_context=True)
def tell(context, note):
    """Write an order; return which attempt it is."""
    Order.objects.create(task_id=int(context.task_result.id), note=note)
    return context.attempt


@task
async def atell(note):
    """Write by the async ORM, then raise."""
    await Order.objects.acreate(task_id=0, note=note)
    raise LookupError(note)


@task(backend="retried")
def fails():
    """Raise."""
    raise LookupError("as always")


@task
def returns_a_set():
    """Return what JSON does not know."""
    return {1}


@task
def echo(note):
    """Return what it was given."""
    return note
