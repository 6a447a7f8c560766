"""``django.tasks``: what is enqueued, run, and found again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from tasks_app.django import create_task
from tasks_app.domain.errors import InvalidConnectionError
from tasks_app.runtime.handlers.registry import HANDLERS
from tests.runtime.bench import Bench

pytest.importorskip(
    "django.tasks", reason="Django's tasks need Django 6.0, which needs Python 3.12"
)
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.tasks import TaskResultStatus as Status
from django.tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone


@pytest.fixture
def calls(site: Bench) -> Any:
    from tests.django.shop import calls

    lane = site.registry.plain_lane
    site.registry = HANDLERS
    HANDLERS.plain_lane = lane
    yield calls
    HANDLERS.plain_lane = None


@pytest.fixture
def signals(calls: Any) -> Iterator[list[tuple[str, str]]]:
    """Each signal with the state in which its task is then."""
    seen: list[tuple[str, str]] = []
    kinds = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = []
    for kind, signal in kinds.items():

        def receive(task_result: Any, kind: str = kind, **_: Any) -> None:
            seen.append((kind, task_result.status.value))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield seen
    for signal, receive in receivers:
        signal.disconnect(receive)


def test_a_call_and_its_result(site: Bench, calls: Any, signals: Any) -> None:
    result = calls.add.enqueue(2, b=3)
    waits = (result.status, result.args, result.kwargs, result.attempts)
    site.drain()
    result.refresh()
    assert waits == (Status.READY, [2], {"b": 3}, 0)
    assert (result.status, result.return_value, result.attempts) == (Status.SUCCESSFUL, 5, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert calls.add.get_result(result.id) == result
    assert signals == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]


def test_a_context_and_effects_through_the_orm(site: Bench, calls: Any) -> None:
    from tests.django.shop.models import Order

    result = calls.tell.enqueue("hello")
    site.drain()
    result.refresh()
    assert result.return_value == 1
    assert [o.note for o in Order.objects.filter(task_id=int(result.id))] == ["hello"]


def test_what_a_coroutine_wrote_goes_with_its_error(site: Bench, calls: Any) -> None:
    from tests.django.shop.models import Order

    result = calls.atell.enqueue("hello")
    site.drain()
    result.refresh()
    assert (result.status, Order.objects.count()) == (Status.FAILED, 0)
    (error,) = result.errors
    assert error.exception_class is LookupError
    assert "Traceback" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_the_backend_has_the_options_of_handlers(site: Bench, calls: Any, signals: Any) -> None:
    result = calls.fails.enqueue()
    site.drain()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (Status.FAILED, 3, 3)
    assert [kind for kind, _ in signals] == ["enqueued", *["started"] * 3, "finished"]


def test_a_failure_is_told_once_with_many_threads(site: Bench, calls: Any, signals: Any) -> None:
    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            threads.submit(calls.fails.get_backend).result()
    calls.fails.enqueue()
    site.drain()
    assert [kind for kind, _ in signals].count("finished") == 1


def test_a_result_that_is_no_json_fails(site: Bench, calls: Any) -> None:
    result = calls.returns_a_set.enqueue()
    site.drain()
    result.refresh()
    assert result.status is Status.FAILED


def test_it_is_enqueued_with_its_transaction(site: Bench, calls: Any) -> None:
    with transaction.atomic():
        kept = calls.add.enqueue(1, 1)
    with transaction.atomic():
        lost = calls.add.enqueue(1, 1)
        transaction.set_rollback(True)
    assert calls.add.get_result(kept.id).status is Status.READY
    with pytest.raises(TaskResultDoesNotExist):
        calls.add.get_result(lost.id)


def test_a_block_of_another_database_alone_is_refused(site: Bench, calls: Any) -> None:
    """It would commit alone, also when that block is rolled back."""
    with transaction.atomic(using="other"), pytest.raises(InvalidConnectionError, match="'other'"):
        calls.add.enqueue(1, b=1)
    assert site.sql("SELECT count(*) FROM task_pending") == 0


def test_the_terms_of_a_call_come_back(site: Bench, calls: Any) -> None:
    later = timezone.now() + timedelta(hours=1)
    task = calls.add.using(priority=100, queue_name="mail", run_after=later)
    result = task.enqueue(1, 1)
    site.drain()
    assert calls.add.get_result(result.id).task == task
    row = site.task(int(result.id))
    assert (row.queue, row.priority, row.due_at, row.state) == ("mail", 0, later, "PENDING")


@pytest.mark.parametrize(("theirs", "ours"), [(100, 0), (1, 4), (0, 5), (-1, 6), (-100, 9)])
def test_priorities(site: Bench, calls: Any, theirs: int, ours: int) -> None:
    result = calls.add.using(priority=theirs).enqueue(1, 1)
    assert site.task(int(result.id)).priority == ours


def test_a_schedule_or_a_name_calls_it_too(site: Bench, calls: Any, signals: Any) -> None:
    with transaction.atomic():
        added = create_task("tests.django.shop.calls.add", {"args": [2], "kwargs": {"b": 3}})
        failed = create_task("tests.django.shop.calls.fails")
        elsewhere = create_task("tests.django.shop.calls.fails", queue="unknown_to_django")

    site.drain()
    ids = (added, failed, elsewhere)
    results = [calls.fails.get_backend().get_result(str(int(each))) for each in ids]

    assert [each.status for each in results] == [Status.SUCCESSFUL, Status.FAILED, Status.READY]
    assert (results[0].args, results[0].kwargs, results[0].return_value) == ([2], {"b": 3}, 5)
    assert (results[1].args, results[1].backend) == ([], "retried")
    assert results[2].task.queue_name == "default"
    assert [kind for kind, _ in signals].count("finished") == 2


def test_other_results_are_not_found(site: Bench, calls: Any) -> None:
    other = site.create("other")
    result = calls.tell.enqueue("x")
    for wrong in ("x", "0", str(int(other)), str(2**70)):
        with pytest.raises(TaskResultDoesNotExist):
            calls.add.get_result(wrong)
    with pytest.raises(TaskResultMismatch):
        calls.add.get_result(result.id)


def test_it_is_enqueued_and_found_in_async_code(site: Bench, calls: Any) -> None:
    async def work() -> Any:
        result = await calls.add.aenqueue(1, 1)
        return await calls.add.aget_result(result.id)

    assert asyncio.run(work()).status is Status.READY


def test_an_unknown_option_is_refused() -> None:
    from tasks_app.django.backend import TasksBackend

    with pytest.raises(ImproperlyConfigured, match="OPTIONS of TASKS\\['x'\\] has 'retri'"):
        TasksBackend("x", {"OPTIONS": {"retri": "5s"}})
