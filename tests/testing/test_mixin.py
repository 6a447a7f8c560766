"""The mixin, as a ``unittest`` test case has it."""

from __future__ import annotations

import unittest
from typing import Any, ClassVar

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.testing import TasksTestMixin
from tasks_app.testing.draining import FAULTS

OWN = Registry()
CALLS: list[Any] = []


@handler("points.grant", registry=OWN, retry="1h")
def grant(ctx: TaskContext, payload: dict[str, Any]) -> int:
    CALLS.append(payload)
    return int(payload["order_id"])


class ShopCase(TasksTestMixin, unittest.TestCase):
    __test__ = False
    given: ClassVar[Any] = None
    tasks_registry = OWN

    def setUp(self) -> None:
        CALLS.clear()
        self.tasks_session = self.given

    def test_points(self) -> None:
        create_task(self.given, grant, {"order_id": 7}, delay="1h")
        self.assert_created(grant, {"order_id": 7}, count=1)
        assert len(self.created("points.grant", delay="1h")) == 1
        assert self.run_task(grant, {"order_id": 7}) == 7
        assert len(self.drain()) == 0
        self.travel("1h")
        self.fail_next(grant, ValueError)
        assert len(self.drain().waiting) == 1
        self.travel("1h")
        self.drain().assert_succeeded()
        self.crash_next(grant)


class CommittedCase(TasksTestMixin, unittest.TestCase):
    __test__ = False
    tasks_registry = OWN

    def test_points(self) -> None:
        assert len(self.drain().succeeded) == 1
        with pytest.raises(RuntimeError, match="no tasks_session"):
            self.created()


def passes(case: type[unittest.TestCase]) -> None:
    result = unittest.TestResult()
    case("test_points").run(result)
    assert result.wasSuccessful(), result.failures + result.errors
    assert FAULTS == []


def test_in_a_session(session: Session) -> None:
    ShopCase.given = session
    passes(ShopCase)
    assert len(CALLS) == 3


def test_on_a_connection_of_psycopg_as_django_has_one(raw: psycopg.Connection) -> None:
    ShopCase.given = raw
    passes(ShopCase)


def test_committed(engine: Engine, database_url: str) -> None:
    with engine.begin() as connection:
        create_task(connection, grant, {"order_id": 7})
    CommittedCase.tasks_settings = Settings(database_url=database_url)
    passes(CommittedCase)
