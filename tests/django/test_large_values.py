"""Payloads and results above the limit of a row, in a Django project."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tasks_app import load_large_values
from tasks_app.django import create_task
from tasks_app.domain.large_values.store import reference_of
from tasks_app.runtime.handlers.registry import HANDLERS
from tasks_app.runtime.large_values import large_values
from tests.runtime.bench import Bench

if pytest.importorskip("django"):
    from django.db import connection, transaction

BIG = {"text": "x" * 100_000}
VALUES = "SELECT count(*) FROM task_large_value"


@pytest.fixture(autouse=True)
def kept(site: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setenv("TASKS_APP_LARGE_VALUES", "database")
    large_values.cache_clear()
    yield {"large_values": "database"}
    large_values.cache_clear()


def orders() -> Any:
    from tests.django.shop.models import Order

    return Order.objects


def test_payload_result_and_what_the_orm_wrote_commit_together(
    site: Bench, kept: dict[str, Any]
) -> None:
    @site.handler()
    def h(ctx: Any, payload: dict[str, Any]) -> dict[str, Any]:
        orders().create(task_id=ctx.task_id)
        return payload

    with transaction.atomic():
        task_id = create_task("t", BIG)
    site.drain(**kept)

    task = site.task(task_id)
    assert reference_of(task.payload)
    assert reference_of(task.result)
    with site.engine.connect() as looker:
        assert load_large_values(looker, task).result == BIG
    assert orders().filter(task_id=task_id).count() == 1
    ids = "SELECT xmin::text FROM {} WHERE {} = :id"
    assert site.sql(ids.format("shop_order", "task_id"), id=task_id) == site.sql(
        ids.format("task_completed", "id"), id=task_id
    )


def test_a_rollback_of_atomic_keeps_nothing(site: Bench) -> None:
    with transaction.atomic():
        create_task("t", BIG)
        transaction.set_rollback(True)
    assert site.sql(VALUES) == 0


def test_a_handler_that_raises_leaves_no_result(site: Bench, kept: dict[str, Any]) -> None:
    @site.handler(max_attempts=1)
    def h(ctx: Any) -> dict[str, Any]:
        connection.cursor().execute("SELECT 1 / 0")
        return BIG

    task_id = site.create()
    site.drain(**kept)
    assert site.state(task_id) == "FAILED"
    assert site.sql(VALUES) == 0


@pytest.fixture
def calls(site: Bench) -> Iterator[Any]:
    """Tasks of Django's own framework."""
    pytest.importorskip(
        "django.tasks", reason="Django's tasks need Django 6.0, which needs Python 3.12"
    )
    from tests.django.shop import calls

    lane, site.registry = site.registry.plain_lane, HANDLERS
    HANDLERS.plain_lane = lane
    yield calls
    HANDLERS.plain_lane = None


def test_django_tasks_get_and_return_all(site: Bench, kept: dict[str, Any], calls: Any) -> None:
    alone = calls.echo.enqueue(BIG["text"])
    with transaction.atomic():
        within = calls.echo.enqueue(note=BIG["text"])
    site.drain(**kept)
    for result in (alone, within):
        result.refresh()
        assert (result.status.value, result.return_value) == ("SUCCESSFUL", BIG["text"])
    assert (alone.args, within.kwargs) == ([BIG["text"]], {"note": BIG["text"]})
    assert site.sql(VALUES) == 4


def test_a_django_task_whose_payload_is_lost_has_failed_and_says_so(
    site: Bench, kept: dict[str, Any], calls: Any
) -> None:
    from django.tasks.signals import task_finished

    told: list[str] = []

    def finished(task_result: Any, **_: Any) -> None:
        told.append(task_result.status.value)

    task_finished.connect(finished)
    result = calls.echo.enqueue(BIG["text"])
    site.sql("DELETE FROM task_large_value")
    site.drain(**kept)
    result.refresh()
    assert (told, result.status.value) == (["FAILED"], "FAILED")
    assert "stored outside of its row and is missing" in result.errors[0].traceback
