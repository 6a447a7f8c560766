"""Tests as Django runs them."""

from django.test import TestCase, TransactionTestCase
from orders.models import Points
from tasks_app.django.models import TaskView
from tasks_app.testing import drain


class PlaceOrder(TestCase):
    """Everything is rolled back."""

    def test_creates_a_task(self):
        """The task is there within the test's transaction."""
        answer = self.client.post("/orders/", {"customer": "Ada", "amount": "120"}).json()

        task = TaskView.objects.get(pk=answer["task"])
        self.assertEqual((task.name, task.state), ("orders.award", "PENDING"))


class Award(TransactionTestCase):
    """What a worker sees is committed."""

    def test_gives_points(self):
        """A drain runs what is due."""
        self.client.post("/orders/", {"customer": "Ada", "amount": "120"})

        drain()

        self.assertEqual([points.number for points in Points.objects.all()], [12])
