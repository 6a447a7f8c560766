"""Tests as Django runs them."""

from django.db import connection
from django.test import TestCase, TransactionTestCase
from orders.models import Points
from orders.tasks import award
from tasks_app.testing import assert_created, drain, empty_pool


class PlaceOrder(TestCase):
    """Everything is rolled back."""

    def test_creates_a_task(self):
        """The task is there within the test's transaction."""
        answer = self.client.post("/orders/", {"customer": "Ada", "amount": "120"}).json()

        (task,) = assert_created(connection, award, {"order": answer["order"]})
        self.assertEqual((task.id, task.biz_key), (answer["task"], f"order-{answer['order']}"))

    def test_gives_points(self):
        """A drain of the test's own connection runs what is due, in its transaction."""
        self.client.post("/orders/", {"customer": "Ada", "amount": "120"})

        drain(connection)

        self.assertEqual([points.number for points in Points.objects.all()], [12])


class Award(TransactionTestCase):
    """What a worker sees is committed."""

    def setUp(self):
        """Django empties its own tables alone."""
        empty_pool(connection)

    def test_gives_points(self):
        """A drain without a connection runs what is committed, as a worker does."""
        self.client.post("/orders/", {"customer": "Ada", "amount": "120"})

        drain()

        self.assertEqual([points.number for points in Points.objects.all()], [12])
