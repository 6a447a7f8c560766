"""The same with unittest; Django's TestCase takes the place of the class TestCase here."""

from __future__ import annotations

import unittest
from typing import ClassVar

import pytest
from shop import OfOrder, grant_points, place_order
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tasks_app.testing import TasksTestMixin


class OrderTest(TasksTestMixin, unittest.TestCase):
    """Orders."""

    engine: ClassVar[Engine]

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _engine(cls, tasks_app_engine: Engine) -> None:
        cls.engine = tasks_app_engine

    def setUp(self) -> None:
        """Open a transaction that nobody commits."""
        connection = self.enterContext(self.engine.connect())
        connection.begin()
        self.tasks_session = self.session = Session(
            connection, join_transaction_mode="create_savepoint"
        )

    def tearDown(self) -> None:
        """Close it."""
        self.session.close()
        super().tearDown()

    def test_an_order(self) -> None:
        """It creates its tasks, and they run."""
        order = place_order(self.session, "Ann")
        self.assert_created(grant_points, OfOrder(order_id=order.id), count=1)

        self.crash_next(grant_points)
        self.drain().assert_succeeded()

        self.travel("2d")
        assert self.drain().of("review.ask").succeeded
